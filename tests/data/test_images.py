"""Labelled images, the bundled digits, and folders of images."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from sklearn.datasets import load_digits as bundled

from torchcaps.data import DATASETS, Dataset, Images, image_file, load, to_float
from torchcaps.data.image_file import _without_metadata, read_image
from torchcaps.data.images import fixed_order, resized


def _content(path: Path) -> bytes:
    with Image.open(path) as image:
        return image_file._content(path, image)


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
    seen = every.float().mean(dim=0).view(28, 28)[4:24, 4:24]
    upright = torch.from_numpy(bundled().images.mean(axis=0)).float()
    small = torch.nn.functional.adaptive_avg_pool2d(seen[None], 8)
    assert torch.corrcoef(torch.stack((small.flatten(), upright.flatten())))[0, 1] > 0.98  # 0.965 upside down
    assert load("digits", image_size=(32, 20)).image_shape == (1, 32, 20)


def test_labels_out_of_range() -> None:
    good = images(2, [0, 1])
    with pytest.raises(ValueError, match=r"toy: val labels must be 0 … 1, got 0 … 2"):
        Dataset("toy", ("a", "b"), good, images(2, [0, 2]), good)


@pytest.mark.parametrize("order", [(1, 0), (1,), ()])
def test_a_mirror_orders_the_channels_that_there_are(order: tuple[int, ...]) -> None:
    good = images(2, [0, 1])
    with pytest.raises(
        ValueError, match=rf"toy: mirrored must be an order of the 1 channels, got {re.escape(str(order))}"
    ):
        Dataset("toy", ("a", "b"), good, good, good, mirrored=order)


def test_what_would_be_mistaken_for_another_is_refused() -> None:
    good = images(2, [0, 1])
    with pytest.raises(ValueError, match="toy: classes must have different names, got a, a"):
        Dataset("toy", ("a", "a"), good, good, good)
    for name in ("train", "val", "test"):
        with pytest.raises(ValueError, match=f"toy: further splits must have names of their own, got {name}"):
            Dataset("toy", ("a", "b"), good, good, good, {name: good})


def test_shapes_and_dtypes() -> None:
    with pytest.raises(ValueError, match=r"images must be \[N, C, H, W\] uint8, uint16 or float32, got \[2, 4, 4\]"):
        Images(torch.zeros(2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"labels must be \[N=2\] int64, or \[N=2, J\] of 0 and 1, got \[3\]"):
        images(2, [0, 1, 0])


def test_what_is_no_tensor_or_no_images() -> None:
    good = images(2, [0, 1])
    with pytest.raises(ValueError, match=r"images must be a torch.Tensor, got a ndarray"):
        Images(good.images.numpy(), good.labels)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"labels must be a torch.Tensor, got a list"):
        Images(good.images, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"toy: val must be Images, got a Tensor"):
        Dataset("toy", ("a", "b"), good, good.images, good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"images must be a torch.Tensor, got a ndarray"):
        to_float(good.images.numpy())  # type: ignore[arg-type]


def test_classes_are_texts_however_they_are_given() -> None:
    good = images(2, [0, 1])
    assert Dataset("toy", [0, 1], good, good, good).classes == ("0", "1")  # type: ignore[arg-type]
    assert Dataset("toy", torch.arange(2), good, good, good).classes == ("0", "1")  # type: ignore[arg-type]
    for none in (3, {"a", "b"}, {0: "a", 1: "b"}):
        with pytest.raises(ValueError, match=r"toy: classes must be a name for each, got "):
            Dataset("toy", none, good, good, good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"toy: classes must be a name for each, got 'ab'"):
        Dataset("toy", "ab", good, good, good)  # type: ignore[arg-type]


def test_functions_of_ones_own_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    good = images(2, [0, 1])
    monkeypatch.setitem(DATASETS, "mine", lambda root, image_size: (good, good))
    with pytest.raises(ValueError, match=r"DATASETS\['mine'\] must return a Dataset, got a tuple"):
        load("mine")
    monkeypatch.setitem(DATASETS, "mine", lambda root: good)
    with pytest.raises(ValueError, match=r"DATASETS\['mine'\] must take root and image_size, .* without image_size"):
        load("mine")


def write(path: Path, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), colour, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(20):
        write(tmp_path / "cat" / f"{k}.png", (20 + k, 30), (k, k, k))
        write(tmp_path / "dog" / f"{k}.png", (15, 10 + k), (200 + k, 200 + k, 200 + k))
    (tmp_path / "cat" / "notes.txt").write_text("not an image, not read")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_folder(folder: Path) -> None:
    data = load("folder", folder, image_size=(16, 12))
    assert data.classes == ("cat", "dog") and data.image_shape == (1, 16, 12)
    sizes = [len(part) for part in (data.train, data.val, data.test)]
    assert sum(sizes) == 40 and sizes[0] > sizes[2] > sizes[1] > 0
    for part in (data.train, data.val, data.test):
        dark = part.images.flatten(1).float().mean(dim=1) < 100
        assert torch.equal(dark, part.labels == 0)
    shades = [set(part.images[:, 0, 0, 0].tolist()) for part in (data.train, data.val, data.test)]
    assert sum(map(len, shades)) == 40 and len(set.union(*shades)) == 40


def test_resizing_is_smooth_as_pillows_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 30), np.uint8)
    for size in ((10, 12), (40, 36)):
        wanted = np.array(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC)).astype(int)
        found = resized(torch.from_numpy(pixels)[None, None], size)[0, 0].numpy().astype(int)
        assert np.abs(found - wanted).mean() < 0.5  # Pillow rounds and clips between rows and columns


def test_copies_stay_together_in_every_format_that_is_exact(tmp_path: Path) -> None:
    colours = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8))
    few = colours.quantize(4)
    order = [2, 0, 3, 1]
    other = few.remap_palette(order)  # the same colours, under other numbers
    assert few.tobytes() != other.tobytes() and few.convert("RGB").tobytes() == other.convert("RGB").tobytes()
    for name, image in {"a.png": colours, "a.bmp": colours, "b.png": few, "c.png": other}.items():
        image.save(tmp_path / name)
    assert _content(tmp_path / "a.png") == _content(tmp_path / "a.bmp")
    assert _content(tmp_path / "b.png") == _content(tmp_path / "c.png") != _content(tmp_path / "a.png")


def test_an_image_that_is_added_moves_few_others_and_of_its_class_alone(folder: Path) -> None:
    def split_of() -> dict[int, int]:
        parts = load("folder", folder).splits.values()
        return {shade: k for k, part in enumerate(parts) for shade in part.images[:, 0, 0, 0].tolist()}

    for k in range(20, 40):
        before = split_of()
        write(folder / "cat" / f"{k}.png", (20, 30), (k, k, k))
        after = split_of()
        moved = [shade for shade in before if before[shade] != after[shade]]
        assert len(after) == len(before) + 1 and len(moved) <= 2
        assert all(shade < 100 and abs(before[shade] - after[shade]) == 1 for shade in moved)


def test_images_that_are_renamed_or_copied_stay_in_their_split(folder: Path) -> None:
    """Else a model would be tested on what it was trained on."""

    def shades() -> list[set[int]]:
        data = load("folder", folder)
        return [set(part.images[:, 0, 0, 0].tolist()) for part in (data.train, data.val, data.test)]

    before = shades()
    for path in sorted((folder / "cat").glob("*.png")):
        (folder / "cat" / f"{path.stem} copy.png").write_bytes(path.read_bytes())
        path.rename(path.with_name(f"img_{path.name}"))
    assert shades() == before
    for path in (folder / "dog").glob("*.png"):  # as a viewer does that adds a rating
        told = PngInfo()
        told.add_text("Rating", "5")
        with Image.open(path) as image:
            image.save(path, pnginfo=told, compress_level=1)
    assert shades() == before


def test_a_jpeg_is_its_segments_without_metadata(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8))
    plain, told, other = (tmp_path / f"{name}.jpg" for name in ("plain", "told", "other"))
    exif = Image.Exif()
    exif[0x4746] = 5  # a rating
    image.save(plain)
    image.save(told, exif=exif, comment="a comment")
    image.save(other, quality=90)
    assert plain.read_bytes() != told.read_bytes()
    assert _content(plain) == _content(told) != _content(other)
    assert len(plain.read_bytes()) > len(_content(plain)) > 300
    assert _without_metadata(b"\xff\xd8\xff\xe0") == b"\xff\xe0"  # cut short
    whole = told.read_bytes()
    told.write_bytes(whole[:2] + b"\xff\xff" + whole[2:])  # filled up before the first marker
    assert _content(plain) == _content(told)


def test_of_a_stereo_photo_the_first_picture_is_read(tmp_path: Path) -> None:
    for k in range(20):
        left, right = (Image.new("RGB", (28, 28), (shade, 0, 0)) for shade in (10 * k, 255))
        for name in ("cat", "dog"):
            (tmp_path / name).mkdir(exist_ok=True)
        left.save(tmp_path / "cat" / f"{k}.mpo", save_all=True, append_images=[right])
        write(tmp_path / "dog" / f"{k}.png", (28, 28), (0, 0, k))
    data = load("folder", tmp_path)
    cats = [part.images[part.labels == 0][:, 0] for part in data.splits.values()]
    assert sum(map(len, cats)) == 20 and max(int(part.max()) for part in cats) < 200


def test_images_of_other_formats_are_not_passed_over(folder: Path) -> None:
    for name in ("phone.HEIC", "numbers.npy"):
        (folder / "dog" / name).write_bytes(b"")
        with pytest.raises(ValueError, match=rf"dog must hold images as .png, .* got 1 others, such as {name}"):
            load("folder", folder)
        (folder / "dog" / name).unlink()


def test_the_first_images_are_of_all_classes(folder: Path) -> None:
    data = load("folder", folder)
    assert set(data.train.labels[:10].tolist()) == {0, 1} and data.note == "split by content, stratified by class"


def test_folders_one_level_too_deep(folder: Path) -> None:
    write(folder / "test" / "cat" / "1.png", (5, 5), (1, 1, 1))
    write(folder / "test" / "1.png", (5, 5), (1, 1, 1))
    with pytest.raises(
        ValueError, match=r"test must hold the images of one class, got the folders cat: data.root has one"
    ):
        load("folder", folder)


def test_a_split_that_is_given_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for k in range(40):
        write(tmp_path / "train" / "dog" / f"{k}.png", (5, 5), (k, k, k))
        write(tmp_path / "train" / "cat" / f"{k}.png", (5, 5), (100 + k, 100 + k, 100 + k))
        write(tmp_path / "test" / "dog" / f"{k}.png", (5, 5), (200 + k, 200 + k, 200 + k))
    data = load("folder", tmp_path)
    assert data.classes == ("cat", "dog") and len(data.train) + len(data.val) == 80 and len(data.test) == 40
    assert 0 < len(data.val) < 20 and data.train.images.max() < 200 <= data.test.images.min()
    assert data.note == "split by its folders, a tenth of train validates"
    assert "the test split has no image of cat, so it says nothing of them" in caplog.text
    write(tmp_path / "val" / "cat" / "one.png", (5, 5), (199, 199, 199))
    data = load("folder", tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (80, 1, 40) and data.note == "split by its folders"
    assert "copies" not in caplog.text
    write(tmp_path / "val" / "cow" / "one.png", (5, 5), (9, 9, 9))
    with pytest.raises(ValueError, match="val must have the classes of train, got cow too"):
        load("folder", tmp_path)


def test_copies_of_training_images_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for k in range(40):
        for split, grey in (("train", k), ("val", 100 + k), ("test", 200 + k if k > 2 else k)):
            for name, more in (("dog", 0), ("cat", 50)):
                write(tmp_path / split / name / f"{k}.png", (5, 5), (min(grey + more, 255),) * 3)
    said = "split by its folders; 6 of its 80 test images are copies of training images"
    assert load("folder", tmp_path).note == said
    assert f"{tmp_path}{said[20:]}: their error says little of new ones" in caplog.text


def test_torchs_loader_takes_a_split() -> None:
    images, labels = next(iter(torch.utils.data.DataLoader(load("digits").val, batch_size=4)))  # type: ignore[arg-type]
    torch.testing.assert_close(images, to_float(load("digits").val.images[:4]))
    assert torch.equal(labels, load("digits").val.labels[:4])


def test_folder_with_colour(folder: Path) -> None:
    write(folder / "dog" / "red.png", (5, 5), (255, 0, 0))
    assert load("folder", folder).image_shape == (3, 28, 28)


def test_folder_with_an_unreadable_file(folder: Path) -> None:
    (folder / "dog" / "broken.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(ValueError, match=r"broken.png cannot be read as an image"):
        load("folder", folder)


def test_folder_with_an_image_that_pillow_has_no_name_for(folder: Path) -> None:
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(folder / "dog" / "palette.bmp")
    raw = bytearray((folder / "dog" / "palette.bmp").read_bytes())
    raw[46:50] = (300).to_bytes(4, "little")  # colours, of 256 that there can be
    (folder / "dog" / "palette.bmp").write_bytes(raw)
    with pytest.raises(ValueError, match=r"palette.bmp cannot be read as an image"):
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
    (folder / "emu").mkdir()
    with pytest.raises(ValueError, match=r"emu must have more images .* none came to the train split"):
        load("folder", folder)


def test_folder_without_images_to_test_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "1.png", (5, 5), (1, 1, 1))  # which is drawn to train
    with pytest.raises(ValueError, match=r"must have more images: of 2 none came to the val split"):
        load("folder", tmp_path)


def test_images_as_cameras_and_tools_write_them(tmp_path: Path) -> None:
    deep = Image.fromarray(np.array([[0, 256 * 40, 256 * 200, 65535]], np.uint16))
    deep.save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png", (1, 4), 1).flatten().tolist() == [0, 40, 200, 255]
    deep.save(tmp_path / "deep.png", transparency=256 * 40)
    assert read_image(tmp_path / "deep.png", (1, 4), 1).flatten().tolist() == [0, 255, 200, 255]
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    assert bool((read_image(tmp_path / "clear.png", (4, 4)) == 255).all())
    turned = Image.fromarray(np.array([[0, 255], [0, 255]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 3  # held upside down
    turned.save(tmp_path / "turned.png", exif=exif)
    assert read_image(tmp_path / "turned.png", (2, 2), 1).flatten().tolist() == [255, 0, 255, 0]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_once(tmp_path: Path, orientation: int, deep: bool) -> None:
    image = Image.fromarray((np.arange(6).reshape(2, 3) * 40).astype(np.uint8))
    if deep:
        image = Image.fromarray((np.arange(6).reshape(2, 3) * 40 * 256).astype(np.uint16))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("turned.png", "turned.tif"):
        image.save(tmp_path / name, exif=exif)
    size = (2, 3) if orientation < 5 else (3, 2)
    png, tif = (read_image(tmp_path / name, size, 1).tolist() for name in ("turned.png", "turned.tif"))
    assert png == tif and (png[0] == [[0, 40, 80], [120, 160, 200]]) == (orientation == 1)


def tiff(path: Path, bits: int, photometric: int, data: bytes) -> Path:
    """Two grey pixels beside each other, as cameras and scanners may write them and Pillow does not."""
    tags = [
        (256, 2),
        (257, 1),
        (258, bits),
        (259, 1),
        (262, photometric),
        (273, 122),
        (277, 1),
        (278, 1),
        (279, len(data)),
    ]
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data)
    return path


@pytest.mark.parametrize(
    ("bits", "photometric", "data", "wanted"),
    [
        (12, 1, b"\xff\xf8\x00", [255, 128]),
        (16, 1, b"\xff\xff\x00\x80", [255, 128]),
        (16, 0, b"\xff\xff\x00\x80", [0, 127]),
        (8, 0, b"\xff\x80", [0, 127]),
    ],
)
def test_what_is_white_in_a_tiff(tmp_path: Path, bits: int, photometric: int, data: bytes, wanted: list[int]) -> None:
    path = tiff(tmp_path / "two.tif", bits, photometric, data)
    assert read_image(path, (1, 2), 1).flatten().tolist() == wanted


@pytest.mark.parametrize("orientation", range(10))
def test_images_are_turned_as_pillow_turns_them(tmp_path: Path, orientation: int) -> None:
    """Whatever else their camera wrote: Pillow writes it all anew, and fails on a text for a number."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 4), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "plain.png", exif=exif)
    written = exif.tobytes()
    # A second entry, of a text where a number is wanted: that of the unit of resolution.
    assert written[:8] == b"Exif\0\0II" or written[:8] == b"Exif\0\0MM"
    order = "little" if written[6:8] == b"II" else "big"
    first = written[16:28]
    odd = (0x0128).to_bytes(2, order) + (2).to_bytes(2, order) + (2).to_bytes(4, order) + b"a\0\0\0"
    image.save(tmp_path / "odd.png", exif=written[:14] + (2).to_bytes(2, order) + first + odd + bytes(4))
    with Image.open(tmp_path / "plain.png") as told:
        wanted = np.array(ImageOps.exif_transpose(told))
    for name in ("plain", "odd"):
        assert np.array_equal(read_image(tmp_path / f"{name}.png", (4, 4), 1)[0].numpy(), wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_images_whose_white_is_not_known(tmp_path: Path, dtype: type) -> None:
    Image.fromarray(np.array([[0, 1]], dtype)).save(tmp_path / "deep.tiff")
    with pytest.raises(ValueError, match=r"deep.tiff must have 8 or 16 bits a channel, got Pillow's mode [IF]"):
        read_image(tmp_path / "deep.tiff", (1, 2))


def test_data_say_what_they_are_and_not_every_pixel() -> None:
    digits = load("digits")
    assert repr(digits) == "Dataset(digits: 10 classes, [1, 28, 28]; train 1,257, val 180, test 360)"
    toys = Images(torch.zeros(2, 1, 3, 4, dtype=torch.uint8), torch.zeros(2).long(), {"toy": torch.zeros(2).long()})
    assert repr(toys) == "Images(2 of [1, 3, 4], toy)"


def test_data_are_compared_and_kept_in_sets_as_objects() -> None:
    one, two = load("digits"), load("digits")
    assert one != two and one.train != two.train and len({one, two}) == 2


def test_images_too_large_to_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "large.png", (50, 50), (1, 1, 1))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"large.png cannot be read as an image: Image size \(2500 pixels\)"):
        read_image(tmp_path / "large.png", (5, 5))


