"""Folders as people have them: splits by folders and tables, Hugging Face's layout, labels of one's own, odd files."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import load
from torchcaps.data.image_file import read_image


def write(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade, shade, shade)).save(path)
    return path


def shades(part: object) -> list[int]:
    return sorted(part.images[:, 0, 0, 0].tolist())  # type: ignore[attr-defined]


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Images in the folders of splits, without folders of classes."""
    for split, first in (("train", 0), ("test", 100)):
        for k in range(20):
            write(tmp_path / split / f"{k:02}.png", first + k)
    return tmp_path


def test_splits_are_never_taken_for_classes(flat: Path) -> None:
    with pytest.raises(
        ValueError, match=r"must have a sub-folder for each class in test and train, got none in test and train: these"
    ):
        load("folder", flat)
    for k in range(20):
        (flat / "train" / "ab"[k % 2]).mkdir(exist_ok=True)
        (flat / "train" / f"{k:02}.png").rename(flat / "train" / "ab"[k % 2] / f"{k:02}.png")
    with pytest.raises(ValueError, match=r"for each class in test and train, got none in test: these are splits"):
        load("folder", flat)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("train", "validation"), r"must have the folders train and test.*got train, validation, and no test$"),
        (("Train",), r"got Train, and no test; to have it split, name .*/Train as data.root$"),
        (("train", "test", "valid", "val"), r"must have one folder of the val split, got val and valid"),
    ],
)
def test_splits_that_are_incomplete(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        for k in range(6):
            write(tmp_path / name / "ab"[k % 2] / f"{k}.png", k)
    with pytest.raises(ValueError, match=message):
        load("folder", tmp_path)


@pytest.mark.parametrize("name", ["val", "Validation", "valid", "dev"])
def test_the_validation_split_by_any_of_its_names(tmp_path: Path, name: str) -> None:
    for split, first in (("Train", 0), (name, 50), ("testing", 100)):
        for k in range(6):
            write(tmp_path / split / "ab"[k % 2] / f"{k}.png", first + k)
    data = load("folder", tmp_path)
    assert [shades(part) for part in data.splits.values()] == [[*range(k, k + 6)] for k in (0, 50, 100)]
    assert data.classes == ("a", "b") and data.note == "split by its folders"


def test_a_class_may_be_called_train_beside_others(tmp_path: Path) -> None:
    for k in range(20):
        write(tmp_path / "train" / f"{k}.png", k)
        write(tmp_path / "bus" / f"{k}.png", 100 + k)
        write(tmp_path / "__MACOSX" / f"{k}.png", 200)
    assert load("folder", tmp_path).classes == ("bus", "train")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_hugging_faces_layout(flat: Path, form: str) -> None:
    for split in ("train", "test"):
        rows = [(f"{k:02}.png", 12 if k % 2 else 3) for k in range(20)]
        if form == "csv":
            text = "file_name,label\n" + "".join(f"{name},{label}\n" for name, label in rows)
        else:
            text = "".join(json.dumps({"file_name": name, "label": label}) + "\n" for name, label in rows)
        (flat / split / f"metadata.{form}").write_text(text)
    data = load("folder", flat)
    assert data.classes == ("3", "12")  # numbers in their order
    assert shades(data.train) + shades(data.val) != [] and shades(data.test) == [*range(100, 120)]
    for part in data.splits.values():
        assert part.labels.tolist() == [shade % 2 for shade in part.images[:, 0, 0, 0].tolist()]
    assert data.note == "split by its folders, a tenth of train validates"
    (flat / "test" / f"metadata.{form}").unlink()
    with pytest.raises(ValueError, match=r"must have a sub-folder for each class in test and train"):
        load("folder", flat)


def test_one_table_above_the_splits(flat: Path) -> None:
    lines = [f"{path.relative_to(flat).as_posix()},{'ab'[k % 2]}" for k, path in enumerate(sorted(flat.rglob("*.png")))]
    (flat / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    data = load("folder", flat)
    assert data.classes == ("a", "b") and shades(data.test) == [*range(100, 120)]


def test_captions_are_no_labels(flat: Path) -> None:
    (flat / "metadata.csv").write_text("file_name,text\n" + "".join(f"train/{k:02}.png,a cat\n" for k in range(20)))
    with pytest.raises(
        ValueError, match=r"metadata.csv must have one column label, or two .*got the columns file_name"
    ):
        load("folder", flat)


def test_folders_of_classes_come_before_metadata(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for k in range(20):
        write(tmp_path / "ab"[k % 2] / f"{k}.png", k)
    (tmp_path / "metadata.csv").write_text("file_name,label\nx.png,1\n")
    assert load("folder", tmp_path).classes == ("a", "b")
    assert "metadata.csv is not read, as folders name the classes" in caplog.text


@pytest.fixture
def heap(tmp_path: Path) -> Path:
    """Images without any folder."""
    for k in range(30):
        write(tmp_path / f"x{k:02}.png", k)
    return tmp_path


def test_several_labels_by_their_names(heap: Path) -> None:
    cells = ["cat;dog", "dog", "", "cat; bird"]
    (heap / "labels.csv").write_text("image,labels\n" + "".join(f"x{k:02}.png,{cells[k % 4]}\n" for k in range(30)))
    data = load("folder", heap, labels="labels.csv")
    assert data.classes == ("bird", "cat", "dog") and data.several_labels
    wanted = [[0, 1, 1], [0, 0, 1], [0, 0, 0], [1, 1, 0]]
    for part in data.splits.values():
        assert part.labels.dtype == torch.bool
        assert part.labels.int().tolist() == [wanted[shade % 4] for shade in part.images[:, 0, 0, 0].tolist()]
    assert sum(map(len, data.splits.values())) == 30


def test_a_column_for_each_label(heap: Path) -> None:
    rows = (f"x{k:02}.png,1.0,{k % 2},{int(k % 3 == 0)}" for k in range(30))
    (heap / "l.csv").write_text("\n".join(["Image,No,b,a", *rows]))
    data = load("folder", heap, labels="l.csv")
    assert data.classes == ("No", "b", "a") and data.several_labels
    for part in data.splits.values():
        wanted = [[1, shade % 2, shade % 3 == 0] for shade in part.images[:, 0, 0, 0].tolist()]
        assert part.labels.int().tolist() == wanted


def test_a_column_for_each_label_with_one_in_each_row_is_one_label(heap: Path) -> None:
    (heap / "l.csv").write_text("image,MEL,NV\n" + "".join(f"x{k:02}.png,{k % 2}.0,{1 - k % 2}.0\n" for k in range(30)))
    data = load("folder", heap, labels="l.csv")
    assert data.classes == ("MEL", "NV") and not data.several_labels
    for part in data.splits.values():
        assert part.labels.tolist() == [1 - shade % 2 for shade in part.images[:, 0, 0, 0].tolist()]


@pytest.mark.parametrize("head", ["image_id,age,dx", "Image Index,Patient,Finding Labels", "id,image,label"])
def test_tables_as_they_are_published(heap: Path, head: str) -> None:
    """Of skin, of chests, and with the names of the files without their ending."""
    cells = {"image_id,age,dx": "x{k:02},50,{label}", "id,image,label": "{k},x{k:02}.png,{label}"}
    line = cells.get(head, "x{k:02}.png,7,{label}")
    several = "Finding" in head
    labels = ["nv", "mel|nv" if several else "mel"]
    rows = [line.format(k=k, label=labels[k % 2]) for k in range(30)]
    (heap / "l.csv").write_text("\n".join([head, *rows]))
    data = load("folder", heap, labels="l.csv")
    assert data.classes == ("mel", "nv") and data.several_labels == several
    for part in data.splits.values():
        odd = [shade % 2 for shade in part.images[:, 0, 0, 0].tolist()]
        assert part.labels.int().tolist() == ([[k, 1] for k in odd] if several else [1 - k for k in odd])


def test_a_table_with_labels_and_splits(heap: Path) -> None:
    names = ("train", "valid", "test")
    (heap / "l.csv").write_text(
        "file,label,split\n" + "".join(f"x{k:02}.png,{k % 2},{names[k // 10]}\n" for k in range(30))
    )
    data = load("folder", heap, labels="l.csv")
    assert [shades(part) for part in data.splits.values()] == [[*range(k, k + 10)] for k in (0, 10, 20)]
    assert data.note == "split by its table of labels"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\nx00.png,a\n", r"must name at least two labels, got a"),
        ("file,label\nx00.png,a\nx01.png,b\n", r"must have a row for every image of .*, got none for 28 of 30"),
        ("file,label\nx00.png,a\nx00.png,b\n", r"must name one label for x00.png, got \('a',\) and \('b',\)"),
        ("file,label\nx00.png,\n", r"line 2, must have a label"),
        ("file,a,b\nx00.png,1,-1\n", r"line 2, must have 0 or 1 for b, or the table a column label; got '-1'"),
        ("name,label\nx00.png,a\n", r"must have one column of files, called file, file_name"),
        ("file,label\nx00.png\n", r"line 2, must have 2 cells"),
    ],
)
def test_tables_that_do_not_fit(heap: Path, text: str, message: str) -> None:
    (heap / "l.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"l\.csv,? {message}"):
        load("folder", heap, labels="l.csv")


def test_splits_by_a_table(tmp_path: Path) -> None:
    rows = ["file,split"]
    for k in range(30):
        path = write(tmp_path / "ab"[k % 2] / f"{k}.png", k)
        rows.append(f"{path.relative_to(tmp_path)},{('train', 'val', 'Test')[k // 10]}")
    (tmp_path / "split.csv").write_text("\n".join(rows))
    data = load("folder", tmp_path, split="split.csv")
    assert [shades(part) for part in data.splits.values()] == [[*range(k, k + 10)] for k in (0, 10, 20)]
    assert data.note == "split by split.csv"
    (tmp_path / "split.csv").write_text("\n".join(rows).replace("Test", "later"))
    with pytest.raises(
        ValueError, match=r"split.csv must have a split of train, val or test for each file, got 'later'"
    ):
        load("folder", tmp_path, split="split.csv")


def png16(path: Path, pixels: np.ndarray) -> None:
    """A PNG of 16 bits a channel, which Pillow does not write in colour: ``[H, W, C]``."""
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    )


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_12_bits_in_16(tmp_path: Path, channels: int, caplog: pytest.LogCaptureFixture) -> None:
    for k in range(20):
        (tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
        png16(tmp_path / "ab"[k % 2] / f"{k}.png", np.full((4, 4, channels), 200 * k))
    data = load("folder", tmp_path, image_size=(4, 4))
    if channels == 1:
        assert max(int(part.images.max()) for part in data.splits.values()) == 3800 >> 8
    most = 3800 if channels == 1 else 3800 // 256 * 257  # Pillow keeps the upper 8 bits of colours
    assert (
        f"its 20 images of 16 bits are nearly black, as none has more than {most} of 65535: data.options.max_value=4095"
        in caplog.text
    )
    caplog.clear()
    if channels > 1:
        with pytest.raises(ValueError, match=r"must be grey for data.options.max_value, got colours of 16 bits"):
            load("folder", tmp_path, image_size=(4, 4), max_value=4095)
        return
    data = load("folder", tmp_path, image_size=(4, 4), max_value=4095)
    found = sorted(v for part in data.splits.values() for v in part.images[:, 0, 0, 0].tolist())
    assert found == [round(200 * k * 255 / 4095) for k in range(20)] and not caplog.text
    with pytest.raises(ValueError, match=r"got 8 that cannot .*\n.*must hold 0 … 2300, as data.options.max_value says"):
        load("folder", tmp_path, max_value=2300)


def test_floats_with_their_white(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 0.5, 1]], np.float32)).save(tmp_path / "f.tif")
    assert read_image(tmp_path / "f.tif", (1, 3), 1, max_value=1).flatten().tolist() == [0, 128, 255]
    Image.fromarray(np.array([[0, np.nan, 1]], np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(ValueError, match=r"must hold 0 … 1, as data.options.max_value says; got nan … nan"):
        read_image(tmp_path / "f.tif", (1, 3), 1, max_value=1)


@pytest.mark.parametrize("name", ["a.tif", "a.gif", "a.webp", "a.png"])
def test_several_pictures_in_a_file(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (8, 8), (shade,) * 3) for shade in (0, 120, 250)]
    frames[0].save(
        tmp_path / name, save_all=True, append_images=frames[1:], **({"lossless": True} if "webp" in name else {})
    )
    with pytest.raises(ValueError, match=rf"{name} must hold one picture, got 3: .*data.options.frames=first"):
        read_image(tmp_path / name, (8, 8))
    assert read_image(tmp_path / name, (8, 8), frames="first").unique().tolist() == [0]
    frames[1].save(tmp_path / name, save_all=True, **({"lossless": True} if "webp" in name else {}))
    assert read_image(tmp_path / name, (8, 8)).unique().tolist() == [120]


def test_a_smaller_copy_in_a_tiff_is_no_picture_of_its_own(tmp_path: Path) -> None:
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    large, small = Image.new("L", (8, 8), 90), Image.new("L", (2, 2), 90)
    tags = ImageFileDirectory_v2()
    tags[254] = 1  # NewSubfileType: a reduced-resolution version of another image in this file
    small.encoderinfo = {"tiffinfo": tags}  # type: ignore[attr-defined]
    large.save(tmp_path / "a.tif", save_all=True, append_images=[small])
    with Image.open(tmp_path / "a.tif") as file:
        assert file.n_frames == 2  # type: ignore[attr-defined]
    assert read_image(tmp_path / "a.tif", (8, 8)).unique().tolist() == [90]
    small = Image.new("L", (2, 2), 10)
    whole = ImageFileDirectory_v2()
    whole[254] = 0
    large.encoderinfo = {"tiffinfo": whole}  # type: ignore[attr-defined]
    small.save(tmp_path / "a.tif", save_all=True, append_images=[large], tiffinfo=tags)
    with Image.open(tmp_path / "a.tif") as file:
        assert file.tag_v2[254] == 1 and file.size == (2, 2)  # type: ignore[attr-defined]
        file.seek(1)
        assert not file.tag_v2.get(254) and file.size == (8, 8)  # type: ignore[attr-defined]
    assert read_image(tmp_path / "a.tif", (8, 8)).unique().tolist() == [90]


def tiff(path: Path, tags: dict[int, tuple[int, ...]], data: bytes) -> Path:
    """Write 2×2 pixels as a TIFF of shorts, with its data behind all; one strip, or one for each channel of several."""
    planes = 3 if tags.get(284) == (2,) else 1
    tags = {256: (2,), 257: (2,), 259: (1,), 278: (2,), **tags}
    n = len(tags) + 2
    behind, at = b"", 8 + 2 + 12 * n + 4
    start = at + 32  # room for what does not fit into the entries
    each = len(data) // planes
    tags |= {273: tuple(start + k * each for k in range(planes)), 279: (each,) * planes}
    entries = b""
    for tag, values in sorted(tags.items()):
        raw = struct.pack(f"<{len(values)}H", *values)
        if len(raw) > 4:
            entries += struct.pack("<HHII", tag, 3, len(values), at + len(behind))
            behind += raw
        else:
            entries += struct.pack("<HHI", tag, 3, len(values)) + raw.ljust(4, b"\0")
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, n) + entries + bytes(4) + behind.ljust(32, b"\0") + data)
    return path


