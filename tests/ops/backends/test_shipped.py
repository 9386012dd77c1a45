"""Which of a wheel's libraries is taken, and what the build of a wheel makes."""

from __future__ import annotations

import os
import platform
import runpy
from importlib import resources
from pathlib import Path

import pytest
import torch

from torchcaps.ops.backends import native, shipped, variants


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file for each library of x86-64 processors."""
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    monkeypatch.delenv("TORCHCAPS_CPU", raising=False)
    ops = resources.files("torchcaps.ops")
    assert isinstance(ops, Path)
    for library in variants.commands(["c++"], "x86_64", os.name == "nt", ops, tmp_path):
        library.touch()
    return tmp_path


def _taken(folder: Path) -> str | None:
    path = shipped.shipped("em", folder)
    return None if path is None else path.name.split("-")[1]


@pytest.mark.parametrize(
    ("capability", "variant"),
    [("AVX512", "avx512"), ("AVX2", "avx2"), ("DEFAULT", "sse2"), ("NO AVX", "sse2"), ("a newer one", "sse2")],
)
def test_the_fastest_that_the_processor_knows(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capability: str, variant: str
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert _taken(wheel) == variant


def test_one_may_be_named_or_none(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setenv("TORCHCAPS_CPU", "sse2")
    assert _taken(wheel) == "sse2"
    monkeypatch.setenv("TORCHCAPS_CPU", "native")
    assert _taken(wheel) is None
    monkeypatch.setenv("TORCHCAPS_CPU", "avx512")  # which would end the process
    with pytest.raises(
        ValueError, match="TORCHCAPS_CPU must be one of native, avx2, sse2 here, or unset, got 'avx512'"
    ):
        _taken(wheel)


def test_another_processor_has_none_of_them(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in ("aarch64", "riscv64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert _taken(wheel) is None


def test_changed_sources_have_none(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = shipped.sources("em", shipped.source_folders("em", resources.files("torchcaps.ops")))
    windows = {file: text.replace(b"\n", b"\r\n") for file, text in content.items()}
    monkeypatch.setattr(shipped, "sources", lambda *_: windows)
    assert _taken(wheel) is not None  # line ends change nothing
    monkeypatch.setattr(shipped, "sources", lambda *_: content | {"votes.h": content["votes.h"] + b"//"})
    assert _taken(wheel) is None


def test_one_that_does_not_load_makes_room_for_the_compiler(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "shipped", lambda name: shipped.shipped(name, wheel))  # of no bytes
    assert native._shipped("em") is None
    assert "does not load" in caplog.text


@pytest.mark.parametrize("kind", variants.VARIANTS)
def test_every_processor_of_a_kind_has_one(kind: str) -> None:
    last = variants.VARIANTS[kind][-1]
    assert last.capabilities is None and last.flags == ()


def test_the_build_finds_all_of_it_without_the_package() -> None:
    """As the build does, where there is no torch."""
    path = resources.files("torchcaps.ops") / "backends" / "variants.py"
    alone = runpy.run_path(str(path))
    ops = Path(str(resources.files("torchcaps.ops")))
    made = alone["commands"](["c++"], "x86_64", False, ops, Path("out"))
    assert len(made) == len(variants.FOLDERS) * len(variants.VARIANTS["x86_64"])
    assert {library.name for library in made} == {
        library.name for library in variants.commands(["c++"], "x86_64", False, ops, Path())
    }