def test_resized_images_stay_within_black_and_white() -> None:
    """Bicubic interpolation overshoots at an edge; its uint8 must not wrap around. More images than go at once."""
    step = torch.zeros(1001, 1, 8, 8, dtype=torch.uint8)
    step[..., 4:] = 255
    wide = resized(step, (8, 16))
    assert wide.shape == (1001, 1, 8, 16) and bool((wide.diff(dim=3).int() >= 0).all())
    assert bool((wide[..., :5] == 0).all()) and bool((wide[..., 11:] == 255).all())


@pytest.mark.parametrize("size", [28, (28,), (0, 5), (5, 5, 5), (5.0, 5), "ab"])
def test_sizes_that_are_none(size: object) -> None:
    with pytest.raises(ValueError, match=r"data.image_size must be "):
        load("digits", image_size=size)  # type: ignore[arg-type]


def test_a_folder_below_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load("folder", f"~/{folder.name}").name == folder.name
    monkeypatch.chdir(folder)
    assert load("folder", ".").name == folder.name


def test_floats_are_not_divided_again() -> None:
    images = torch.rand(2, 1, 3, 3)
    assert to_float(images) is images
    with pytest.raises(ValueError, match=r"images must be uint8, uint16 or float32, got torch.float64"):
        to_float(images.double())


