"""The doctor: what it says of machines that lack something, of kernels that are wrong, and where it writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends import needs_cpu
from torchcaps.cli import main
from torchcaps.doctor import anonymous, as_text, check_place, examine, is_wrong, machine, routings, speed, write
from torchcaps.doctor.findings import findings
from torchcaps.ops.backends import native
from torchcaps.ops.backends.agreement import Agreement, Compared

GB = 10**9


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A speed of small problems."""
    monkeypatch.setattr(speed, "IMAGES", {"cpu": {"dynamic": 1, "em": 1}})
    monkeypatch.setattr(speed, "RUNS", 1)


def row(**changes: Any) -> dict[str, Any]:
    common = {"device": "cpu", "routing": "dynamic", "dtypes": ["float32", "float32"], "taken": "cpu", "fault": None}
    return {**common, "error": 3e-7, "reference_error": 4e-7, "seconds": 0.5, **changes}


def report(**changes: Any) -> dict[str, Any]:
    """Of a machine with nothing wrong."""
    names = ("torchcaps", "python", "torch", *machine.PACKAGES)
    found: dict[str, Any] = {
        "torchcaps doctor": 1,
        "versions": dict.fromkeys(names, "1.0"),
        "machine": {
            "system": "Linux",
            "processor": "A processor",
            "cores": 16,
            "threads": 16,
            "compiler": "c++: 12.2",
            "library": "compiled on this machine",
            "folder": "~/.cache/torchcaps/lib",
            "free_bytes": 50 * GB,
            "writable": True,
            "environment": {},
        },
        "gpus": {"cuda": None, "rocm": None, "driver": None, "said": [], "cards": []},
        "routings": [row()],
        "speed": [],
        "late": [],
        "failed": {},
    }
    found |= changes
    return found | {"findings": [finding._asdict() for finding in findings(found)]}


