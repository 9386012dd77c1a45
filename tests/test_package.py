"""The wheel: it builds, is complete, and imports."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_wheel_builds_and_imports(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("torchcaps-*.whl")
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
