"""DICOM files show what viewers show, and are shared out patient by patient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.test_masks import save
from tests.scans import require_medical, write_dicom
from torchcaps.data import Dataset, load
from torchcaps.data.dicom import dicom_size, read_dicom, read_dicom_numbers
from torchcaps.data.image_file import read_image
from torchcaps.data.mask_file import read_mask, shown_size
from torchcaps.data.medical import is_dicom, stem_of, suffix_of

require_medical()

HOUNSFIELD = {"RescaleSlope": "1", "RescaleIntercept": "-1024"}


def test_a_window_is_in_the_files_units(tmp_path: Path) -> None:
    stored = np.array([[0, 864, 1064], [1164, 1264, 4095]], np.uint16)  # −1024, −160, 40, 140, 240, 3071 HU
    path = write_dicom(tmp_path / "a.dcm", stored, bits=12, **HOUNSFIELD)
    assert read_dicom(path, (40, 400))[0].tolist() == [[0, 0, 128], [191, 255, 255]]
    assert read_dicom_numbers(path).tolist() == (stored.astype(int) - 1024).tolist()
    assert dicom_size(path) == shown_size(path) == (2, 3)


def test_signed_numbers_of_12_bits(tmp_path: Path) -> None:
    wanted = np.array([[-2048, -1], [0, 2047]])
    for k, stored in enumerate((wanted.astype(np.int16), wanted.astype(np.int16) & 0x0FFF)):
        path = write_dicom(tmp_path / f"{k}.dcm", stored, bits=12, PixelRepresentation=1)
        assert np.array_equal(read_dicom_numbers(path), wanted)


def test_by_default_most_values_are_shown(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.int16).reshape(20, 50)
    values[0, 0], values[0, 1] = -32768, 32767  # of metal, and of air
    shown = read_dicom(write_dicom(tmp_path / "a.dcm", values))[0].astype(int)
    black, white = np.percentile(values, (0.5, 99.5))
    wanted = (255 * np.clip((values - black) / (white - black), 0, 1)).round()
    assert np.abs(shown - wanted).max() <= 1 and 126 <= shown[10, 0] <= 129
    assert not read_dicom(write_dicom(tmp_path / "b.dcm", np.full((4, 4), 7, np.uint16)))[0].any()


def test_monochrome1_is_inverted_and_padding_stays_black(tmp_path: Path) -> None:
    stored = np.array([[0, 100], [200, 60000]], np.uint16)
    options = {"PixelPaddingValue": 60000}
    plain = read_dicom(write_dicom(tmp_path / "a.dcm", stored, **options), (100, 200))[0]
    inverted = read_dicom(write_dicom(tmp_path / "b.dcm", stored, kind="MONOCHROME1", **options), (100, 200))[0]
    assert plain.tolist() == [[0, 128], [255, 0]] and inverted.tolist() == [[255, 127], [0, 0]]
    counted = read_dicom(tmp_path / "a.dcm")[0]
    assert counted[1, 0] == 255 and 120 < counted[0, 1] < 135  # the default window does not count what is padded


def test_the_windows_that_a_file_names(tmp_path: Path) -> None:
    stored = np.array([[-160, 40], [239, 240]], np.int16)
    several = write_dicom(tmp_path / "a.dcm", stored, WindowCenter=["40", "600"], WindowWidth=["400", "1500"])
    assert read_dicom(several, "file")[0].tolist() == [[0, 128], [255, 255]]  # LINEAR is white one below 240
    exact = write_dicom(tmp_path / "b.dcm", stored, WindowCenter="40", WindowWidth="400", VOILUTFunction="LINEAR_EXACT")
    assert read_dicom(exact, "file")[0].tolist() == [[0, 128], [254, 255]]
    sigmoid = write_dicom(tmp_path / "c.dcm", stored, WindowCenter="40", WindowWidth="400", VOILUTFunction="SIGMOID")
    shares = 1 / (1 + np.exp(-4 * (stored - 40) / 400))
    assert read_dicom(sigmoid, "file")[0].tolist() == (255 * shares).round().tolist()
    with pytest.raises(ValueError, match=r"d.dcm must name a window for data.options.window=file, got none"):
        read_dicom(write_dicom(tmp_path / "d.dcm", stored), "file")


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_are_those_of_pydicom(function: str, tmp_path: Path) -> None:
    import pydicom
    from pydicom.pixels import apply_windowing

    stored = np.random.default_rng(0).integers(0, 4096, (8, 9)).astype(np.uint16)
    fields = {"WindowCenter": "1100", "WindowWidth": "700", "VOILUTFunction": function}
    path = write_dicom(tmp_path / "a.dcm", stored, bits=12, **fields)
    file = pydicom.dcmread(path)
    theirs = apply_windowing(file.pixel_array, file) / 4095
    assert np.abs(read_dicom(path, "file")[0] / 255 - theirs).max() <= 0.5 / 255 + 1e-6


def test_several_frames_and_their_functional_groups(tmp_path: Path) -> None:
    frames = np.arange(12, dtype=np.uint16).reshape(2, 2, 3) + 1000
    groups = {
        "PixelValueTransformationSequence": {"RescaleSlope": "2", "RescaleIntercept": "-1000", "RescaleType": "HU"},
        "FrameVOILUTSequence": {"WindowCenter": "1005", "WindowWidth": "10"},
    }
    path = write_dicom(tmp_path / "a.dcm", frames, n_frames=2, groups=groups)
    assert read_dicom_numbers(path, first=True).tolist() == (2 * frames[0].astype(int) - 1000).tolist()
    assert read_dicom(path, "file", first=True)[0].tolist() == [[0, 57, 113], [170, 227, 255]]
    with pytest.raises(ValueError, match=r"a.dcm must hold one picture, got 2: .*data.options.frames=first"):
        read_dicom(path)
    one = write_dicom(tmp_path / "b.dcm", frames[:1], n_frames=1)
    assert read_dicom_numbers(one).shape == (2, 3)


def test_colours(tmp_path: Path) -> None:
    from pydicom.pixels import convert_color_space

    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[10, 20, 250], [128, 128, 128]]], np.uint8)
    path = write_dicom(tmp_path / "a.dcm", colours)
    assert np.array_equal(read_dicom(path, (1, 2))[0], colours)
    assert torch.equal(read_image(path, (2, 2)), torch.from_numpy(colours).permute(2, 0, 1))
    ybr = convert_color_space(colours, "RGB", "YBR_FULL")
    other = write_dicom(tmp_path / "b.dcm", ybr, PhotometricInterpretation="YBR_FULL")
    assert np.abs(read_dicom(other)[0].astype(int) - colours).max() <= 2
    deep = write_dicom(tmp_path / "c.dcm", colours.astype(np.uint16) << 4, bits=12)
    assert np.array_equal(read_dicom(deep)[0], colours)
    table = (np.arange(4) * 0x5555).astype(np.uint16)
    palette = {}
    for name, values in {"Red": table, "Green": table[::-1], "Blue": table}.items():
        palette[f"{name}PaletteColorLookupTableDescriptor"] = [4, 0, 16]
        palette[f"{name}PaletteColorLookupTableData"] = values.tobytes()
    path = write_dicom(tmp_path / "d.dcm", np.array([[0, 1], [2, 3]], np.uint8), kind="PALETTE COLOR", **palette)
    assert read_dicom(path)[0].tolist() == [[[0, 255, 0], [85, 170, 85]], [[170, 85, 170], [255, 0, 255]]]
    with pytest.raises(ValueError, match=r"a.dcm must be grey to name classes by numbers, got RGB"):
        read_mask(tmp_path / "a.dcm", 1)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    import pydicom

    (tmp_path / "a.dcm").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"a.dcm cannot be read as a DICOM image: "):
        read_dicom(tmp_path / "a.dcm")
    file = pydicom.dcmread(write_dicom(tmp_path / "b.dcm", np.zeros((2, 2), np.uint16)))
    del file.PixelData
    file.Modality = "RTSTRUCT"
    file.save_as(tmp_path / "b.dcm")
    with pytest.raises(ValueError, match=r"b.dcm must hold a picture, got RTSTRUCT without pixels"):
        read_dicom(tmp_path / "b.dcm")


def write_series(root: Path, patients: int = 5, n: int = 3, *, folders: bool = True, name: bool = True) -> Path:
    """Write slices of several patients, with a bright square in each; masks are PNG files."""
    for p in range(patients):
        for k in range(n):
            values, mask = np.full((16, 16), 24 + p, np.uint16), np.zeros((16, 16), np.uint8)
            mask[p : p + 6, 2 + k : 9 + k] = 1
            values[mask == 1] = 1084
            stem = f"p{p}/im{k}" if folders else f"{p}{k}"
            identity = {"PatientID": f"id{p}" if name else "anonymous", "SeriesInstanceUID": f"1.2.3.{p + 1}"}
            write_dicom(root / "images" / f"{stem}.dcm", values, bits=12, **HOUNSFIELD, **identity)
            save(root / "masks" / f"{stem}.png", mask)
    return root


def groups_apart(data: Dataset) -> int:
    """Return the number of groups, once each is seen to be in one split."""
    found = [set(part.factors["group"].tolist()) for part in data.splits.values()]
    assert sum(map(len, found)) == len(set.union(*found))
    return len(set.union(*found))


@pytest.mark.parametrize(("folders", "name"), [(True, True), (False, True), (False, False)])
def test_a_patient_is_in_one_split(folders: bool, name: bool, tmp_path: Path) -> None:
    data = load("mask-folder", write_series(tmp_path / "scans", folders=folders, name=name), image_size=(16, 16))
    assert groups_apart(data) == 5 and data.note == "split by content in patients"
    assert sum(len(part) for part in data.splits.values()) == 15
    for part in data.splits.values():
        assert part.masks is not None and torch.equal(part.images > 127, part.masks)
    windowed = load("mask-folder", tmp_path / "scans", image_size=(16, 16), window=[40, 400])
    assert set(windowed.train.images.unique().tolist()) == {0, 140}  # 60 HU of −160 … 240
    with pytest.raises(ValueError, match=r"images must have images of at least three patients, .* got "):
        load("mask-folder", write_series(tmp_path / "two", 2, folders=folders, name=name))


def test_masks_may_be_dicom_files(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", np.array([[0, 1], [2, 0]], np.uint8))
    assert read_mask(path, 2).tolist() == [[0, 1], [2, 0]]
    with pytest.raises(ValueError, match=r"a.dcm must hold 0 and 1, or 0 and 255 .* got 2 \(row 1, column 0\)"):
        read_mask(path, 1)


@pytest.mark.parametrize(("folders", "name"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("called", ["IM00000{}", "1.2.840.113619.2.{}"])
def test_files_without_an_ending_are_known_by_their_content(
    called: str, folders: bool, name: bool, tmp_path: Path
) -> None:
    """Masks are DICOM files without an ending of odd images, and pictures of even ones."""
    named = load("mask-folder", write_series(tmp_path / "named", folders=folders, name=name), image_size=(16, 16))
    root = write_series(tmp_path / "scans", folders=folders, name=name)
    for k, path in enumerate(sorted((root / "images").rglob("*.dcm"))):
        mask = root / "masks" / path.relative_to(root / "images").with_suffix(".png")
        new = called.format(path.stem.removeprefix("im"))
        path.rename(path.with_name(new))
        goal = mask.with_name(new)
        if k % 2:
            write_dicom(goal, np.array(Image.open(mask)))
            mask.unlink()
        else:
            mask.rename(goal.with_name(f"{goal.name}.png"))
    write_dicom(root / "images" / "DICOMDIR", np.zeros((16, 16), np.uint8))  # an index, which shows nothing
    (root / "images" / "notes.txt").write_text("of another kind")
    data = load("mask-folder", root, image_size=(16, 16))
    assert groups_apart(data) == 5 and sum(len(part) for part in data.splits.values()) == 15
    for split, part in data.splits.items():
        assert set(map(str, part.images.tolist())) == set(map(str, named.splits[split].images.tolist()))
        assert part.masks is not None and torch.equal(part.images > 127, part.masks)
    windowed = load("mask-folder", root, image_size=(16, 16), window=[40, 400])
    assert set(windowed.train.images.unique().tolist()) == {0, 140}


def test_a_file_without_an_ending_that_is_no_dicom_file_is_named(tmp_path: Path) -> None:
    root = write_series(tmp_path / "scans")
    contents = {"README": b"text", "1.2.840.7": bytes(131), "IM7": bytes(127) + b"DICM", "empty": b""}
    for name, content in contents.items():
        (root / "images" / name).write_bytes(content)
    with pytest.raises(ValueError, match="4 files must be mended") as found:
        load("mask-folder", root)
    for name in contents:
        path = root / "images" / name
        says = f"{path} must begin as a DICOM file (128 bytes, then DICM) or have the ending of an image, got neither"
        assert says in str(found.value)
        path.unlink()
    (root / "masks" / "p0" / "im0").write_bytes(bytes(128) + b"DICM")
    with pytest.raises(ValueError, match=r"must have one file of a name, got im0 and im0.png"):
        load("mask-folder", root)
    (root / "masks" / "p0" / "im0.png").unlink()
    with pytest.raises(ValueError, match=r"im0 cannot be read as a DICOM image|im0 must hold a picture"):
        load("mask-folder", root)
    write_dicom(root / "masks" / "p0" / "im0", np.zeros((8, 16), np.uint8))
    with pytest.raises(ValueError, match=r"im0 must be 16×16 as im0.dcm, got 8×16"):
        load("mask-folder", root)
    (root / "masks" / "p0" / "im0").rename(root / "masks" / "p0" / "im9")
    with pytest.raises(ValueError, match=r"(?s)im0.dcm has no mask .*im0.png.*im9 has no image"):
        load("mask-folder", root)


def test_endings_of_numbers_are_none() -> None:
    names = {"IM000001": "", "1.2.840.1": "", "a.1.PNG": ".png", "p0.NII.GZ": ".nii.gz", "a.7z": ".7z", "b.dcm": ".dcm"}
    assert {name: suffix_of(Path(name)) for name in names} == names
    assert [stem_of(Path(name)) for name in ("1.2.840.1", "1.2.840.1.png", "p.nii.gz")] == ["1.2.840.1"] * 2 + ["p"]
    assert not is_dicom(Path("no such file"))