def test_bundled_data_have_no_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data.root must be left alone for digits, which has no files; got .*x"):
        load("digits", tmp_path / "x")


def test_no_folder(tmp_path: Path) -> None:
    for root in (None, tmp_path / "absent"):
        with pytest.raises(ValueError, match=r"data.root must be a folder with one sub-folder a class"):
            load("folder", root)


def test_factors_go_with_their_images() -> None:
    every = Images(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.arange(3), {"toy": torch.tensor([7, 8, 9])})
    assert every.take(torch.tensor([2, 0])).factors["toy"].tolist() == [9, 7]
    assert every.take(torch.tensor([True, False, True])).to("cpu").factors["toy"].tolist() == [7, 9]
    assert every.to("meta").factors["toy"].device.type == "meta"
    with pytest.raises(ValueError, match=r"toy must be \[N=3\] int64, got \[2\] of torch.int64"):
        Images(every.images, every.labels, {"toy": torch.tensor([7, 8])})


def test_novel_images_are_a_split_where_there_are_any() -> None:
    good = images(2, [0, 1])
    assert list(Dataset("toy", ("a", "b"), good, good, good).splits) == ["train", "val", "test"]
    assert list(Dataset("toy", ("a", "b"), good, good, good, {"novel": good}).splits) == [
        "train",
        "val",
        "test",
        "novel",
    ]
    with pytest.raises(ValueError, match=r"toy: novel labels must be 0 … 1, got 0 … 2"):
        Dataset("toy", ("a", "b"), good, good, good, {"novel": images(2, [0, 2])})