def with_gpu(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    card = {
        "device": "cuda:0",
        "name": "NVIDIA H100",
        "capability": "9.0",
        "memory_bytes": 80 * GB,
        "free_bytes": 79 * GB,
    }
    gpus = {"cuda": "13.0", "rocm": None, "driver": "580.65", "said": [], "cards": [card]}
    gpus["tf32"] = {"products": False, "convolutions": True}
    return report(gpus=gpus, routings=[row(), *rows], **changes)


def said(found: dict[str, Any], level: str) -> str:
    return "\n".join(f"{x['text']} -> {x['advice']}" for x in found["findings"] if x["level"] == level)


@needs_cpu
def test_this_machine(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user would type it; every routing of the CPU is right, and the file says the same as the text."""
    path = tmp_path / "report.json"
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert main(["doctor", "--json", str(path)]) == 0
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    text, found = capsys.readouterr().out, json.loads(path.read_text())
    on_cpu = [x for x in found["routings"] if x["device"] == "cpu"]
    assert {x["routing"] for x in on_cpu} == {"dynamic", "dynamic_votes", "em", "em_vectors", "variational_bayes"}
    assert all(x["taken"] == "cpu" and x["fault"] is None and x["compared"] for x in on_cpu)
    assert [x["routing"] for x in found["speed"] if x["device"] == "cpu"] == ["dynamic", "em"]
    assert found["versions"]["torch"] == torch.__version__ and torch.__version__ in text
    assert "CPU: compiled code is taken and right" in text and "Nothing is wrong here." in text
    assert str(Path.home()) not in path.read_text() or len(Path.home().parts) < 2
    assert all(line == line.rstrip() for line in text.splitlines())


@needs_cpu
def test_wrong_code_is_found(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchcaps.ops.dynamic import routing as dynamic

    right = dynamic._OPERATORS["cpu"]

    def wrong(*given: Any) -> Any:
        pose, *rest = right(*given)
        return pose * 1.01, *rest

    monkeypatch.setitem(dynamic._OPERATORS, "cpu", wrong)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    # Which problem shows it most is a matter of rounding.
    assert re.search(r"WRONG  CPU: compiled code is taken and wrong: result 0 \(problem \d\) is off by", text)
    assert "Something is wrong here: see above." in text


def test_without_a_compiler(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for why, wrong in (("no C++ compiler: looked for c++", False), ("c++ cannot compile dynamic.cpp: error", True)):
        monkeypatch.setattr(native, "why_not", lambda name, why=why: why)
        found = examine()
        assert is_wrong(found) == wrong and why in said(found, "wrong" if wrong else "note")
        assert {x["taken"] for x in found["routings"]} == {"reference"}
        assert [list(x["measured"]) for x in found["speed"]] == [["reference"]] * 2


def test_a_step_that_fails_is_part_of_the_report(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("not today\nnor tomorrow")

    monkeypatch.setattr(speed, "measure", fail)
    monkeypatch.setattr(machine, "gpus", fail)
    found = examine()
    assert found["failed"]["the GPUs"].endswith("RuntimeError: not today nor tomorrow")
    assert is_wrong(found) and found["routings"] and found["speed"] == []
    assert "the GPUs could not be looked at" in as_text(found)


def test_what_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torchcaps.doctor.examine"], "PATIENCE", -1)
    found = examine()
    assert (
        found["routings"] == [] and len(found["late"]) == 1 + 2 * len(routings.ROUTINGS["cpu"]) and not is_wrong(found)
    )
    assert "it took too long to look at the GPUs, dynamic routing in float32 on cpu" in as_text(found)


def test_a_gpu_where_all_is_well() -> None:
    measured = {"reference": {"ms": 6.7, "peak_bytes": 300e6}, "triton": {"ms": 1.4, "peak_bytes": 27e6}}
    times = {"device": "cuda:0", "routing": "dynamic", "problem": "some", "taken": "triton", "measured": measured}
    found = with_gpu(row(device="cuda:0", taken="triton"), speed=[times])
    text = as_text(found)
    assert not is_wrong(found) and said(found, "note") == ""
    assert "cuda:0 (NVIDIA H100): Triton's code is taken and right" in text
    assert "1.4 (triton)  4.8            300 / 27 MB  some" in text
    assert "TF32 products      no" in text and "TF32 convolutions  yes" in text


@pytest.mark.parametrize(
    ("why", "wrong", "advice"),
    [
        ("triton cannot be imported: No module named 'triton'", False, "pip install triton"),
        ("triton must be 3.4 or newer, got 3.3.1", False, "newer torch"),
        ("the kernels of EM routing did not run: triton finds no C compiler (CC, gcc, clang)", False, "install gcc"),
        ("TORCHCAPS_TRITON=0 says so", False, "unset"),
        ("the kernels want a GPU of compute capability 8.0 or more, Tesla T4 has 7.5", False, ""),
        ("the kernels of EM routing are wrong: result 0 is off by 1", True, "report it"),
        ("the kernels of EM routing did not run: RuntimeError: driver", True, "report it"),
    ],
)
def test_a_gpu_whose_kernels_are_not_taken(why: str, wrong: bool, advice: str) -> None:
    found = with_gpu(row(device="cuda:0", taken="reference", why=why, wrong=wrong))
    assert is_wrong(found) == wrong
    sentence = said(found, "wrong" if wrong else "note")
    assert why in sentence and advice in sentence.split(" -> ")[1]


@pytest.mark.parametrize(
    ("reason", "wrong"),
    [
        ("the kernels of it are wrong: x", True),
        ("the kernels of it did not run: RuntimeError: x", True),
        ("the kernels of it did not run: triton finds no C compiler (CC, gcc, clang)", False),
        ("the GPU has no memory left for the check", False),
    ],
)
def test_why_a_gpu_takes_the_reference(monkeypatch: pytest.MonkeyPatch, reason: str, wrong: bool) -> None:
    monkeypatch.setattr(routings.triton, "why_not", lambda name: None)
    monkeypatch.setattr(routings.trust, "why_not_trusted", lambda *given: reason)
    monkeypatch.delenv("TORCHCAPS_TRITON", raising=False)
    cuda = torch.device("cuda", 0)
    assert routings._why_not("em", cuda, routings.FLOAT) == (reason, wrong)
    monkeypatch.setenv("TORCHCAPS_TRITON", "0")
    assert routings._why_not("em", cuda, routings.FLOAT) == ("TORCHCAPS_TRITON=0 says so", False)
    monkeypatch.delenv("TORCHCAPS_TRITON")
    monkeypatch.setattr(routings.triton, "why_not", lambda name: "triton cannot be imported")
    assert routings._why_not("em", cuda, routings.FLOAT) == ("triton cannot be imported", False)


def test_a_gpu_that_torch_does_not_see() -> None:
    for cuda, advice in ((None, "install a CUDA build of torch"), ("13.0", "nvidia-smi")):
        gpus = {"cuda": cuda, "rocm": None, "driver": "580.65", "said": ["the driver is too old"], "cards": []}
        found = report(gpus=gpus)
        assert advice in said(found, "note") and "too old" in said(found, "note") and not is_wrong(found)


def test_a_cache_that_is_full_or_closed_and_what_training_lacks() -> None:
    healthy = report()
    assert "will" not in said(healthy, "note") and said(healthy, "note") == ""
    for changes, text in (({"free_bytes": 10**6}, "has 1 MB left"), ({"writable": False}, "cannot be written to")):
        assert text in said(report(machine=healthy["machine"] | changes), "note")
    versions = healthy["versions"] | {"lightning": machine.ABSENT}
    assert "torchcaps train lacks lightning" in said(report(versions=versions), "note")


def test_slower_than_the_reference_is_said() -> None:
    measured = {"reference": {"ms": 1.0}, "cpu": {"ms": 3.0}}
    times = {"device": "cpu", "routing": "em", "problem": "some", "taken": "cpu", "measured": measured}
    assert "compiled code takes 3.0 times as long as the reference for EM" in said(report(speed=[times]), "note")


# ---- the file


def test_nothing_that_a_user_made_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = {
        "notes.txt": "mine",
        "mine.json": '{"mine": 1}',
        "list.json": "[1]",
        "empty": "",
        "deep.json": "[" * 10**5,
    }
    for name, content in others.items():
        (tmp_path / name).write_text(content)
        assert main(["doctor", "--json", str(tmp_path / name)]) == 2
        assert "json must name a new file or an earlier report, got" in capsys.readouterr().err
        assert (tmp_path / name).read_text() == content
    for place, why in ((tmp_path, "which is something else"), (tmp_path / "none" / "x.json", "a folder that is there")):
        with pytest.raises(ValueError, match=why):
            check_place(place)


def test_an_earlier_report_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write(report(), path)
    write(report(late=["the GPUs"], infinite=[float("nan"), float("inf")]), path)
    found = json.loads(path.read_text())
    assert found["late"] == ["the GPUs"] and found["infinite"] == ["nan", "inf"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_finished_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write(report(), path)
    before = path.read_bytes()

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="No space left"):
        write(report(), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_no_names_of_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    given = {"a": ["/home/ada/.cache/x", "/scratch/ada/lib: full", "/home/adam/x"], "b": 1.0, "c": ("/home/ada",)}
    assert anonymous(given) == {"a": ["~/.cache/x", "/scratch/<user>/lib: full", "/home/adam/x"], "b": 1.0, "c": ["~"]}
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert anonymous("/usr/bin/c++") == "/usr/bin/c++"


def test_what_it_imports() -> None:
    """The core's two dependencies are enough for it."""
    code = "import sys, torchcaps.doctor; print([m for m in ('lightning', 'matplotlib', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_errors_are_said_in_the_table() -> None:
    nan = Agreement((Compared("result 0", float("nan"), 1e-7, 1e-6, 1.0),), True)
    assert nan.fault() is not None and nan.errors[0] == float("inf")
    text = as_text(report(routings=[row(error=nan.errors[0], fault=nan.fault())]))
    assert "inf" in text and "WRONG" in text


def test_where_the_compiled_routing_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.doctor.machine.shipped", lambda name: None)
    assert machine.machine()["library"] == "compiled on this machine"
    monkeypatch.setattr("torchcaps.doctor.machine.shipped", lambda name: tmp_path / f"{name}-avx2-0.so")
    assert machine.machine()["library"] == "dynamic-avx2-0.so, which came with the wheel"
    monkeypatch.undo()
    monkeypatch.setenv("TORCHCAPS_CPU", "mmx")
    assert "TORCHCAPS_CPU must be one of" in machine.machine()["library"]
