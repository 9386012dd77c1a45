"""The compiler at work: cached, raced, damaged, absent."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram

from tests.backends import needs_cpu
from torchcaps.data.files import cache_folder
from torchcaps.ops import (
    conv_em_routing,
    conv_variational_bayes_routing,
    dynamic_routing,
    em_routing,
    locally_constrained_routing,
    which_backend,
)
from torchcaps.ops.backends import build as building
from torchcaps.ops.backends import dispatch, native, triton
from torchcaps.ops.backends.errors import Unavailable

#: A library that builds in a moment.
SOURCES = {"toy.cpp": b'extern "C" int answer() { return 42; }\n', "other.h": b""}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    sources = dict(SOURCES)
    monkeypatch.setattr(building, "_sources", lambda name: sources)
    return sources


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No compiler, and nothing that was compiled before: neither in the cache nor in a wheel."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHCAPS_CPU", "native")
    monkeypatch.delenv("CXX", raising=False)
    native._attempt.cache_clear()
    dispatch._NOTED.clear()
    yield
    native._attempt.cache_clear()
    dispatch._NOTED.clear()


@needs_cpu
def test_built_once(toy: dict[str, bytes], tmp_path: Path) -> None:
    path = building.build("toy", tmp_path)
    before = path.stat().st_mtime_ns
    assert building.build("toy", tmp_path) == path and path.stat().st_mtime_ns == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@needs_cpu
@pytest.mark.parametrize("changed", ["toy.cpp", "other.h"])
def test_a_change_of_any_source_is_built_anew(toy: dict[str, bytes], tmp_path: Path, changed: str) -> None:
    path = building.build("toy", tmp_path)
    toy[changed] += b"// changed\n"
    assert building.build("toy", tmp_path) != path


@needs_cpu
@pytest.mark.parametrize(
    ("name", "other"), [("_processor", lambda: "another"), ("FLAGS", (*building.FLAGS, "-DANOTHER"))]
)
def test_another_processor_or_flag_is_built_anew(
    toy: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, other: object
) -> None:
    """Machines may share a cache, and one not know the other's instructions."""
    path = building.build("toy", tmp_path)
    monkeypatch.setattr(building, name, other)
    assert building.build("toy", tmp_path) != path


