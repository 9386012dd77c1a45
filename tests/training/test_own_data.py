"""Images of more than 8 bits, of odd sizes, and files that cannot be read, through training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.test_multi_label import TINY
from torchcaps.cli import main
from torchcaps.data import Dataset, Images, to_float
from torchcaps.models import build
from torchcaps.training import Data, Model
from torchcaps.training.batches import Batches
from torchcaps.training.build import make_model, warn_of_size
from torchcaps.training.config import is_smoke, smoke
from torchcaps.training.predict import predict
from torchcaps.training.recipes import recipe
from torchcaps.training.train import train


def two_classes(n: int, seed: int, dtype: torch.dtype, channels: int = 1) -> Images:
    """Of which one is a little brighter: by 200 of 65535, which 8 bits cannot tell."""
    labels = torch.arange(n) % 2
    noise = torch.rand(n, channels, 14, 14, generator=torch.Generator().manual_seed(seed))
    values = 30_000 + 200 * labels.view(-1, 1, 1, 1) + 20 * noise
    if dtype == torch.uint16:
        return Images(values.int().to(torch.uint16), labels)
    return Images(values, labels)


@pytest.mark.parametrize(("dtype", "channels"), [(torch.uint16, 1), (torch.float32, 5)])
def test_more_than_8_bits_are_kept(tmp_path: Path, dtype: torch.dtype, channels: int) -> None:
    parts = [two_classes(n, seed, dtype, channels) for seed, n in enumerate((128, 32, 32))]
    kept = to_float(parts[0].images)
    assert len(kept[:2].unique()) > 20  # values that 8 bits would make one or two of
    batch = next(iter(Batches(Data("toy", shift=0), parts[1], 8, seed=0, train=False)))
    assert torch.equal(batch.images, to_float(parts[1].images[:8]))
    config = replace(TINY, data=Data("toy", shift=0), epochs=1, reconstruction=0)
    result = train(config, tmp_path, dataset=Dataset("toy", ("dark", "light"), *parts), progress="none")
    assert np.isfinite(result["test_loss"]) and result["images"] == {"train": 128, "val": 32, "test": 32}


def test_images_that_are_not_finite() -> None:
    good = Images(torch.zeros(4, 1, 5, 5), torch.tensor([0, 1, 0, 1]))
    bad = Images(torch.full((4, 1, 5, 5), torch.nan), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="toy: val images must be finite, got NaN or infinity"):
        Dataset("toy", ("a", "b"), good, bad, good)
    small = Images(torch.zeros(4, 1, 5, 5, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="toy: test images must be torch.float32 as in train, got torch.uint8"):
        Dataset("toy", ("a", "b"), good, good, small)


def test_a_large_network_is_named_before_it_is_trained(caplog: pytest.LogCaptureFixture) -> None:
    large, small = (
        Dataset("toy", ("a", "b"), *[Images(torch.zeros(2, 3, size, size, dtype=torch.uint8), torch.arange(2))] * 3)
        for size in (96, 32)
    )
    config = replace(TINY, model=Model("capsnet_small", {"decoder": [16, 2048]}))
    warn_of_size(config, small, make_model(config, small))
    assert not caplog.text
    warn_of_size(config, large, make_model(config, large))
    n = sum(p.numel() for p in build("capsnet_small", (3, 96, 96), 2, decoder=[16, 2048]).parameters())
    said = caplog.records[0].getMessage()
    assert f"capsnet_small has {n / 1e6:.0f} million parameters for images of 96×96" in said and n > 50e6
    assert "million in decoder" in said and "data.image_size" in said and said.count(". ") == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(120):
        (tmp_path / "x" / "ab"[k % 2]).mkdir(exist_ok=True, parents=True)
        pixels = np.full((12, 12), 2000 * (k % 2) + 10 * k, np.uint16)
        Image.fromarray(pixels).save(tmp_path / "x" / "ab"[k % 2] / f"{k}.png")
    return tmp_path / "x"


def run(folder: Path, out: str, *more: str) -> int:
    arguments = [
        "train",
        "digits",
        "--data.name",
        "folder",
        "--data.root",
        str(folder),
        "--out",
        f"{folder.parent / out}",
    ]
    return main([*arguments, "--data.image_size", "[20, 20]", "--epochs", "1", "--smoke", *more])


def test_bad_files_are_passed_over_by_a_flag(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one.png", "two.png"):
        (folder / "a" / name).write_bytes(b"")
    (folder / "a" / "scan.dcm").write_bytes(b"")
    assert run(folder, "out") == 2
    assert "got 1 others, such as scan.dcm" in capsys.readouterr().err
    (folder / "a" / "scan.dcm").unlink()
    for path in sorted((folder / "a").iterdir())[8:-2]:  # so that a smoke test reads both
        path.unlink()
    assert run(folder, "out") == 2
    said = capsys.readouterr().err
    assert "one.png" in said and "two.png" in said and "data.options.skip_bad=true passes over them" in said
    assert run(folder, "out", "--skip-bad") == 0
    result = json.loads((folder.parent / "out" / "result.json").read_text())
    assert sum(counts["a"] for counts in result["images_per_class"].values()) == 8
    assert "passed over 2 files" in caplog.text and "one.png cannot be read as an image: it is empty" in caplog.text
    assert "; 2 files that cannot be read are left out" in result["data"]


def test_a_smoke_test_reads_what_it_shows(folder: Path) -> None:
    assert run(folder, "out") == 0
    result = json.loads((folder.parent / "out" / "result.json").read_text())
    assert sum(result["images"].values()) <= 24 and result["config"]["data"]["options"] == {"n_each": 12}
    config = smoke(replace(recipe("digits"), data=Data("folder", options={"groups": "^p"})))
    assert is_smoke(config) and config.data.options == {"groups": "^p", "n_each": 12}
    assert smoke(recipe("digits")).data.options == {}


def test_files_are_predicted_as_those_of_the_folder_were_read(folder: Path) -> None:
    assert run(folder, "out", "--data.options.max_value", "4095") == 0
    Image.fromarray(np.full((12, 12), 5000, np.uint16)).save(folder / "bright.png")
    with pytest.raises(ValueError, match="must hold 0 … 4095, as data.options.max_value says; got 5000"):
        predict(folder.parent / "out", [folder / "bright.png"])
    Image.fromarray(np.full((12, 12), 4000, np.uint16)).save(folder / "bright.png")
    Image.fromarray(np.full((12, 12), round(4000 * 255 / 4095), np.uint8)).save(folder / "same.png")
    named = list(predict(folder.parent / "out", [folder / "bright.png", folder / "same.png"]).values())
    assert named[0] == named[1]
