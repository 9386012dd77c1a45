"""NIfTI volumes become axial slices as radiologists see them, and stay together."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.test_dicom import groups_apart
from tests.scans import require_medical, write_nifti, write_volumes
from torchcaps.data import load
from torchcaps.data.nifti import check_aligned, label_volume, read_label_volume, read_volume

require_medical()

#: Axes of the file in the body: as they are, to the left and back, as sagittal slices, oblique.
TURN = np.array([[0.9, -0.2, 0, 3], [0.2, 0.9, 0.1, -7], [0, -0.1, 2.0, 5], [0, 0, 0, 1]])
AFFINES = {
    "RAS": np.diag([1.0, 1, 2, 1]),
    "LPS": np.diag([-1.0, -1, 2, 1]),
    "sagittal": np.array([[0, 0, 3.0, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]]),
    "oblique": TURN,
}


@pytest.mark.parametrize("name", AFFINES)
def test_slices_show_the_right_on_the_left_and_the_front_on_top(name: str, tmp_path: Path) -> None:
    """Three voxels are marked by where they are in the body, worked out from the affine alone."""
    affine, shape = AFFINES[name], (5, 6, 7)
    places = np.stack(np.meshgrid(*map(np.arange, shape), [1], indexing="ij"), axis=-1).squeeze(3)
    right, front, head = np.moveaxis(places @ affine.T, -1, 0)[:3]
    values = np.zeros(shape, np.int16)
    corner = np.unravel_index(np.argmax(right + front + head), shape)
    values[corner] = 100
    volume = read_volume(write_nifti(tmp_path / "a.nii", values, affine), (50, 100))
    assert np.argwhere(volume.slices).tolist() == [[len(volume.slices) - 1, 0, 0]]  # the last slice's upper left
    values = np.zeros(shape, np.int16)
    values[np.unravel_index(np.argmin(right - front + head), shape)] = 100
    volume = read_volume(write_nifti(tmp_path / "b.nii", values, affine), (50, 100))
    assert np.argwhere(volume.slices).tolist() == [[0, 0, volume.slices.shape[2] - 1]]


@pytest.mark.parametrize("name", AFFINES)
def test_labels_that_are_written_lie_where_they_were(name: str, tmp_path: Path) -> None:
    import nibabel

    labels = np.random.default_rng(0).integers(0, 3, (5, 6, 7)).astype(np.uint8)
    image = write_nifti(tmp_path / "a.nii.gz", labels.astype(np.float32), AFFINES[name], cal_max=3)
    volume = read_label_volume(image, 2)
    (tmp_path / "b.nii.gz").write_bytes(label_volume(volume.in_file(volume.slices), image))
    written, source = nibabel.load(tmp_path / "b.nii.gz"), nibabel.load(image)
    assert np.array_equal(written.dataobj, labels) and written.get_data_dtype() == np.uint8
    assert np.array_equal(written.affine, source.affine) and written.header["cal_max"] == 0
    check_aligned(read_volume(image), read_label_volume(tmp_path / "b.nii.gz", 2))


def test_a_window_is_in_units_after_the_slope(tmp_path: Path) -> None:
    import nibabel

    file = nibabel.Nifti1Image(np.array([-1024, -160, 40, 140, 240, 3071], np.float32).reshape(6, 1, 1), np.eye(4))
    file.set_data_dtype(np.int16)
    file.to_filename(tmp_path / "a.nii")
    assert nibabel.load(tmp_path / "a.nii").dataobj.slope != 1
    assert read_volume(tmp_path / "a.nii", (40, 400)).slices.ravel()[::-1].tolist() == [0, 0, 128, 191, 255, 255]
    plain = write_nifti(tmp_path / "b.nii", np.arange(6, dtype=np.int16).reshape(6, 1, 1), cal_min=1, cal_max=3)
    assert read_volume(plain, "file").slices.ravel()[::-1].tolist() == [0, 0, 128, 255, 255, 255]
    assert read_volume(plain).slices.ravel()[::-1].tolist() == [0, 50, 102, 153, 205, 255]  # 0.025 is black
    with pytest.raises(ValueError, match=r"c.nii must name a range \(cal_min, cal_max\) .*, got none"):
        read_volume(write_nifti(tmp_path / "c.nii", np.zeros((2, 2, 2), np.int16)), "file")
    gaps = write_nifti(tmp_path / "d.nii", np.array([np.nan, 0, 1, 2], np.float32).reshape(4, 1, 1))
    assert read_volume(gaps).slices.ravel()[::-1].tolist() == [0, 0, 128, 255]


def test_labels_may_be_floats_that_are_whole(tmp_path: Path) -> None:
    import nibabel

    labels = np.arange(24).reshape(2, 3, 4) % 5
    assert read_label_volume(write_nifti(tmp_path / "a.nii", labels.astype(np.float32)), 4).slices.max() == 4
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.uint8), np.eye(4))
    for top in (1, 2, 4, 7, 13):  # written as floats with a header of 8 bits, and so by a slope
        labels = np.arange(24).reshape(2, 3, 4) % (top + 1)
        nibabel.save(nibabel.Nifti1Image(labels.astype(np.float64), np.eye(4), image.header), tmp_path / "b.nii")
        found = read_label_volume(tmp_path / "b.nii", top).slices
        assert np.array_equal(found, labels[::-1, ::-1].transpose(2, 1, 0))
    halves = np.zeros((2, 3, 4), np.float32)
    halves[1, 2, 3] = 0.5
    with pytest.raises(ValueError, match=r"c.nii must hold whole numbers, of classes, got 0.5 \(voxel 1, 2, 3\)"):
        read_label_volume(write_nifti(tmp_path / "c.nii", halves), 1)
    for value in (np.nan, np.inf):
        halves[1, 2, 3] = value
        with pytest.raises(ValueError, match=rf"d.nii must hold whole numbers, of classes, got {value}"):
            read_label_volume(write_nifti(tmp_path / "d.nii", halves), 1)
    with pytest.raises(ValueError, match=r"e.nii must hold 0 … 2 .*, got 3 and 1 other values \(voxel 0, 0, 3\)"):
        read_label_volume(write_nifti(tmp_path / "e.nii", np.arange(24, dtype=np.uint8).reshape(2, 3, 4) % 5), 2)
    both = np.array([0, 255], np.uint8).reshape(2, 1, 1)
    assert read_label_volume(write_nifti(tmp_path / "f.nii", both), 1).slices.max() == 1


def test_other_forms_are_refused(tmp_path: Path) -> None:
    four = write_nifti(tmp_path / "a.nii", np.arange(24, dtype=np.int16).reshape(2, 3, 2, 2), np.diag([1.0, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"a.nii must be a volume \[X, Y, Z\], got 2×3×2×2: data.options.frames=first"):
        read_volume(four)
    assert read_volume(four, (10, 40), first=True).shape == (2, 3, 2)
    one = write_nifti(tmp_path / "b.nii", np.zeros((2, 3, 2, 1), np.int16))
    assert read_volume(one).shape == (2, 3, 2)
    (tmp_path / "c.nii").write_bytes(label_volume(np.ones((2, 3, 2), np.uint8), one))
    assert read_label_volume(tmp_path / "c.nii", 1).shape == (2, 3, 2)
    (tmp_path / "d.nii").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"d.nii cannot be read as a NIfTI volume: "):
        read_volume(tmp_path / "d.nii")
    broken = write_nifti(tmp_path / "e.nii.gz", np.zeros((20, 20, 20), np.int16))
    broken.write_bytes(broken.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"e.nii.gz cannot be read as a NIfTI volume: "):
        read_volume(broken)
    colours = np.zeros((2, 2, 2), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    with pytest.raises(ValueError, match=r"f.nii must hold one number a voxel, got "):
        read_volume(write_nifti(tmp_path / "f.nii", colours))


def test_a_folder_of_volumes(tmp_path: Path) -> None:
    root = write_volumes(tmp_path / "scans")
    data = load("mask-folder", root, image_size=(16, 20))
    assert groups_apart(data) == 6 and data.image_shape == (1, 16, 20)
    assert sum(len(part) for part in data.splits.values()) == 30
    for part in data.splits.values():
        assert part.masks is not None and torch.equal(part.images > 200, part.masks)
    dropped = load("mask-folder", root, image_size=(16, 20), empty="drop")
    assert len(dropped.train) == len(data.train) * 4 // 5  # one slice of five shows nothing
    assert [len(part) for part in (dropped.val, dropped.test)] == [len(part) for part in (data.val, data.test)]
    rows = [f"p{k}.nii.gz,{('train', 'val', 'test')[k % 3]}" for k in range(6)]
    (root / "splits.csv").write_text("\n".join(["file,split", *rows]))
    named = load("mask-folder", root, split="splits.csv")
    assert [len(part) for part in named.splits.values()] == [10, 10, 10]
    grouped = load("mask-folder", root, groups=r"^p([0-9])")
    assert grouped.note == r"split by content in the groups of ^p([0-9])"


def test_slices_of_air_do_not_make_patients_one(tmp_path: Path) -> None:
    root = write_volumes(tmp_path / "scans", 3)
    for path in (root / "images").iterdir():
        values = np.full((20, 16, 5), -1000, np.int16)
        values[:, :, 2] = np.random.default_rng(len(path.name) + int(path.name[1])).integers(0, 99, (20, 16))
        write_nifti(path, values)
    assert groups_apart(load("mask-folder", root)) == 3


def test_masks_that_do_not_fit_are_named(tmp_path: Path) -> None:
    root = write_volumes(tmp_path / "scans", 4)
    write_nifti(root / "masks" / "p0.nii.gz", np.zeros((20, 16, 6), np.uint8))
    moved = np.diag([1.0, 1, 2, 1])
    moved[0, 3] = 0.5
    write_nifti(root / "masks" / "p1.nii.gz", np.zeros((20, 16, 5), np.uint8), moved)
    with pytest.raises(ValueError, match="2 files must be mended") as found:
        load("mask-folder", root)
    said = str(found.value)
    assert f"{root / 'masks' / 'p0.nii.gz'} must be 20×16×5 as {root / 'images' / 'p0.nii.gz'}, got 20×16×6" in said
    assert f"{root / 'masks' / 'p1.nii.gz'} must lie where {root / 'images' / 'p1.nii.gz'} does, got another " in said
    assert "affine: 1 0 0 0.5; 0 1 0 0; 0 0 2 0 instead of 1 0 0 0; 0 1 0 0; 0 0 2 0" in said
    rounded = np.diag([1.0, 1, 2, 1])
    rounded[0, 3] = 1e-4  # as writers round
    for k in range(2):
        write_nifti(root / "masks" / f"p{k}.nii.gz", np.zeros((20, 16, 5), np.uint8), rounded)
    assert groups_apart(load("mask-folder", root)) == 4
    (root / "masks" / "p0.nii.gz").unlink()
    (root / "masks" / "p0.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"p0.png must be a NIfTI volume as .*p0.nii.gz, got p0.png"):
        load("mask-folder", root)


def test_options_that_are_none(tmp_path: Path) -> None:
    root = write_volumes(tmp_path / "scans", 3)
    for window, says in (
        ([40], r"data.options.window must be a centre and a width, or file, got \[40\]"),
        ("lung", "data.options.window must be a centre and a width, or file, got 'lung'"),
        ([40, 0], "data.options.window must have a width above 0, got 0"),
        ([40, "a"], "data.options.window must be .*, got 'a'"),
    ):
        with pytest.raises(ValueError, match=says):
            load("mask-folder", root, window=window)
    with pytest.raises(ValueError, match="data.options.empty must be one of keep, drop; got 'no'"):
        load("mask-folder", root, empty="no")


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_volumes(tmp_path / "scans", 3)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(ValueError, match=r"p2.nii.gz needs nibabel: pip install 'torchcaps\[medical\]'"):
        load("mask-folder", root)
