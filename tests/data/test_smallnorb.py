"""small NORB: tiny files in its forms made here, and the real ones at 48×48."""

from __future__ import annotations

import gzip
import hashlib
import struct
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchcaps.data import Images, load, smallnorb
from torchcaps.data.binary_matrix import read_matrix
from torchcaps.data.images import resized
from torchcaps.data.smallnorb import SPLITS, TOYS, divide, halved, in_degrees, plan

#: The tiny files' viewpoints: a familiar and two novel azimuths, a familiar and a novel elevation, one lighting.
ELEVATIONS, AZIMUTHS = (0, 8), (34, 6, 28)
N = 5 * 5 * 6


def rows(half: str) -> np.ndarray:
    """(instance, elevation, azimuth, lighting, category) of each of the N images, ``[N, 5]``."""
    return np.array(list(product(TOYS[half], ELEVATIONS, AZIMUTHS, (3,), range(5))), np.int32)


def pixels() -> np.ndarray:
    """``[N, 2, 96, 96]``: the left image's brightness is its row's number, the right one's 100 more, a corner white."""
    brightness = np.arange(N, dtype=np.uint8)[:, None] + np.array([0, 100], np.uint8)
    images = np.tile(brightness[:, :, None, None], (1, 1, 96, 96))
    images[:, :, -2:, :2] = 255  # below, on the left
    return images


