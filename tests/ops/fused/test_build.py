"""The compiler at work: cached, raced, damaged, absent."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.impls import needs_cpu
from torchcaps.ops import dynamic_routing, which_impl
from torchcaps.ops.fused import choose, cpu, triton
from torchcaps.ops.fused.cpu import build as building
from torchcaps.ops.fused.cpu import library
from torchcaps.ops.fused.unavailable import Unavailable

#: A library that builds in a moment.
SOURCES = {"toy.cpp": b'extern "C" int answer() { return 42; }\n', "other.h": b""}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    sources = dict(SOURCES)
    monkeypatch.setattr(building, "_sources", lambda name: sources)
    return sources


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library._attempt.cache_clear()
    choose._NOTED.clear()
    yield
    library._attempt.cache_clear()
    choose._NOTED.clear()


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
def test_a_damaged_library_is_built_anew(toy: dict[str, bytes], tmp_path: Path) -> None:
    path = building.build("toy", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert building.build("toy", tmp_path).read_bytes() == whole


@needs_cpu
def test_two_processes_at_once(tmp_path: Path) -> None:
    code = (
        "import ctypes; from pathlib import Path; from torchcaps.ops.fused.cpu import build as b\n"
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
def test_what_the_compiler_says_is_passed_on(toy: dict[str, bytes], tmp_path: Path) -> None:
    toy["toy.cpp"] = b"#error not this one\n"
    with pytest.raises(Unavailable, match=r"cannot compile toy\.cpp: .*not this one"):
        building.build("toy", tmp_path)


@needs_cpu
def test_a_folder_that_cannot_be_written(toy: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert building.build("toy", tmp_path / "file").is_file()


def test_without_a_compiler_auto_takes_the_reference_and_says_so_once(
    no_compiler: None, caplog: pytest.LogCaptureFixture
) -> None:
    u, weight = torch.randn(2, 5, 3), torch.randn(5, 4, 3, 6)
    with caplog.at_level(logging.WARNING, "torchcaps"):
        for _ in range(2):
            got = dynamic_routing(u, weight)
    (record,) = caplog.records
    assert record.getMessage() == ("routing takes the slow reference: no C++ compiler: looked for c++, g++, clang++")
    torch.testing.assert_close(got.pose, dynamic_routing(u, weight, impl="reference").pose, rtol=0, atol=0)
    assert which_impl("dynamic", "auto", u, weight) == "reference"


def test_without_a_compiler_the_named_one_raises(no_compiler: None) -> None:
    with pytest.raises(Unavailable, match="impl='cpu' is not to be had: no C.. compiler: looked for"):
        dynamic_routing(torch.randn(2, 5, 3), torch.randn(5, 4, 3, 6), impl="cpu")


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_where_there_is_a_compiler_it_compiles(routing: str) -> None:
    """All other tests of the compiled code skip where it is not to be had: a mistake in it must not skip them all."""
    if not any(shutil.which(name) for name in building.COMPILERS):
        pytest.skip("no C++ compiler")
    assert cpu.why_not(routing) is None


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_where_there_is_triton_its_kernels_load(routing: str) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton")
    assert triton.why_not(routing) is None