@needs_cpu
def test_a_damaged_library_is_built_anew(toy: dict[str, bytes], tmp_path: Path) -> None:
    path = building.build("toy", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert building.build("toy", tmp_path).read_bytes() == whole


@needs_cpu
def test_two_processes_at_once(tmp_path: Path) -> None:
    code = (
        "import ctypes; from pathlib import Path; from torchcaps.ops.backends import build as b\n"
        f"b._sources = lambda name: {SOURCES!r}\n"
        f"print(ctypes.CDLL(str(b.build('toy', Path({str(tmp_path)!r})))).answer())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        out, error = process.communicate(timeout=120)
        assert out.strip() == "42", error
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".so"]


@needs_cpu
def test_a_folder_that_others_can_write_to_is_closed(toy: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    path = building.build("toy", folder)
    assert path.parent == folder and folder.stat().st_mode & 0o777 == 0o700
    path.chmod(0o777)  # so that anyone may have changed it, digest and all
    planted = path.stat().st_ino
    assert building.build("toy", folder).stat().st_ino != planted


@needs_cpu
def test_a_folder_of_somebody_else_is_not_used(
    toy: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = building.build("toy", tmp_path)
    monkeypatch.setattr(building.os, "geteuid", lambda: 12345)
    if tmp_path.stat().st_uid == 0:  # what the administrator has made is taken
        assert building.build("toy", tmp_path) == mine
    else:
        assert building.build("toy", tmp_path).parent != tmp_path
    tmp_path.chmod(0o777)  # and nobody's where others may have been
    assert not building.is_ours(tmp_path)


@needs_cpu
def test_what_a_killed_build_left_is_swept(toy: dict[str, bytes], tmp_path: Path) -> None:
    for name, days in (("toy-old", 2), ("toy-new", 0), ("another-old", 2)):
        (tmp_path / name).mkdir()
        then = time.time() - 86_400 * days
        os.utime(tmp_path / name, (then, then))
    building.build("toy", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["another-old", "toy-new"]


@needs_cpu
def test_a_broken_compiler_makes_room_for_the_next(
    toy: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c++").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CXX", raising=False)
    if not any(shutil.which(name) for name in building.COMPILERS[1:]):
        pytest.skip("one compiler alone")
    assert building.build("toy", tmp_path / "made").is_file()


def test_a_compiler_that_hangs_is_given_up_once(
    toy: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in building.COMPILERS[:2]:
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/{name}-began\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(building, "PATIENCE", 0.5)
    with pytest.raises(Unavailable, match="took longer than 0.5 seconds"):
        building.build("toy", tmp_path / "made")
    assert not (tmp_path / f"{building.COMPILERS[1]}-began").exists()


def test_a_compiler_may_speak_any_tongue(
    toy: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cxx").write_bytes(b"#!/bin/sh\necho 'f\xfcr nichts' >&2\nexit 1\n")  # Latin-1
    (tmp_path / "cxx").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    with pytest.raises(Unavailable, match="cannot compile toy.cpp: f.r nichts"):
        building.build("toy", tmp_path / "made")


def test_no_command_and_no_home_are_no_compiler(
    toy: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(Unavailable, match="CXX must be a command"):
        building.build("toy", tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    assert building.library_folder().is_dir()


def test_libraries_lie_apart_from_data_that_others_may_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "~/cache")
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    cache_folder().mkdir(parents=True)
    cache_folder().chmod(0o775)
    assert building.library_folder().parent == cache_folder() == tmp_path / "cache" / "torchcaps"
    assert building._writable(building.library_folder()).stat().st_mode & 0o777 == 0o700
    assert cache_folder().stat().st_mode & 0o777 == 0o775


@needs_cpu
def test_fast_mathematics_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and infinities have to come out as such."""
    source = b'extern "C" int answer() { return __FINITE_MATH_ONLY__; }\n'
    monkeypatch.setattr(building, "_sources", lambda name: {"toy.cpp": source})
    monkeypatch.setenv("CXX", f"{building._compilers()[0][0]} -ffast-math")
    assert ctypes.CDLL(str(building.build("toy", tmp_path))).answer() == 0


@needs_cpu
def test_what_the_compiler_says_is_passed_on(toy: dict[str, bytes], tmp_path: Path) -> None:
    toy["toy.cpp"] = b"#error not this one\n"
    with pytest.raises(Unavailable, match=r"cannot compile toy\.cpp: .*not this one"):
        building.build("toy", tmp_path)


@needs_cpu
def test_a_folder_that_cannot_be_written(
    toy: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert building.build("toy", tmp_path / "file").is_file()
    assert f"cannot be kept in {tmp_path / 'file'}, so every process compiles it anew" in caplog.text


def test_without_a_compiler_auto_takes_the_reference_and_says_so_once(
    no_compiler: None, caplog: pytest.LogCaptureFixture
) -> None:
    u, weight = torch.randn(2, 5, 3), torch.randn(5, 4, 3, 6)
    with caplog.at_level(logging.WARNING, "torchcaps"):
        for _ in range(2):
            got = dynamic_routing(u, weight)
    (record,) = caplog.records
    assert record.getMessage() == ("routing takes the slow reference: no C++ compiler: looked for c++, g++, clang++")
    torch.testing.assert_close(got.pose, dynamic_routing(u, weight, backend="reference").pose, rtol=0, atol=0)
    assert which_backend("dynamic", "auto", u, weight) == "reference"


def _exported(routing: str) -> tuple[ExportedProgram, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Export a network of "auto" where code is compiled; with an example and what comes of it."""
    torch.manual_seed(0)
    if routing == "dynamic":
        example: tuple[Tensor, ...] = (torch.randn(2, 5, 3), torch.randn(5, 4, 3, 6))
        function = dynamic_routing
    elif routing == "dynamic_votes":
        example = (torch.randn(2, 5, 3, 4, 3, 3),)
        function = locally_constrained_routing
    elif routing == "em":
        example = (torch.randn(2, 3, 4, 5, 4, 4), torch.rand(2, 3, 4, 5), torch.randn(3, 2, 3, 4, 4, 4))
        function = partial(conv_em_routing, settings="released", stride=(1, 2))
    elif routing == "variational_bayes":
        example = (torch.randn(2, 3, 4, 5, 4, 4), torch.rand(2, 3, 4, 5), torch.randn(3, 2, 3, 4, 4, 4))
        function = partial(conv_variational_bayes_routing, stride=(1, 2))
    else:
        example = (torch.randn(2, 5, 16), torch.rand(2, 5), torch.randn(5, 4, 16, 16))
        function = partial(em_routing, normalize=True, n_iters=2)
    if not routing.startswith("dynamic"):
        example = *example, torch.randn(4), torch.randn(4)

    couplings = {} if routing == "dynamic_votes" else {"return_coupling": True}

    class Network(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            found = function(*tensors, **couplings)
            return tuple(x for x in found if x is not None)

    program = torch.export.export(Network(), example)
    names = {"variational_bayes": "vote_moments_cpu", "dynamic_votes": "dynamic_votes_cpu"}
    assert names.get(routing, f"{routing.split('_')[0]}_routing_cpu") in program.graph_module.print_readable(
        print_output=False
    )
    return program, example, Network()(*example)


@needs_cpu
@pytest.mark.parametrize("routing", ["dynamic", "dynamic_votes", "em", "em_vectors", "variational_bayes"])
def test_exported_programs_run_without_a_compiler(routing: str, request: pytest.FixtureRequest) -> None:
    program, example, wanted = _exported(routing)
    request.getfixturevalue("no_compiler")
    assert native.why_not(routing) is not None
    for found, known in zip(program.module()(*example), wanted, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-4, atol=1e-5)
        assert not torch.equal(found, known) or routing.startswith("dynamic")  # it was the reference that computed


@needs_cpu
def test_without_a_compiler_what_was_compiled_is_taken(
    toy: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    path = building.build("toy", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert building.build("toy", tmp_path) == path
    toy["toy.cpp"] += b"// changed\n"
    with pytest.raises(Unavailable, match="no C.. compiler"):
        building.build("toy", tmp_path)


def test_without_a_compiler_the_named_one_raises(no_compiler: None) -> None:
    with pytest.raises(Unavailable, match="backend='cpu' is not available: no C.. compiler: looked for"):
        dynamic_routing(torch.randn(2, 5, 3), torch.randn(5, 4, 3, 6), backend="cpu")


@pytest.mark.parametrize("routing", ["dynamic", "dynamic_votes", "em", "em_vectors", "variational_bayes"])
def test_where_there_is_a_compiler_it_compiles(routing: str) -> None:
    """All other tests of the compiled code skip where it is not available: a mistake in it must not skip them all."""
    if not any(shutil.which(name) for name in building.COMPILERS):
        pytest.skip("no C++ compiler")
    assert native.why_not(routing) is None


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_where_there_is_triton_its_kernels_load(routing: str) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton")
    assert triton.why_not(routing) is None


def test_a_system_without_owners_of_files_takes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: nothing that others may have put there is loaded."""
    monkeypatch.delattr(os, "geteuid")
    with pytest.raises(Unavailable, match="compiled routing is for Linux and macOS"):
        building.build("dynamic")