@pytest.mark.parametrize("planar", [False, True])
def test_colours_of_16_bits_plane_by_plane(tmp_path: Path, planar: bool) -> None:
    """Which Pillow reads as others; of 8 bits it reads them rightly."""
    colours = np.arange(12).reshape(2, 2, 3) * 5000
    tags = {258: (16, 16, 16), 262: (2,), 277: (3,), 284: (2,) if planar else (1,)}
    data = (np.moveaxis(colours, 2, 0) if planar else colours).astype("<u2").tobytes()
    path = tiff(tmp_path / "a.tif", tags, data)
    if planar:
        with pytest.raises(ValueError, match="a.tif must have its 16-bit channels pixel by pixel, got them one behind"):
            read_image(path, (2, 2))
    else:
        assert np.array_equal(read_image(path, (2, 2)).numpy(), np.moveaxis(colours >> 8, 2, 0))
    eight = (np.moveaxis(colours, 2, 0) >> 8 if planar else colours >> 8).astype(np.uint8).tobytes()
    path = tiff(tmp_path / "b.tif", tags | {258: (8, 8, 8)}, eight)
    assert np.array_equal(read_image(path, (2, 2)).numpy(), np.moveaxis(colours >> 8, 2, 0))


def test_signed_bytes(tmp_path: Path) -> None:
    tags = {258: (8,), 262: (1,), 277: (1,)}
    assert read_image(tiff(tmp_path / "a.tif", tags, bytes(range(4))), (2, 2), 1).flatten().tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="a.tif must have 8-bit values 0 … 255, got signed ones"):
        read_image(tiff(tmp_path / "a.tif", tags | {339: (2,)}, bytes(range(4))), (2, 2))


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    for k in range(40):
        write(tmp_path / "ab"[k % 2] / f"{k:02}.png", k)
    return tmp_path


