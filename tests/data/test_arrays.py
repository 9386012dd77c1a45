"""Images of one's own as arrays: of any depth and number of channels, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.test_cifar10 import Evil
from torchcaps.cli import main
from torchcaps.data import load
from torchcaps.data.pixels import put_in_order

RNG = np.random.default_rng(0)


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (np.uint8, torch.uint8),
        (np.uint16, torch.uint16),
        (np.int16, torch.float32),
        (np.float64, torch.float32),
        (np.float16, torch.float32),
    ],
)
@pytest.mark.parametrize("channels", [0, 1, 7])
@pytest.mark.parametrize("first", [True, False])
def test_images_of_any_depth(tmp_path: Path, dtype: type, wanted: torch.dtype, channels: int, first: bool) -> None:
    shape = (60, 5, 4) if not channels else (60, channels, 5, 4) if first else (60, 5, 4, channels)
    images = RNG.integers(0 if np.issubdtype(dtype, np.unsignedinteger) else -100, 200, shape).astype(dtype)
    path = save(tmp_path, images=images, labels=(np.arange(60) % 3)[:, None])
    data = load("arrays", path, channels_first=first)
    assert data.image_shape == (channels or 1, 5, 4) and data.train.images.dtype == wanted
    assert data.name == "mine" and data.classes == ("0", "1", "2") and sum(map(len, data.splits.values())) == 60
    right = images[:, None] if not channels else images if first else images.transpose(0, 3, 1, 2)
    by_content = {image.astype(np.float64).tobytes(): k % 3 for k, image in enumerate(right)}
    for part in data.splits.values():
        keys = [image.double().numpy().tobytes() for image in part.images]
        assert [by_content[key] for key in keys] == part.labels.tolist()


def test_splits_and_names_of_its_own(tmp_path: Path) -> None:
    sizes = {"train": 40, "val": 6, "test": 8}
    arrays = {f"{split}_images": RNG.integers(0, 255, (n, 4, 4), np.uint8) for split, n in sizes.items()}
    arrays |= {f"{split}_labels": RNG.integers(0, 2, (n, 3)) for split, n in sizes.items()}
    data = load("arrays", save(tmp_path, **arrays, classes=np.array(["a", "b", "c"])))
    assert {split: len(part) for split, part in data.splits.items()} == sizes
    assert data.classes == ("a", "b", "c") and data.several_labels and data.note == "split by its arrays"
    assert np.array_equal(data.test.images[:, 0].numpy(), arrays["test_images"])
    without = {name: array for name, array in arrays.items() if not name.startswith("val")}
    data = load("arrays", save(tmp_path, **without))
    assert [len(part) for part in data.splits.values()] == [36, 4, 8]


def test_groups_stay_together(tmp_path: Path) -> None:
    images, groups = RNG.integers(0, 255, (90, 4, 4), np.uint8), np.arange(90) // 3
    data = load("arrays", save(tmp_path, images=images, labels=groups % 2, groups=groups))
    found = [set(part.factors["group"].tolist()) for part in data.splits.values()]
    assert sum(map(len, found)) == len(set.union(*found)) == 30


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3)}, "it must hold images and labels, got x"),
        ({"images": np.zeros((9, 4)), "labels": np.zeros(9, int)}, r"images must be numbers of \[N, H, W\] or"),
        ({"images": np.zeros((9, 4, 4), complex), "labels": np.zeros(9, int)}, "got complex128"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.array(list("abcabcabc"))}, "labels must be numbers of"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.zeros(8, int)}, r"labels must be \[N=9\] int64, or"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.zeros(9)}, r"labels must be \[N=9\] int64, or"),
        ({"images": np.zeros((9, 4, 4)), "labels": np.zeros(9, int)}, "of 9 none came to the val split"),
        ({"images": np.array([Evil()], dtype=object)}, "without objects: Object arrays cannot be loaded"),
    ],
)
def test_files_of_something_else(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"mine.npz.*{message}"):
        load("arrays", save(tmp_path, **arrays))


def test_no_such_file(tmp_path: Path) -> None:
    for root in (None, tmp_path):
        with pytest.raises(ValueError, match=r"data.root must be a .npz file, got "):
            load("arrays", root)
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no arrays")
    for name in ("one.npy", "text.npz"):
        with pytest.raises(ValueError, match=rf"{name} must be a .npz file of arrays without objects"):
            load("arrays", tmp_path / name)


def test_from_the_command_line(tmp_path: Path) -> None:
    images = RNG.normal(0, 500, (80, 20, 20, 5)).astype(np.float32)  # such as a scanner's
    path = save(tmp_path, images=images, labels=np.arange(80) % 2)
    arguments = ["train", "digits", "--data.name", "arrays", "--data.root", str(path), "--smoke"]
    arguments += ["--model.options.standardize", "true", "--reconstruction", "0", "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["config"]["data"]["name"] == "arrays"
    assert main(["evaluate", str(tmp_path / "run")]) == 0


def test_images_are_put_in_order_in_place() -> None:
    for n in (0, 1, 2, 17):
        images, order = torch.rand(n, 2, 3), torch.randperm(n)
        wanted = images[order]
        at = images.data_ptr()
        put_in_order(images, order.tolist())
        assert torch.equal(images, wanted) and images.data_ptr() == at
