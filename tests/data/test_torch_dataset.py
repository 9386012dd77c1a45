"""Data sets of torch's and Hugging Face's form, with samples as people have them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from tests.training.test_multi_label import TINY
from torchcaps.data import Pairs, from_torch
from torchcaps.training.train import train

PIXELS = torch.randint(0, 256, (40, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 4


class Own:
    """A data set of the simplest kind."""

    def __init__(self, sample: Callable[[int], Any], n: int = 40) -> None:
        self.sample, self.n = sample, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, k: int) -> Any:
        return self.sample(k)


def picture(k: int) -> Image.Image:
    return Image.fromarray(PIXELS[k].permute(1, 2, 0).numpy())


def of_pillow(k: int) -> Any:
    return picture(k), int(LABELS[k])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "sample",
    [
        of_pillow,
        lambda k: (PIXELS[k], LABELS[k]),
        lambda k: (PIXELS[k].permute(1, 2, 0).numpy(), np.int64(LABELS[k])),
        lambda k: {"image": picture(k), "label": int(LABELS[k])},
        lambda k: [picture(k).convert("RGBA"), np.uint8(LABELS[k])],
    ],
)
def test_samples_of_any_form_are_the_same_images(sample: Callable[[int], Any], workers: int) -> None:
    data = from_torch(Own(sample), Own(sample, 10), workers=workers, name="mine")
    assert torch.equal(data.test.images, PIXELS[:10]) and torch.equal(data.test.labels, LABELS[:10])
    assert [len(part) for part in data.splits.values()] == [36, 4, 10] and data.classes == ("0", "1", "2", "3")
    both = torch.cat((data.train.images, data.val.images))
    assert len(both.flatten(1).unique(dim=0)) == 40 and data.name == "mine"
    given = from_torch(Own(sample), Own(sample, 10), Own(sample, 5), workers=workers)
    assert torch.equal(given.train.images, PIXELS) and torch.equal(given.val.images, PIXELS[:5])


def test_a_data_set_of_tensors_keeps_floats_and_several_labels(tmp_path: Path) -> None:
    images = torch.rand(64, 2, 16, 16)
    source = TensorDataset(images, (torch.rand(64, 3) < 0.5).int())
    data = from_torch(source, source)
    assert torch.equal(data.test.images, images) and data.several_labels and data.classes == ("0", "1", "2")
    result = train(TINY, tmp_path, dataset=data, progress="none")
    assert result["config"]["data"]["multi_label"] is True and result["handed_over"] == ["dataset"]
    with pytest.raises(ValueError, match="source must have one label an image to make pairs of, got several"):
        Pairs(data.train)


def test_grey_of_16_bits_stays_deep() -> None:
    deep = np.arange(30, dtype=np.uint16).reshape(5, 6) * 2000
    data = from_torch(Own(lambda k: (Image.fromarray(deep), k % 2)), Own(lambda k: (Image.fromarray(deep), k % 2)))
    assert data.test.images.dtype == torch.uint16 and np.array_equal(data.test.images[0, 0].numpy(), deep)


def test_names_of_classes() -> None:
    own = Own(of_pillow)
    own.classes = ["a", "b", "c", "d"]  # type: ignore[attr-defined]
    assert from_torch(own, own).classes == ("a", "b", "c", "d")
    own.features = {"label": SimpleNamespace(names=["k", "l", "m", "n"])}  # type: ignore[attr-defined]
    assert from_torch(own, own).classes == ("k", "l", "m", "n")
    assert from_torch(own, own, classes=("w", "x", "y", "z")).classes == ("w", "x", "y", "z")


def test_images_of_several_sizes_and_colours() -> None:
    def sample(k: int) -> Any:
        image = picture(k).resize((5 + k % 2, 6))
        return (image.convert("L") if k == 7 else image), 0 if k % 3 else 1

    with pytest.raises(ValueError, match=r"train\[1\] must have a sample's image of \[3, 6, 5\] torch.uint8 as"):
        from_torch(Own(sample), Own(sample))
    data = from_torch(Own(sample), Own(sample), Own(sample), image_size=(8, 8))
    assert data.image_shape == (3, 8, 8)
    grey = data.train.images[7]
    assert torch.equal(grey[0], grey[1]) and not torch.equal(data.train.images[6, 0], data.train.images[6, 1])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (picture, "train[0] must be (image, label), or a mapping with both, got a Image"),
        (lambda k: {"image": picture(k)}, "train[0] must have one of image, img, pixel_values, x and one of label"),
        (lambda k: (picture(k), "cat"), "train[0] must have a class's number as its label, got 'cat'"),
        (lambda k: (picture(k), None), "train[0] must have a class's number as its label, got None"),
        (lambda k: ("a.png", 1), "train[0] must have an image of [H, W] or [H, W, C], got a str"),
        (lambda k: (PIXELS, 1), "train[0] must have an image of [C, H, W] or [H, W], got [40, 3, 6, 5]"),
        (
            lambda k: (PIXELS[k], 1 if k else 1.5),
            "train[1] must have a sample's label of [] torch.float32",
        ),
        (lambda k: (PIXELS[k].short(), 1), "images must be [N, C, H, W] uint8, uint16 or float32"),
    ],
)
def test_samples_of_another_form(sample: Callable[[int], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_torch(Own(sample), Own(of_pillow))


def test_data_sets_of_another_kind() -> None:
    with pytest.raises(ValueError, match="train must be a data set with a length and samples by number, got a gen"):
        from_torch((k for k in range(3)), Own(of_pillow))
    with pytest.raises(ValueError, match="test must have samples, got none"):
        from_torch(Own(of_pillow), Own(of_pillow, 0))
    with pytest.raises(ValueError, match="workers must be an integer of at least 0, got -1"):
        from_torch(Own(of_pillow), Own(of_pillow), workers=-1)


def test_what_torchs_default_device_is_does_not_matter() -> None:
    torch.set_default_device("meta")
    try:
        data = from_torch(Own(of_pillow), Own(of_pillow), image_size=(4, 4))
    finally:
        torch.set_default_device(None)
    assert all(part.images.device.type == part.labels.device.type == "cpu" for part in data.splits.values())
    assert torch.equal(data.test.labels, LABELS)
