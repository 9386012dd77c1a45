"""Labelled images, the bundled digits, and folders of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import Dataset, Images, load


def images(n: int, labels: list[int]) -> Images:
    return Images(torch.zeros(n, 1, 4, 4, dtype=torch.uint8), torch.tensor(labels))


def test_digits_are_laid_out_as_mnist() -> None:
    data = load("digits")
    assert (len(data.train), len(data.val), len(data.test)) == (1257, 180, 360)
    assert data.image_shape == (1, 28, 28) and data.classes == tuple("0123456789")
    frame = data.train.images.clone()
    frame[:, :, 4:24, 4:24] = 0
    assert not frame.any() and data.train.images.max() == 255
    every = torch.cat([part.images for part in (data.train, data.val, data.test)]).flatten(1)
    assert len(every.unique(dim=0)) == 1797  # no image stands in two splits
    assert load("digits", image_size=(32, 20)).image_shape == (1, 32, 20)


def test_labels_out_of_range() -> None:
    good = images(2, [0, 1])
    with pytest.raises(ValueError, match=r"toy: val labels must be 0 … 1, got 0 … 2"):
        Dataset("toy", ("a", "b"), good, images(2, [0, 2]), good)


def test_shapes_and_dtypes() -> None:
    with pytest.raises(ValueError, match=r"images must be \[N, C, H, W\] uint8, got \[2, 4, 4\]"):
        Images(torch.zeros(2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"labels must be \[N=2\] int64, got \[3\]"):
        images(2, [0, 1, 0])


def write(path: Path, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), colour, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(10):
        write(tmp_path / "cat" / f"{k}.png", (20 + k, 30), (k, k, k))
        write(tmp_path / "dog" / f"{k}.png", (15, 10 + k), (200 + k, 200 + k, 200 + k))
    (tmp_path / "cat" / "notes.txt").write_text("not an image, not read")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_folder(folder: Path) -> None:
    data = load("folder", folder, image_size=(16, 12))
    assert data.classes == ("cat", "dog") and data.image_shape == (1, 16, 12)
    assert [len(part) for part in (data.train, data.val, data.test)] == [14, 2, 4]
    for part in (data.train, data.val, data.test):
        dark = part.images.flatten(1).float().mean(dim=1) < 100
        assert torch.equal(dark, part.labels == 0)
    shades = [set(part.images[:, 0, 0, 0].tolist()) for part in (data.train, data.val, data.test)]
    assert sum(map(len, shades)) == 20 and len(set.union(*shades)) == 20


def test_folder_with_colour(folder: Path) -> None:
    write(folder / "dog" / "red.png", (5, 5), (255, 0, 0))
    assert load("folder", folder).image_shape == (3, 28, 28)


def test_folder_with_an_unreadable_file(folder: Path) -> None:
    (folder / "dog" / "broken.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(ValueError, match=r"broken.png cannot be read as an image"):
        load("folder", folder)


def test_folder_with_a_cut_image(folder: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / "dog" / "noise.png")
    whole = (folder / "dog" / "noise.png").read_bytes()
    (folder / "dog" / "noise.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"noise.png cannot be read as an image"):
        load("folder", folder)


def test_folder_with_one_class(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "a.png", (5, 5), (1, 1, 1))
    with pytest.raises(ValueError, match=r"must have at least two sub-folders, one a class; got 1: \['cat'\]"):
        load("folder", tmp_path)


def test_folder_with_too_few_images(folder: Path) -> None:
    write(folder / "emu" / "a.png", (5, 5), (1, 1, 1))
    with pytest.raises(ValueError, match=r"emu must have at least three images .* got 1"):
        load("folder", folder)


def test_no_folder(tmp_path: Path) -> None:
    for root in (None, tmp_path / "absent"):
        with pytest.raises(ValueError, match=r"data.root must be a folder with one sub-folder a class"):
            load("folder", root)