def test_the_fixed_order_is_the_same_for_good() -> None:
    """The splits follow from it: with another, models would be tested on what they were trained on."""
    assert fixed_order(60_000, 0)[:6].tolist() == [36044, 10678, 57327, 55074, 21567, 15479]
    assert load("digits").val.labels[:12].tolist() == [7, 1, 9, 8, 5, 0, 4, 5, 6, 5, 8, 9]


def test_16_bits_as_floats_by_hand() -> None:
    values = [0, 1, 32767, 32768, 65535]
    deep = torch.tensor(values).to(torch.uint16)
    assert to_float(deep).tolist() == (torch.tensor(values).float() / 65535).tolist()
    images = Images(deep.view(5, 1, 1, 1), torch.arange(5))
    index = torch.tensor([4, 2])
    assert torch.equal(images.floats(index).flatten(), torch.tensor([1.0, 32767 / 65535]))
    assert images.take(index).images.flatten().tolist() == [65535, 32767]
    mask = torch.tensor([False, True, False, False, True])
    assert images.take(mask).images.dtype == torch.uint16 and images.take(mask).labels.tolist() == [1, 4]
    wide, plain = (resized(x.view(1, 1, 1, 5), (1, 10)) for x in (deep, deep.float()))
    assert wide.dtype == torch.uint16 and plain.max() > 65535  # floats are not clipped
    assert torch.equal(wide.float(), plain.round().clamp(0, 65535))
