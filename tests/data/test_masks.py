"""Images with masks: those of bundled digits, and those of a folder, whose faults are named."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import Dataset, Images, load
from torchcaps.data.mask_file import as_bits, as_numbers, colour_of, nearest, read_mask, shown_size, write_mask


def images_of(n: int, masks: torch.Tensor | None) -> Images:
    return Images(torch.zeros(n, 1, 4, 4, dtype=torch.uint8), torch.zeros(n, dtype=torch.int64), masks=masks)


def test_masks_go_where_images_go() -> None:
    masks = torch.rand(5, 2, 4, 4) > 0.5
    images = images_of(5, masks)
    assert "masks" in repr(images) and "masks" not in repr(images_of(5, None))
    taken = images.take(torch.tensor([3, 1])).to("cpu")
    assert taken.masks is not None and torch.equal(taken.masks, masks[[3, 1]])
    assert torch.equal(images.shown(), masks.any(dim=3).any(dim=2))


@pytest.mark.parametrize(
    ("masks", "says"),
    [
        (torch.zeros(5, 2, 4, 3, dtype=torch.bool), r"masks must be \[N=5, J, H=4, W=4\] bool, got \[5, 2, 4, 3\]"),
        (torch.zeros(4, 2, 4, 4, dtype=torch.bool), r"got \[4, 2, 4, 4\]"),
        (torch.zeros(5, 2, 4, 4), "got .* of torch.float32"),
        (torch.zeros(5, 4, 4, dtype=torch.bool), r"got \[5, 4, 4\]"),
        ([1], "masks must be a torch.Tensor, got a list"),
    ],
)
def test_other_masks_are_refused(masks: torch.Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        images_of(5, masks)


def test_splits_have_masks_or_none() -> None:
    some, none = images_of(3, torch.zeros(3, 2, 4, 4, dtype=torch.bool)), images_of(3, None)
    with pytest.raises(ValueError, match="toy: val must have masks as train, got no masks"):
        Dataset("toy", ("a", "b"), some, none, some)
    with pytest.raises(ValueError, match="toy: test must have no masks as train, got masks"):
        Dataset("toy", ("a", "b"), none, none, some)
    with pytest.raises(ValueError, match=r"train masks must be \[N, 3, H, W\], one for each class, got \[3, 2, 4, 4\]"):
        Dataset("toy", ("a", "b", "c"), some, some, some)


def test_digits_have_masks() -> None:
    data = load("digit-masks", n_images=30, n_classes=4)
    assert data.classes == ("0", "1", "2", "3") and data.image_shape == (1, 32, 32)
    assert [len(part) for part in data.splits.values()] == [30, 200, 500]
    train = data.train
    assert train.masks is not None
    assert torch.equal(train.images[:, 0] > 76, train.masks.any(dim=1))  # ink is where a mask is
    both = data.test.shown().sum(dim=1)
    assert set(both.tolist()) == {1, 2} and torch.equal(data.test.labels, data.test.shown())
    again = load("digit-masks", n_images=30, n_classes=4)
    assert torch.equal(again.train.images, train.images)
    small = load("digit-masks", image_size=(16, 24), n_images=2, n_classes=1)
    assert small.train.masks is not None and small.train.masks.shape == (2, 1, 16, 24)
    with pytest.raises(ValueError, match="data.options.n_classes must be below 11, got 11"):
        load("digit-masks", n_classes=11)


def save(path: Path, pixels: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def make_folder(root: Path, n: int = 12, *, on: int = 255, size: tuple[int, int] = (20, 30)) -> Path:
    """A bright square on noise for each image, where its mask is."""
    rng = np.random.default_rng(0)
    for k in range(n):
        image, mask = rng.integers(0, 90, size, np.uint8), np.zeros(size, np.uint8)
        place = slice(k % 8, k % 8 + 8), slice(k, k + 10)
        image[place], mask[place] = 220, on
        save(root / "images" / f"{k:02}.png", image)
        save(root / "masks" / f"{k:02}.png", mask)
    return root


def test_a_folder_of_images_and_masks(tmp_path: Path) -> None:
    data = load("mask-folder", make_folder(tmp_path / "scans"), image_size=(20, 30))
    assert data.name == "scans" and data.classes == ("foreground",) and data.note == "split by content"
    sizes = [len(part) for part in data.splits.values()]
    assert sum(sizes) == 12 and all(sizes)
    for part in data.splits.values():
        assert part.masks is not None
        assert torch.equal(part.images == 220, part.masks)  # each mask came with its image
    assert load("mask-folder", tmp_path / "scans").image_shape == (1, 64, 64)
    ones = load("mask-folder", make_folder(tmp_path / "ones", on=1), image_size=(20, 30))
    assert ones.train.masks is not None and torch.equal(ones.train.masks, data.train.masks)


def test_several_classes_groups_and_splits(tmp_path: Path) -> None:
    root = tmp_path / "cells"
    rng = np.random.default_rng(1)
    rows = ["file,split"]
    for k in range(12):
        mask = np.zeros((8, 8), np.uint8)
        mask[:4], mask[4:6] = 1, 2
        save(root / "images" / f"p{k // 2}" / f"{k}.png", rng.integers(0, 255, (8, 8, 3), np.uint8))
        save(root / "masks" / f"p{k // 2}" / f"{k}.png", mask)
        rows.append(f"{k}.png,{('train', 'val', 'test')[k // 2 % 3]}")
    (root / "splits.csv").write_text("\n".join(rows))
    data = load("mask-folder", root, image_size=(8, 8), classes=["nucleus", "membrane"], groups="^(p[0-9]+)/")
    assert data.image_shape == (3, 8, 8) and data.classes == ("nucleus", "membrane")
    groups = [set(part.factors["group"].tolist()) for part in data.splits.values()]
    assert sum(map(len, groups)) == 6 and len(set.union(*groups)) == 6
    assert data.train.masks is not None
    assert (
        data.train.masks[:, 0, :4].all() and not data.train.masks[:, 0, 4:].any() and data.train.masks[:, 1, 4:6].all()
    )
    told = load("mask-folder", root, classes=["nucleus", "membrane"], split="splits.csv")
    assert [len(part) for part in told.splits.values()] == [4, 4, 4] and told.note == "split by splits.csv"
    with pytest.raises(ValueError, match=r"8 files must be mended|12 files must be mended") as found:
        load("mask-folder", root)
    assert "must hold 0 and 1, or 0 and 255 (0 is background; data.options.classes names the others), got 2" in str(
        found.value
    )


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    (root / "masks" / "03.png").rename(root / "masks" / "3.png")
    with pytest.raises(ValueError, match="2 files must be mended") as found:
        load("mask-folder", root)
    assert f"{root / 'images' / '03.png'} has no mask {root / 'masks' / '03.png'}" in str(found.value)
    assert f"{root / 'masks' / '3.png'} has no image {root / 'images' / '3'}.*" in str(found.value)
    (root / "masks" / "3.png").rename(root / "masks" / "03.png")
    save(root / "masks" / "05.png", np.zeros((20, 31), np.uint8))
    with pytest.raises(ValueError, match=r"05.png must be 20×30 as 05.png, got 20×31"):
        load("mask-folder", root)
    save(root / "masks" / "05.png", np.full((20, 30), 128, np.uint8))
    with pytest.raises(ValueError, match=r"05.png must hold 0 and 1, or 0 and 255 .*, got 128 \(row 0, column 0\)"):
        load("mask-folder", root)
    (root / "masks" / "05.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"05.png cannot be read as an image: its format is not known"):
        load("mask-folder", root)
    save(root / "masks" / "05.png", np.zeros((20, 30), np.uint8))
    save(root / "images" / "05.bmp", np.zeros((20, 30), np.uint8))
    with pytest.raises(ValueError, match=r"images must have one file of a name, got 05.bmp and 05.png"):
        load("mask-folder", root)
    (root / "images" / "05.bmp").unlink()
    for classes in ("cell", [], ["a", "a"]):
        with pytest.raises(ValueError, match="data.options.classes must list 1 to 255 different names, got"):
            load("mask-folder", root, classes=classes)
    with pytest.raises(ValueError, match="must show b in a mask to train on, got none that does"):
        load("mask-folder", make_folder(tmp_path / "two", on=1), classes=["a", "b"])
    with pytest.raises(ValueError, match="data.root must be a folder with the sub-folders images and masks, got"):
        load("mask-folder", root / "images")
    with pytest.raises(ValueError, match=r"must have more images: of 2 none came to the val split"):
        load("mask-folder", make_folder(tmp_path / "few", n=2))


def test_a_split_without_a_class_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = make_folder(tmp_path, on=1)
    rows = [f"{k:02}.png,{('train', 'train', 'val', 'test')[k % 4]}" for k in range(12)]
    (root / "splits.csv").write_text("\n".join(["file,split", *rows]))
    save(root / "masks" / "00.png", np.full((20, 30), 2, np.uint8))
    with caplog.at_level(logging.WARNING, "torchcaps"):
        load("mask-folder", root, classes=["a", "b"], split="splits.csv")
    assert "no mask of the val split has b" in caplog.text and "no mask of the test split has b" in caplog.text


def test_masks_as_tools_write_them(tmp_path: Path) -> None:
    wanted = np.array([[0, 1], [2, 0]], np.uint8)
    path = tmp_path / "m.png"
    write_mask(path, torch.from_numpy(wanted))
    assert np.array_equal(read_mask(path, 2), wanted)  # of a palette the numbers count
    with Image.open(path) as image:
        assert image.mode == "P" and image.convert("RGB").getpixel((1, 0)) == colour_of(0)
    save(path, np.stack([wanted] * 3, axis=2))
    assert np.array_equal(read_mask(path, 2), wanted)
    save(path, wanted.astype(np.uint16))
    assert np.array_equal(read_mask(path, 2), wanted)
    Image.fromarray(wanted == 1).save(path)  # one bit
    assert np.array_equal(read_mask(path, 1), wanted == 1)
    save(path, np.stack([wanted, wanted, 0 * wanted], axis=2))
    with pytest.raises(ValueError, match=r"m.png must be grey, or have a palette, .* got RGB colours"):
        read_mask(path, 2)
    save(path, np.stack([wanted] * 4, axis=2))
    with pytest.raises(ValueError, match="got RGBA colours"):  # its last channel makes most of it invisible
        read_mask(path, 2)


def test_masks_and_sizes_are_those_of_the_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    save(tmp_path / "a.jpg", np.zeros((20, 30), np.uint8), exif=exif)
    assert shown_size(tmp_path / "a.jpg") == (30, 20)
    save(tmp_path / "b.png", np.zeros((20, 30), np.uint8))
    assert shown_size(tmp_path / "b.png") == (20, 30)


def test_numbers_and_bits_by_hand() -> None:
    numbers = torch.tensor([[0, 1], [2, 0]])
    bits = as_bits(numbers, 2)
    assert bits.tolist() == [[[False, True], [False, False]], [[False, False], [True, False]]]
    assert torch.equal(as_numbers(bits.float()), numbers)
    assert as_numbers(torch.tensor([[[0.5, 0.51, 0.7]], [[0.4, 0.6, 0.6]]])).tolist() == [[0, 2, 1]]
    large = nearest(bits[None], (4, 2))
    assert large.dtype == torch.bool and torch.equal(large[0], bits.repeat_interleave(2, dim=1))
