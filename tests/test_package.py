"""The wheel: it builds, is complete, and imports; and it has one version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torchcaps import __version__
from torchcaps.ops.backends.variants import FOLDERS

ROOT = Path(__file__).resolve().parents[1]


def test_wheel_builds_and_imports(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "TORCHCAPS_WHEEL"}
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env=environment)
    (wheel,) = tmp_path.glob("torchcaps-*-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    needed = [path for pattern in ("*.py", "*.cpp", "*.h") for path in source.rglob(pattern)]
    assert {str(path.relative_to(source)) for path in needed} < names
    assert "torchcaps/py.typed" in names and any(name.endswith("licenses/LICENSE") for name in names)
    code = "import torchcaps; assert '.whl' in torchcaps.__file__; print(torchcaps.squash.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "torchcaps.ops.squash", done.stderr


@pytest.mark.parametrize(
    ("platform", "library"),
    [("win_amd64", r"em-avx512-[0-9a-f]{16}\.dll"), ("macosx_11_0_arm64", r"em-neon-[0-9a-f]{16}\.so")],
)
@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for the compiler")
def test_wheel_of_a_platform(tmp_path: Path, platform: str, library: str) -> None:
    """What the compiler makes is in it, under names that are looked for; and only there."""
    compiler = tmp_path / "cxx"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho "made $1" > "$2"\n')
    compiler.chmod(0o755)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    environment = os.environ | {"TORCHCAPS_WHEEL": platform, "CXX": str(compiler)}
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env=environment)
    (wheel,) = tmp_path.glob(f"torchcaps-{__version__}-py3-none-{platform}.whl")
    names = [Path(name).name for name in zipfile.ZipFile(wheel).namelist() if "/lib/" in name]
    assert len(names) == len(FOLDERS) * (3 if platform == "win_amd64" else 1)
    assert any(re.fullmatch(library, name) for name in names)


def test_a_wheel_is_of_a_known_processor(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    environment = os.environ | {"TORCHCAPS_WHEEL": "linux_riscv64"}
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode and not list(tmp_path.iterdir())
    assert "TORCHCAPS_WHEEL must be 1 or a platform that ends in x86_64, amd64, aarch64, arm64" in done.stderr


def test_one_version() -> None:
    """The wheel takes it from the package; a citation and the changelog say the same."""
    citation, changelog = (ROOT.joinpath(name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md"))
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [__version__]
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == __version__