@pytest.mark.parametrize("name", ["scan.dcm", "scan.nii.gz", "x.npz", "x.mat", "x.H5", "x.zip", "IM0001"])
def test_what_may_be_images_is_named(classes: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (classes / "a" / name).write_bytes(bytes(128) + b"DICM")
    with pytest.raises(ValueError, match=rf"a must hold images as .png, .*, got 1 others, such as {name}: "):
        load("folder", classes)
    data = load("folder", classes, skip_bad=True)
    assert sum(map(len, data.splits.values())) == 40 and name in caplog.text
    assert data.note.endswith("; 1 files that cannot be read are left out")


def test_images_beside_the_classes_are_not_dropped_silently(classes: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(classes / "stray.png", 1)
    assert sum(map(len, load("folder", classes).splits.values())) == 40
    assert f"{classes}: 1 images lie beside the folders of classes, such as stray.png, and are not read" in caplog.text


def test_what_is_no_image_is_passed_over(classes: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("notes.txt", "Thumbs.db", ".DS_Store", "README"):
        (classes / "a" / name).write_bytes(b"x")
    load("folder", classes)
    assert not caplog.text
    (classes / "a" / "x.foo").write_bytes(b"x")
    load("folder", classes)
    assert "a: 1 files are taken for no images, such as x.foo" in caplog.text


def test_bad_files_are_named_all_at_once_and_can_be_passed_over(
    classes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for k in range(3):
        (classes / "b" / f"bad{k}.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(ValueError) as refused:
        load("folder", classes)
    said = str(refused.value)
    assert said.startswith(
        f"{classes} must hold images that can be read, got 3 that cannot (data.options.skip_bad=true"
    )
    assert all(f"bad{k}.png cannot be read as an image" in said for k in range(3))
    before = {
        (split, shade)
        for split, part in load("folder", classes, skip_bad=True).splits.items()
        for shade in shades(part)
    }
    assert len(before) == 40 and "passed over 3 files" in caplog.text and "bad2.png" in caplog.text
    for k in range(3):
        (classes / "b" / f"bad{k}.png").unlink()
    data = load("folder", classes)
    assert {(split, shade) for split, part in data.splits.items() for shade in shades(part)} == before


def test_pixels_on_a_disk_are_those_in_memory(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    Image.new("RGB", (6, 6), (250, 0, 0)).save(classes / "b" / "red.png")  # so that there are more channels late
    disk = tmp_path_factory.mktemp("disk")
    stored, plain = load("folder", classes, store=str(disk)), load("folder", classes)
    for name, part in plain.splits.items():
        assert torch.equal(stored.splits[name].images, part.images)
        assert torch.equal(stored.splits[name].labels, part.labels)
    assert not list(disk.iterdir())
    maps = Path("/proc/self/maps")
    if maps.is_file():  # of Linux
        at = stored.train.images.data_ptr()
        spans = [line.split() for line in maps.read_text().splitlines()]
        mine = next(s for s in spans if int(s[0].split("-")[0], 16) <= at < int(s[0].split("-")[1], 16))
        assert str(disk) in mine[5]
    with pytest.raises(ValueError, match="data.options.store must be a folder, got .*none"):
        load("folder", classes, store=disk / "none")


def test_a_disk_without_room(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ValueError, match=r"data.options.store must have room for 31,360 bytes, got .* No space left"):
        load("folder", classes, store=classes)


def test_a_few_of_each_class(classes: Path) -> None:
    data = load("folder", classes, n_each=4)
    assert sum(map(len, data.splits.values())) == 8 and all(len(part) for part in data.splits.values())
    assert data.note == "split by content, stratified by class; 4 images of each class at most"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip_bad": "yes"}, "data.options.skip_bad must be True or False, got 'yes'"),
        ({"max_value": 0}, "data.options.max_value must be an integer of at least 1, got 0"),
        ({"frames": "last"}, "data.options.frames must be one of one, first; got 'last'"),
        ({"n_each": 2}, "data.options.n_each must be an integer of at least 3, got 2"),
        ({"labels": "none.csv"}, r"data.options.labels must be a table in .*; got none.csv, which is not there"),
        ({"split": "none.txt"}, r"data.options.split must be a .csv file, got 'none.txt'"),
    ],
)
def test_options_that_are_none(classes: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("folder", classes, **options)


def test_whatever_broken_bytes_lead_pillow_to_is_named(tmp_path: Path) -> None:
    """In a TIFF without its width Pillow raises TypeError, and of mutated files in general many kinds."""
    Image.new("L", (8, 8), 90).save(tmp_path / "a.tif")
    raw = (tmp_path / "a.tif").read_bytes()
    at = raw.index(struct.pack("<HH", 256, 3)) if struct.pack("<HH", 256, 3) in raw else raw.index(b"\0\1\4\0")
    (tmp_path / "a.tif").write_bytes(raw[:at] + b"\xff\xff" + raw[at + 2 :])
    with pytest.raises(ValueError, match=r"a.tif cannot be read as an image: "):
        read_image(tmp_path / "a.tif", (8, 8))
    rng = np.random.default_rng(0)
    for name in ("b.png", "b.gif", "b.bmp", "b.webp", "b.jpg"):
        Image.fromarray(rng.integers(0, 255, (9, 11, 3), np.uint8)).save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        for _ in range(100):
            broken = bytearray(whole)
            for at in rng.integers(0, len(whole), 3):
                broken[at] = rng.integers(256)
            (tmp_path / name).write_bytes(broken[: rng.integers(1, len(broken) + 1)])
            try:
                read_image(tmp_path / name, (8, 8))
            except ValueError as error:
                assert name in str(error)  # noqa: PT017 (others are read)
