"""Whether "auto" takes the kernels: right ones, wrong ones, ones that do not run; and what is kept of it."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import re
import subprocess
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.backends import needs_cpu, needs_interpreter, needs_triton
from torchcaps.layers import DenseCaps
from torchcaps.ops import dynamic_routing, em_routing, which_backend
from torchcaps.ops.backends import agreement, dispatch, native, trust, verdicts
from torchcaps.ops.backends import triton as library
from torchcaps.ops.backends.agreement import Problem, compare
from torchcaps.ops.backends.verdicts import Kind, Verdict

TIMES = itertools.count()
CPU, FLOAT = torch.device("cpu"), (torch.float32, torch.float32)
ORIGINAL = dict(agreement.PROBLEMS)
#: The interpreter does some thousand operations a second.
TINY = {
    "dynamic": (
        Problem({"u": (3, 5, 2), "weight": (5, 3, 2, 4), "bias": (3, 4)}, {"n_iters": 2}, function="dynamic_routing"),
    ),
    "dynamic_votes": ORIGINAL["dynamic_votes"],
    "em": (Problem(agreement._em((4, 4), 2, (2, 2, 3), (2, 2), 2), {**agreement._PAPER, "n_iters": 2}),),
    "em_vectors": ORIGINAL["em_vectors"],
    "variational_bayes": ORIGINAL["variational_bayes"],
}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for routing in ORIGINAL:
        native.why_not(routing)  # so that it is not compiled anew for the other cache
    for known in ("_KNOWN", "_SEEN"):
        monkeypatch.setattr(trust, known, {})
    monkeypatch.setattr(dispatch, "_NOTED", set())
    monkeypatch.setattr(agreement, "PROBLEMS", TINY)
    monkeypatch.delenv(trust.SWITCH, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: "auto" takes the kernels, but in the interpreter."""
    monkeypatch.setitem(dispatch._FASTEST, "cpu", {"dynamic": "triton", "em": "triton"})


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The routings that are checked, in their order; every kernel is right, and none is run."""
    seen: list[str] = []

    def right(routing: str, *arguments: Any, **options: Any) -> agreement.Agreement:
        seen.append(routing)
        return agreement.Agreement((agreement.Compared("result 0", 0.0, 0.0, 1.0, 1.0),), True)

    monkeypatch.setattr(trust, "compare", right)
    return seen


def ask(routing: str = "dynamic", dtypes: tuple[torch.dtype, torch.dtype] = FLOAT) -> str | None:
    return trust.why_not_trusted(routing, "cpu", *dtypes)


def forget() -> None:
    """As a new process."""
    trust._KNOWN.clear()
    trust._SEEN.clear()


def spoil(monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    """Let something be done to what the kernels of dynamic routing give."""
    from torchcaps.ops.dynamic import routing as dynamic

    right = dynamic._OPERATORS["triton"]

    def wrong(*arguments: Any) -> Any:
        pose, *rest = right(*arguments)
        return how(pose), *rest

    monkeypatch.setitem(dynamic._OPERATORS, "triton", wrong)


def kept(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (tmp_path / "cache").rglob("*.json")]


def example() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 4, 3), torch.randn(4, 2, 3, 5)


# ---- what is compared


@needs_cpu
@pytest.mark.parametrize("routing", ORIGINAL)
@pytest.mark.parametrize("dtypes", [FLOAT, (torch.bfloat16, torch.float32), (torch.float64,) * 2], ids=str)
def test_compiled_code_agrees(monkeypatch: pytest.MonkeyPatch, routing: str, dtypes: Any) -> None:
    """On the problems that a GPU is asked, whose rule must not call right code wrong."""
    monkeypatch.setattr(agreement, "PROBLEMS", ORIGINAL)
    found = compare(routing, "cpu", CPU, dtypes)
    assert found.fault() is None and found.same_bits
    learned = "gradient of votes" if routing == "dynamic_votes" else "gradient of weight"
    assert {x.name.split(" (")[0] for x in found.compared} >= {"result 0", "result 1", learned}


@needs_cpu
@pytest.mark.parametrize("factor", [1 + 1e-5, float("nan")])
def test_a_wrong_number_is_seen(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    from torchcaps.ops.dynamic import routing as dynamic

    right = dynamic._OPERATORS["cpu"]
    monkeypatch.setitem(
        dynamic._OPERATORS, "cpu", lambda *given: tuple(x * factor for x in right(*given)[:2]) + right(*given)[2:]
    )
    found = compare("dynamic", "cpu", CPU, FLOAT)
    assert "is off by" in (found.fault() or "") and not found.worst.is_right


@needs_cpu
def test_rounding_to_tf32_is_let_pass_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchcaps.ops.dynamic import routing as dynamic

    right = dynamic._OPERATORS["cpu"]

    def rounded(u: Tensor, weight: Tensor, *rest: Any) -> Any:
        cut = [(x.detach().view(torch.int32) & -(1 << 13)).view(torch.float32) for x in (u, weight)]
        return right(*(x + (y - x).detach() for x, y in zip((u, weight), cut)), *rest)

    monkeypatch.setitem(dynamic._OPERATORS, "cpu", rounded)
    assert compare("dynamic", "cpu", CPU, FLOAT).fault() is not None
    assert compare("dynamic", "cpu", CPU, FLOAT, tf32=True).fault() is None


# ---- the verdict, with kernels that run


@needs_interpreter
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_right_kernels_are_taken(
    routing: str, on_the_cpu: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.INFO, "torchcaps"):
        assert which_backend(routing, "auto", torch.zeros(1)) == "triton"
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(f"checking the GPU kernels of {'EM' if routing == 'em' else routing} routing in float32")
    assert said[1].endswith("right") and len(said) == 2
    assert [x["reason"] for x in kept(tmp_path)] == [None]


@needs_interpreter
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda pose: pose * 1.001, "are wrong: .* is off by .* is let pass"),
        (lambda pose: pose * float("nan"), "are wrong: .* is off by nan"),
        (lambda pose: pose * (1 + 1e-7 * (next(TIMES) % 2)), "are wrong: the same input gave"),
    ],
    ids=["wrong", "nan", "other bits"],
)
def test_wrong_kernels_are_not_taken(
    how: Any,
    reason: str,
    on_the_cpu: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    spoil(monkeypatch, how)
    u, weight = example()
    for _ in range(3):
        found = dynamic_routing(u, weight)
    torch.testing.assert_close(found.pose, dynamic_routing(u, weight, backend="reference").pose, rtol=0, atol=0)
    first, only = (record.getMessage() for record in caplog.records)
    assert first.startswith("checking")
    assert only.startswith("routing takes the slow reference: ")
    assert re.search(reason, only) and "\n" not in only and "torchcaps doctor" in only
    assert [x["reason"] for x in kept(tmp_path)] == [only.removeprefix("routing takes the slow reference: ")]


class CompilationError(Exception):
    """As Triton's."""


