"""Photographs of 224×224: a recipe for them, and no more memory than their pixels take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from torchcaps.cli import main

#: Loads a folder, and prints by how much the process's peak grew beyond what was imported, in bytes of pixels.
_PEAK = """
import resource, sys
import lightning, torch
from torchcaps.data import load
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
load("folder", sys.argv[1], (16, 16))
before = peak()
data = load("folder", sys.argv[1], (224, 224))
print((peak() - before) / sum(part.images.numel() for part in data.splits.values()))
"""


def photographs(folder: Path, n: int) -> Path:
    """Two classes of small files of plain colours, all of them different."""
    for k in range(n):
        (folder / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        colour = (k % 251, 40 * (k // 251), 200 * (k % 2))
        Image.new("RGB", (240, 230), colour).save(folder / "ab"[k % 2] / f"{k}.png")
    return folder


def test_the_recipe_trains_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = photographs(tmp_path / "photos", 40)
    out = tmp_path / "run"
    assert main(["train", "photos", "--data.root", str(root), "--out", str(out), "--smoke", "--threads", "1"]) == 0
    assert "capsnet_backbone with 1," in capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert result["config"]["data"]["image_size"] == [224, 224] and result["config"]["data"]["fill"] == "reflection"
    assert main(["predict", str(out), str(root / "a" / "0.png")]) == 0
    assert "a (" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
def test_loading_takes_no_second_copy_of_the_pixels(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", 500)  # 75 MB of pixels
    done = subprocess.run([sys.executable, "-c", _PEAK, str(root)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5