def mat(array: np.ndarray) -> bytes:
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
    return struct.pack(f"<Ii{len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def official(half: str) -> dict[str, bytes]:
    return {"dat": mat(pixels()), "cat": mat(rows(half)[:, 4]), "info": mat(np.ascontiguousarray(rows(half)[:, :4]))}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the six files, gzipped or not, and makes theirs the known checksums."""
    monkeypatch.setattr(smallnorb, "N_IMAGES", N)

    def write(end: str, **other: bytes) -> Path:
        for half in TOYS:
            for kind, content in (official(half) | other).items():
                raw = gzip.compress(content, compresslevel=1) if end == ".gz" else content
                (tmp_path / f"{smallnorb._STEMS[half]}-{kind}.mat{end}").write_bytes(raw)
                monkeypatch.setitem(smallnorb._GZIPPED, (half, kind), hashlib.sha256(raw).hexdigest())
                if kind != "dat":
                    monkeypatch.setitem(smallnorb._SHA256, (half, kind), hashlib.sha256(content).hexdigest())
        return tmp_path

    return write


@pytest.fixture
def npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same images in the other form, with viewpoints in the test half alone."""
    for half, (k, eye) in product(TOYS, enumerate(("left", "right"))):
        path = tmp_path / f"smallnorb_{half}_48x48_{eye}.npz"
        values = rows(half).astype(np.uint8)
        labels = {"category": values[:, 4], "instance": values[:, 0]}
        if half == "test":
            labels |= {"elevation": values[:, 1], "azimuth": values[:, 2], "lighting": values[:, 3]}
        np.savez_compressed(path, images=pixels()[:, k, ::2, ::2], **(labels if eye == "left" else {}))
        monkeypatch.setitem(smallnorb._NPZ, (half, eye), hashlib.sha256(path.read_bytes()).hexdigest())
    return tmp_path


def numbers(images: Images) -> list[int]:
    """The rows that these images are, by their brightness."""
    return images.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("end", [".gz", ""])
def test_official_files(write: Any, end: str) -> None:
    data = load("smallnorb", write(end))
    assert data.image_shape == (2, 48, 48) and data.classes == ("animal", "human", "airplane", "truck", "car")
    assert (len(data.train), len(data.val), len(data.test), data.further) == (N * 4 // 5, N // 5, N, {})
    for part, half in ((data.train, "train"), (data.val, "train"), (data.test, "test")):
        at = numbers(part)
        assert bool((part.images[:, :, 47, 0] == 255).all())  # upright
        assert torch.equal(part.images[:, 1, :47].long(), part.images[:, 0, :47].long() + 100)
        found = torch.stack([*part.factors.values(), part.labels], dim=1)
        assert tuple(part.factors) == ("instance", "elevation", "azimuth", "lighting")
        assert found.tolist() == rows(half)[at].tolist()
    assert set(data.val.factors["instance"].tolist()) == {4} and numbers(data.test) == list(range(N))
    assert set(data.train.factors["instance"].tolist()) == {6, 7, 8, 9}
    assert numbers(data.train)[:6] == [74, 34, 89, 75, 32, 129]  # for good: n_train takes them
    first = data.train.take(slice(40))  # n_train takes the first: they are of all kinds
    assert len(first.labels.unique()) == 5 and len(first.factors["instance"].unique()) == 4
    assert data.note == (
        "official files, eyes: both; official split: toys 6, 7, 8, 9 of each category train, 4 validates, "
        "0, 1, 2, 3, 5 test"
    )


def test_larger_images_are_those_of_the_files(write: Any) -> None:
    root = write("")
    whole = torch.from_numpy(pixels())[numbers(load("smallnorb", root).val)]
    assert torch.equal(load("smallnorb", root, image_size=(96, 96)).val.images, whole)
    smaller = load("smallnorb", root, image_size=(48, 24)).val.images
    assert torch.equal(smaller, resized(load("smallnorb", root).val.images, (48, 24)))


def test_both_forms_are_one_data_set(write: Any, npz: Path) -> None:
    """The folder has both: the official files are taken. Without them, the same images come from the others."""
    one = load("smallnorb", write(".gz"), split="azimuth", fold=1)
    assert one.note.startswith("official files, eyes: both; azimuth split within the test half")
    for path in npz.glob("*.mat.gz"):
        path.unlink()
    other = load("smallnorb", npz, split="azimuth", fold=1)
    assert other.note == one.note.replace("official files", "48×48 .npz files")
    for name, part in one.splits.items():
        same = other.splits[name]
        assert torch.equal(part.images, same.images) and torch.equal(part.labels, same.labels)
        assert all(torch.equal(part.factors[k], same.factors[k]) for k in smallnorb.FACTORS)
    assert tuple(load("smallnorb", npz).train.factors) == ("instance",)


def test_a_few_official_files_do_not_hide_the_others(write: Any, npz: Path) -> None:
    for path in write(".gz").glob("*-dat.mat.gz"):
        path.unlink()
    assert load("smallnorb", npz).note.startswith("48×48 .npz files")


@pytest.mark.parametrize("form", ["official", "npz"])
def test_eyes(write: Any, npz: Path, form: str) -> None:
    root = write(".gz") if form == "official" else npz
    both, left, right = (load("smallnorb", root, eyes=eyes).test.images for eyes in ("both", "left", "right"))
    assert left.shape == right.shape == (N, 1, 48, 48)
    assert torch.equal(both, torch.cat((left, right), dim=1)) and numbers(load("smallnorb", root).test)[3] == 3
    assert [load("smallnorb", root, eyes=eyes).mirrored for eyes in ("both", "left")] == [(1, 0), None]
    assert load("smallnorb", root, (32, 40), eyes="left").image_shape == (1, 32, 40)


def test_the_left_eye_needs_no_files_of_the_right(npz: Path) -> None:
    for path in npz.glob("*right*"):
        path.unlink()
    assert load("smallnorb", npz, eyes="left").image_shape == (1, 48, 48)
    with pytest.raises(ValueError, match="data.root must hold smallnorb_train_48x48_right.npz"):
        load("smallnorb", npz)


def test_halved_is_the_rounded_mean_of_four() -> None:
    block = np.array([[[[0, 1, 255, 255], [0, 0, 255, 255], [1, 1, 9, 10], [0, 0, 9, 9]]]], np.uint8)
    assert halved(block).tolist() == [[[[0, 255], [1, 9]]]]  # ¼, 255, ½, 9¼


def test_viewpoints_are_angles() -> None:
    factors = {"azimuth": torch.tensor([0, 34]), "elevation": torch.tensor([0, 8]), "lighting": torch.tensor([0, 5])}
    angles = in_degrees(factors)
    assert {name: values.tolist() for name, values in angles.items()} == {"elevation": [30, 70], "azimuth": [0, 340]}
    assert list(in_degrees({"azimuth": torch.tensor([2])})) == ["azimuth"]


def test_every_file_is_checked(write: Any) -> None:
    root = write(".gz")
    for path in sorted(root.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"?")
        with pytest.raises(ValueError, match=f"{path.name} must have the sha256 .*: it is damaged or another file"):
            load("smallnorb", root)
        path.unlink()
        with pytest.raises(ValueError, match=f"data.root must hold {path.name}, but .* is not there"):
            load("smallnorb", root)
        path.write_bytes(whole)
    load("smallnorb", root)


def test_files_that_are_not_gzipped_are_checked_as_far_as_is_known(write: Any) -> None:
    root = write("")
    for path in sorted(root.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-4])
        with pytest.raises(ValueError, match=f"{path.name} must (have a content of the sha256|hold .* bytes for)"):
            load("smallnorb", root)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"dat": mat(pixels()[:, :1])},
            r"dat.mat.gz must hold uint8 of shape \[150, 2, 96, 96\], got uint8 of \[150, 1",
        ),
        ({"cat": mat(rows("test")[:, 4].astype(np.uint8))}, r"cat.mat.gz must hold int32 of shape \[150\], got uint8"),
        ({"info": mat(rows("test"))}, r"info.mat.gz must hold int32 of shape \[150, 4\], got int32 of \[150, 5\]"),
    ],
)
def test_other_shapes_and_types(write: Any, other: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("smallnorb", write(".gz", **other))


def test_damaged_npz(npz: Path) -> None:
    for path in sorted(npz.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(ValueError, match=f"{path.name} must have the sha256 .*: it is damaged or another file"):
            load("smallnorb", npz)
        path.write_bytes(whole)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.root must hold the six files .*dat.mat.gz … or smallnorb_train_48x48_"):
        load("smallnorb", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eyes": "one"}, "eyes must be one of left, right, both; got 'one'"),
        ({"split": "lighting"}, "split must be one of official, azimuth, elevation; got 'lighting'"),
        ({"fold": 1}, "fold must be None for the official split, got 1"),
        ({"split": "azimuth"}, "fold must be 0, 1 or 2 for a split by viewpoint"),
        ({"split": "azimuth", "fold": 1.0}, "fold must be an integer of at least 0, got 1.0"),
        ({"split": "azimuth", "fold": 3}, "fold must be one of 0, 1, 2; got 3"),
        ({"val_toy": 5}, "val_toy must be one of 4, 6, 7, 8, 9, first, None; got 5"),
        ({"split": "azimuth", "fold": 2, "val_toy": 5}, "val_toy must be one of 1, 2, 3, first, None; got 5"),
        (
            {"colour": 1, "eye": "left"},
            "data.options of smallnorb must be among eyes, split, val_toy, fold; got colour",
        ),
    ],
)
def test_bad_options(npz: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("smallnorb", npz, **options)


def test_options_of_data_that_have_none() -> None:
    with pytest.raises(ValueError, match="data.options of digits must be empty; got eyes, split"):
        load("digits", eyes="left", split="azimuth")


def grid(half: str) -> Images:
    """Every toy from every viewpoint, one lighting, one category, in images of one pixel."""
    poses = torch.tensor(list(product(TOYS[half], range(9), range(0, 36, 2))))
    factors = {"instance": poses[:, 0], "elevation": poses[:, 1], "azimuth": poses[:, 2]}
    return Images(torch.zeros(len(poses), 1, 1, 1, dtype=torch.uint8), torch.zeros(len(poses)).long(), factors)


def seen(images: Images) -> set[tuple[int, ...]]:
    """(toy, degrees of elevation, degrees of azimuth)."""
    found = zip(*(images.factors[k].tolist() for k in ("instance", "elevation", "azimuth")), strict=True)
    return {(toy, 30 + 5 * elevation, 10 * azimuth) for toy, elevation, azimuth in found}


@pytest.mark.parametrize("split", ["azimuth", "elevation"])
@pytest.mark.parametrize(
    ("fold", "train", "val", "test"),
    [
        (None, {6, 7, 8, 9}, {4}, {0, 1, 2, 3, 5}),
        (0, {3, 5}, {2}, {0, 1}),
        (1, {1, 5}, {0}, {2, 3}),
        (2, {2, 3}, {1}, {0, 5}),
    ],
)
def test_splits_by_viewpoint(split: str, fold: int | None, train: set, val: set, test: set) -> None:
    """The degrees are those of the paper's section 5.1."""
    familiar = {"azimuth": {300, 320, 340, 0, 20, 40}, "elevation": {30, 35, 40}}[split]
    novel = {"azimuth": set(range(60, 300, 20)), "elevation": set(range(45, 75, 5))}[split]
    others = {"azimuth": set(range(30, 75, 5)), "elevation": set(range(0, 360, 20))}[split]

    def every(toys: set[int], views: set[int]) -> set[tuple[int, ...]]:
        return set(product(toys, *((others, views) if split == "azimuth" else (views, others))))

    chosen = plan(split, "first", fold, posed=True)
    halves = {half: grid(half) for half in chosen.halves}
    parts = {name: seen(part) for name, part in divide(chosen, halves).items()}
    assert parts["train"] == every(train, familiar) and parts["val"] == every(val, familiar)
    assert parts["test"] == every(test, familiar) and parts["novel"] == every(test, novel)
    assert sum(len(part) for part in parts.values()) == len(set.union(*parts.values()))
    assert chosen.halves == (("train", "test") if fold is None else ("test", "test"))
    if fold is not None:
        assert plan(split, "first", fold, posed=False) == chosen


@pytest.mark.parametrize("split", SPLITS)
def test_the_toy_that_validates(split: str) -> None:
    chosen = plan(split, 8, None, posed=True)
    assert (chosen.train, chosen.val) == ((4, 6, 7, 9), 8) and "8 validates, 0" in chosen.note and chosen.held_out
    everything = plan(split, None, None, posed=True)
    assert (everything.train, everything.val) == ((4, 6, 7, 8, 9), 4) and not everything.held_out
    assert "toys 4, 6, 7, 8, 9 of each category train, 4 validates, which is trained on too" in everything.note


def test_the_shared_images(shared_smallnorb: Path) -> None:
    data = load("smallnorb", shared_smallnorb)
    assert (len(data.train), len(data.val), len(data.test)) == (19_440, 4_860, 24_300)
    assert data.image_shape == (2, 48, 48) and data.test.labels.bincount().tolist() == [4_860] * 5
    assert not torch.equal(data.test.images[:, 0], data.test.images[:, 1])
    again = load("smallnorb", shared_smallnorb, eyes="right", val_toy=9)
    assert set(again.val.factors["instance"].tolist()) == {9}
    assert torch.equal(again.test.images[:, 0], data.test.images[:, 1])


def test_the_shared_images_by_viewpoint(shared_smallnorb: Path) -> None:
    data = load("smallnorb", shared_smallnorb, eyes="left", split="azimuth", val_toy=None, fold=0)
    assert {name: len(part) for name, part in data.splits.items()} == {
        "train": 3 * 5 * 9 * 6 * 6,
        "val": 5 * 9 * 6 * 6,
        "test": 2 * 5 * 9 * 6 * 6,
        "novel": 2 * 5 * 9 * 12 * 6,
    }
    assert "48×48 .npz files, eyes: left; azimuth split within the test half" in data.note
    assert not data.held_out


def test_labels_in_official_files_have_the_official_checksums(shared_smallnorb: Path, tmp_path: Path) -> None:
    """Published of the label files not gzipped: so the format is read, and written here, as it is."""
    test = load("smallnorb", shared_smallnorb, eyes="left").test
    cat, info = tmp_path / "cat.mat", tmp_path / "info.mat"
    cat.write_bytes(mat(test.labels.numpy().astype(np.int32)))
    info.write_bytes(mat(torch.stack(list(test.factors.values()), dim=1).numpy().astype(np.int32)))
    assert torch.equal(torch.tensor(read_matrix(cat, smallnorb._SHA256["test", "cat"])).long(), test.labels)
    found = read_matrix(info, smallnorb._SHA256["test", "info"])
    assert found[:, 2].tolist() == test.factors["azimuth"].tolist()