@needs_interpreter
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), "RuntimeError: Triton Error"),
        (CompilationError("at 7:4:\n    x = y\n" + "^" * 1000), "CompilationError: at 7:4: x = y"),
        (torch.OutOfMemoryError("CUDA out of memory"), "the GPU has no memory left for the check"),
        (OSError(errno.ENOSPC, "No space left on device"), "OSError: .*No space left on device"),
        (AssertionError("libcuda.so cannot found!"), "AssertionError: libcuda.so"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else "",
)
def test_kernels_that_do_not_run_are_not_taken(
    failure: Exception,
    reason: str,
    on_the_cpu: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """And asked again by the next process: what failed may work by then."""

    def fail(pose: Tensor) -> Tensor:
        raise failure

    spoil(monkeypatch, fail)
    monkeypatch.setattr(trust, "has_compiler", lambda: True)
    for _ in range(2):
        assert which_backend("dynamic", "auto", torch.zeros(1)) == "reference"
    _, only = (record.getMessage() for record in caplog.records)
    assert re.search(f"did not run: {reason}", only) and "\n" not in only and len(only) < 600
    assert kept(tmp_path) == []


@needs_interpreter
def test_who_interrupts_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(pose: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        spoil(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask()
    assert ask() is None  # and it is asked again


@needs_interpreter
def test_the_context_it_is_first_asked_in_does_not_matter(on_the_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes, hooks, precision: they are the caller's. The caller's random numbers stay the same."""
    hooked: list[Tensor] = []
    contexts: list[AbstractContextManager[Any]] = [
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(lambda x: hooked.append(x) or x, lambda x: x),
        torch.device("meta"),
        FakeTensorMode(),
    ]
    monkeypatch.setattr(verdicts, "read", lambda kind: None)  # checked each time
    state = torch.get_rng_state()
    for context in contexts:
        forget()
        with context:
            assert ask() is None
        assert len(trust._KNOWN) == 1
    assert torch.equal(torch.get_rng_state(), state) and hooked == []
    forget()
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    try:
        assert ask() is None
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)


@needs_interpreter
def test_with_anomaly_detection() -> None:
    torch.autograd.set_detect_anomaly(True)
    try:
        assert ask() is None
    finally:
        torch.autograd.set_detect_anomaly(False)


@needs_interpreter
@pytest.mark.parametrize("right", [True, False])
def test_first_asked_while_compiling(on_the_cpu: None, monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    if not right:
        spoil(monkeypatch, lambda pose: pose * 1.001)
    layer, x = DenseCaps(4, 2, 3, 5), torch.randn(2, 4, 3)
    compiled = torch.compile(lambda x: layer(x).pose, backend="aot_eager", fullgraph=True)
    found = compiled(x)
    assert [verdict.reason is None for verdict in trust._KNOWN.values()] == [right]
    torch.testing.assert_close(found, layer(x).pose, rtol=0, atol=0)


@needs_interpreter
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_first_asked_while_exporting(routing: str, strict: bool, on_the_cpu: None) -> None:
    """For any number of images."""
    layer: torch.nn.Module = DenseCaps(4, 2, 3, 5)
    example: tuple[Any, ...] = (torch.randn(3, 4, 3),)
    if routing == "em":
        layer, example = Dense(), (torch.randn(3, 4, 4, 4), torch.rand(3, 4))
    images = torch.export.Dim("images")
    shapes = tuple({0: images} for _ in example)
    program = torch.export.export(layer.eval(), example, dynamic_shapes=shapes, strict=strict)
    assert f"{routing}_routing_triton" in program.graph_module.print_readable(print_output=False)
    assert [verdict.reason for verdict in trust._KNOWN.values()] == [None]


class Dense(torch.nn.Module):
    """EM routing of matrices that are given as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 2, 4, 4))

    def forward(self, pose: Tensor, activation: Tensor) -> Tensor:
        return em_routing(pose, activation, self.weight, torch.zeros(2), torch.zeros(2)).pose


@needs_interpreter
def test_compiled_for_any_sizes(on_the_cpu: None) -> None:
    compiled = torch.compile(lambda *x: dynamic_routing(*x).pose, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (2, 3):
        given = torch.randn(n, 4, 3), torch.randn(4, n, 3, 5)
        torch.testing.assert_close(compiled(*given), dynamic_routing(*given).pose, rtol=0, atol=0)


# ---- what is kept, and what is not


def kind(**changes: Any) -> Kind:
    return Kind("dynamic", "A card (9.0)", *FLOAT, tf32=False)._replace(**changes)


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that these tests run without it."""
    monkeypatch.setattr(verdicts, "_triton", lambda: "3.6.0")
    monkeypatch.setattr(trust, "has_compiler", lambda: True)


@pytest.mark.parametrize("reason", [None, "wrong"])
def test_a_verdict_is_kept_by_all_that_it_depends_on(
    reason: str | None, no_triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdicts.read(kind()) is None
    verdicts.write(kind(), Verdict(reason))
    assert verdicts.read(kind()) == Verdict(reason, keep=True)
    for other in (
        {"card": "Another card (9.0)"},
        {"routing": "em"},
        {"poses": torch.bfloat16},
        {"matrices": torch.bfloat16},
        {"tf32": True},
    ):
        assert verdicts.read(kind(**other)) is None
    for name, value in (("_source", "changed"), ("driver", "999.0"), ("_triton", "3.7.0")):
        with monkeypatch.context() as patch:
            patch.setattr(verdicts, name, lambda value=value: value)
            assert verdicts.read(kind()) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "99.0")
        assert verdicts.read(kind()) is None
    assert verdicts.read(kind()) == Verdict(reason, keep=True)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"reason": null}', '{"kind": {}, "reason": null}', "\x00\xff", "[" * 100_000]
)
def test_a_file_that_is_broken_counts_for_nothing(content: str, no_triton: None, tmp_path: Path) -> None:
    verdicts.write(kind(), Verdict(None))
    (path,) = (tmp_path / "cache").rglob("*.json")
    path.write_text(content, encoding="latin-1")
    assert verdicts.read(kind()) is None
    verdicts.write(kind(), Verdict("wrong"))
    assert verdicts.read(kind()) == Verdict("wrong", keep=True)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_what_others_may_have_written_counts_for_nothing(no_triton: None, tmp_path: Path) -> None:
    verdicts.write(kind(), Verdict(None))
    (path,) = (tmp_path / "cache").rglob("*.json")
    path.chmod(0o666)
    assert verdicts.read(kind()) is None
    path.chmod(0o644)
    path.parent.chmod(0o777)
    assert verdicts.read(kind()) is None
    verdicts.write(kind(), Verdict(None))  # which closes the folder
    assert verdicts.read(kind()) == Verdict(None, keep=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("where", ["mkdir", "open", "write", "replace"])
def test_a_cache_that_takes_nothing(
    where: str, number: int, no_triton: None, checks: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Read-only or full: the check is done, its outcome holds for this process, and no piece of a file stays."""

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    owner, name = {
        "mkdir": (Path, "mkdir"),
        "open": (verdicts.tempfile, "mkstemp"),
        "write": (verdicts.json, "dump"),
        "replace": (Path, "replace"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        assert ask() is None and ask() is None
    assert checks == ["dynamic"]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(no_triton: None, checks: list[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert ask() is None and checks == ["dynamic"]
    finally:
        tmp_path.chmod(0o700)


def test_a_user_without_a_home(no_triton: None, checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: Any) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert ask() is None and checks == ["dynamic"]


def test_the_next_process_reads_it(no_triton: None, checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask() is None and ask() is None and checks == ["dynamic"]
    forget()
    assert ask() is None and checks == ["dynamic"]
    forget()
    monkeypatch.setattr(trust, "has_compiler", lambda: False)  # kernels that triton forgot cannot be started now
    assert ask() is None and checks == ["dynamic", "dynamic"]


def test_each_kind_by_itself(no_triton: None, checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bfloat16 = (torch.bfloat16, torch.float32)
    for routing, dtypes in (("dynamic", FLOAT), ("em", FLOAT), ("dynamic", bfloat16), ("dynamic", FLOAT)):
        assert ask(routing, dtypes) is None
    assert checks == ["dynamic", "em", "dynamic"]
    monkeypatch.setattr(trust, "allows_tf32", lambda: True)
    assert ask() is None and len(checks) == 4


def test_two_cards_of_one_name_are_checked_once(
    no_triton: None, checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {0: "A card (9.0)", 1: "A card (9.0)", 2: "Another (8.0)"}
    monkeypatch.setattr(trust, "unfit", lambda device: None)
    monkeypatch.setattr(trust, "_card", lambda device: names[device.index])
    monkeypatch.setattr(trust, "on", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    for index, n in ((0, 1), (1, 1), (2, 2), (0, 2)):
        assert trust.why_not_trusted("em", f"cuda:{index}", *FLOAT) is None
        assert len(checks) == n


def test_two_threads_check_once(no_triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def slow(*_: Any) -> Verdict:
        seen.append(0)
        begun.set()
        assert go_on.wait(30)
        return Verdict(None)

    monkeypatch.setattr(trust, "_checked", slow)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(seen) == 1 and not any(thread.is_alive() for thread in threads)


# ---- while it cannot be asked, and where it is not wanted


def test_not_while_a_graph_is_captured(no_triton: None, checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trust, "_is_capturing", lambda: True)
        assert "call the layer once before" in (ask() or "") and checks == []
    assert ask() is None and checks == ["dynamic"]
    monkeypatch.setattr(trust, "_is_capturing", lambda: True)
    assert ask() is None  # known already


def test_the_question_itself_starts_no_gpu() -> None:
    assert torch.cuda.is_initialized() or not trust._is_capturing()


@pytest.mark.parametrize("value", ["0", "1", "", None])
def test_the_switch(
    value: str | None, no_triton: None, checks: list[str], monkeypatch: pytest.MonkeyPatch, on_the_cpu: None
) -> None:
    if value is not None:
        monkeypatch.setenv(trust.SWITCH, value)
    monkeypatch.setattr(library, "_attempt", lambda name: torch)
    monkeypatch.setattr(torch, "INTERPRETED", True, raising=False)
    assert which_backend("dynamic", "auto", torch.zeros(1)) == ("reference" if value == "0" else "triton")
    assert checks == ([] if value in ("0", "1") else ["dynamic"])


def test_a_switch_that_is_none(monkeypatch: pytest.MonkeyPatch, on_the_cpu: None) -> None:
    monkeypatch.setattr(library, "_attempt", lambda name: torch)
    monkeypatch.setattr(torch, "INTERPRETED", True, raising=False)
    monkeypatch.setenv(trust.SWITCH, "no")
    with pytest.raises(ValueError, match=r"TORCHCAPS_TRITON must be 0 \(no GPU kernels\), 1 .* or unset, got 'no'"):
        which_backend("dynamic", "auto", torch.zeros(1))
    assert which_backend("dynamic", "reference", torch.zeros(1)) == "reference"


def test_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    why = trust.why_not_trusted("dynamic", "cuda:0", *FLOAT)
    assert why == "the kernels want a GPU of compute capability 8.0 or more, Tesla T4 has 7.5"
    monkeypatch.setenv(trust.SWITCH, "1")
    assert trust.why_not_trusted("dynamic", "cuda:0", *FLOAT) == why


@needs_interpreter
def test_rocm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = library.load("dynamic")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert library._attempt.__wrapped__("dynamic") is kernels  # the interpreter does not mind
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    assert "never tried on AMD's ROCm" in library._attempt.__wrapped__("dynamic")


def test_no_c_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    if os.name != "nt":
        assert not library.has_compiler()
        assert "triton finds no C compiler (CC, gcc, clang)" in trust.in_words(
            RuntimeError("Failed to find C compiler.")
        )
    monkeypatch.setenv("CC", "tcc")
    assert library.has_compiler()
    monkeypatch.setattr(trust.sysconfig, "get_path", lambda name: str(tmp_path))
    failure = subprocess.CalledProcessError(1, ["gcc", "main.c"])
    assert "lacks Python's headers" in trust.in_words(failure)
    (tmp_path / "Python.h").touch()
    assert trust.in_words(failure).startswith("CalledProcessError")


def test_a_gpu_that_the_kernels_broke(no_triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept: else every process would end like this one. What failed before is not the kernels' fault."""
    alive = iter((None, RuntimeError("illegal memory access")))

    def synchronize(device: torch.device) -> None:
        failure = next(alive)
        if failure is not None:
            raise failure

    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(trust, "compare", fail)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(trust, "on", lambda device: nullcontext())
    cuda = torch.device("cuda", 0)
    verdict = trust._checked(kind(), cuda)
    assert verdict.keep and "start again" in str(verdict.reason)
    alive = iter((RuntimeError("illegal memory access"),))
    verdict = trust._checked(kind(), cuda)
    assert not verdict.keep and "failed before its kernels were checked" in str(verdict.reason)


# ---- what "auto" must not take


@needs_interpreter
@pytest.mark.parametrize("upper", [(3, 1025), (1, 16_385)], ids=str)
def test_sizes_that_the_kernels_refuse_are_the_references(upper: tuple[int, int], on_the_cpu: None) -> None:
    """Where naming the kernels raises, "auto" does not."""
    u, weight = torch.randn(1, 1, 1), torch.randn(1, upper[0], 1, upper[1])
    try:
        dynamic_routing(u, weight, backend="triton")
    except ValueError:
        assert which_backend("dynamic", "auto", u, weight) == "reference"
        assert dynamic_routing(u, weight).pose.shape == (1, *upper)


def test_sizes_and_dtypes_in_words() -> None:
    u = torch.empty(2, 3, 4, device="meta")
    assert library.wrong_sizes("dynamic", (u, torch.empty(3, 1000, 4, 16, device="meta"))) is None
    for routing, tensors, why in (
        ("dynamic", (u, torch.empty(3, 2, 4, 1025, device="meta")), "at most 16,384 numbers of a matrix"),
        ("dynamic", (u.to(torch.int64), torch.empty(3, 2, 4, 5, device="meta")), "the kernels read .* not torch.int64"),
    ):
        assert re.search(why, library.wrong_sizes(routing, tensors) or "")


def test_poses_and_matrices_are_told_apart() -> None:
    u, weight, bias = torch.zeros(2, 3, 4), torch.zeros(3, 2, 4, 5), torch.zeros(2, 5)
    assert library.roles((u, weight, bias)) == (u, weight)
    pose, activation, matrices = torch.zeros(1, 2, 3, 3, 4, 4), torch.zeros(1, 2, 3, 3), torch.zeros(2, 1, 1, 3, 4, 4)
    found = library.roles((pose, activation, matrices, torch.zeros(3), torch.zeros(3)))
    assert found[0] is pose and found[1] is matrices
    assert library.roles((bias,)) == (bias, bias)


@needs_cpu
def test_auto_still_takes_the_compiled_code_on_a_cpu() -> None:
    assert which_backend("dynamic", "auto", torch.zeros(1)) == which_backend("em", "auto", torch.zeros(1)) == "cpu"


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("routing", ["dynamic", "em"])
@pytest.mark.parametrize("dtypes", [FLOAT, (torch.bfloat16, torch.float32)], ids=str)
def test_the_kernels_are_right_on_this_gpu(monkeypatch: pytest.MonkeyPatch, routing: str, dtypes: Any) -> None:
    monkeypatch.setattr(agreement, "PROBLEMS", ORIGINAL)
    assert trust.why_not_trusted(routing, "cuda:0", *dtypes) is None
