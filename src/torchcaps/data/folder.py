"""Your own images: a folder with one sub-folder for each class."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import Dataset, Images, fixed_order
from torchcaps.data.splits import check_apart, find_groups, stratify

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".mpo")
#: Images that are not read are refused, instead of passed over.
_OTHERS = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".svg", ".tga", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(".ico", ".pcx", ".exr", ".hdr", ".npy"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),  # raw
)

#: EXIF's number for how the camera was held.
_ORIENTATION = 0x0112
#: Of a TIFF: bits of each channel, and what its greys mean.
_BITS, _PHOTOMETRIC = 258, 262
SPLITS = ("train", "val", "test")
#: Shares of the images that are kept for validation and for test.
VALIDATION, TEST = 0.1, 0.2


def load_folder(
    root: Path | None = None, image_size: tuple[int, int] | None = None, groups: str | None = None
) -> Dataset:
    """Images of any size in one sub-folder a class; colour if any image has colour.

    Of each class about 70 % train, 10 % validate and 20 % test; of three images one each. Which do follows from their
    content alone: so images that are added later move at most their nearest few, those that are renamed or given other
    metadata (in PNG and JPEG) none, and exact copies of one stay together.

    Images of one patient, object or camera are more alike than others, and belong into one split. ``groups`` says which
    those are; classes are shared out as evenly as whole groups allow, and the place of a group follows from its name.

    A folder that holds ``train`` and ``test``, perhaps ``val``, and no others, with the classes' sub-folders in each,
    is split as it says; without ``val`` a tenth of ``train`` validates. Images of ``test`` or ``val`` that are copies
    of training images stay there, are counted in the data's note (which results keep), and logged.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to, whatever their proportions; by default 28×28.
        groups: whose image each is: a regular expression on its file name, such as ``"^(p[0-9]+)_"``, or a ``.csv``
            table with the columns ``file`` and ``group`` (:func:`~torchcaps.data.groups.find_groups`). With it the
            classes' folders may have sub-folders. The groups' numbers become ``Images.factors["group"]``.

    Raises:
        ValueError: no such folder, fewer than two classes, folders within those of the classes, a class without
            images to train on, no images to validate or test on, or an image that cannot be read or is of a format
            that is not; images without a group, or a group in two splits that are given.
    """
    if root is None or not root.is_dir():
        raise ValueError(f"data.root must be a folder with one sub-folder a class, got {root}")
    given = _given_splits(root)
    home = root / "train" if given else root
    classes = _folders(home)
    if len(classes) < 2:
        raise ValueError(f"{home} must have at least two sub-folders, one a class; got {len(classes)}: {classes}")
    found = _find(root, given, classes, groups)
    split_of = _as_given(found) if given else _shared_out(found, {"test": TEST, "val": VALIDATION})
    if given and "val" not in given:
        train = [k for k, split in enumerate(split_of) if split == "train"]
        for k, split in zip(train, _shared_out([found[k] for k in train], {"val": VALIDATION}), strict=True):
            split_of[k] = split
    _require_all(root, home, classes, found, split_of)
    images = torch.stack([read_image(image.path, image_size or (28, 28)) for image in found])  # [N, 3, H, W]
    if bool((images == images[:, :1]).all()):
        images = images[:, :1]
    labels = torch.tensor([classes.index(image.label) for image in found], dtype=torch.int64)
    number = {name: k for k, name in enumerate(sorted({image.group for image in found}))}
    whose = torch.tensor([number[image.group] for image in found], dtype=torch.int64)
    every = Images(images, labels, {} if groups is None else {"group": whose})
    parts = []
    for split in SPLITS:
        chosen = every.take(torch.tensor([each == split for each in split_of]))
        parts.append(chosen.take(fixed_order(len(chosen), 0)))  # the first n are of all classes
    by = "" if groups is None else f" in the groups of {groups}"
    note = f"split by content{by}, stratified by class"
    if given:
        note = f"split by its folders{by}" + ("" if "val" in given else ", a tenth of train validates")
        note += _copies(root, found, split_of)
    return Dataset(root.resolve().name, tuple(classes), *parts, note=note)


class _Found(NamedTuple):
    """An image file, its class, the split that its folder gives, a digest of what it shows, and its group's name."""

    path: Path
    label: str
    given: str
    digest: bytes
    group: str


def _find(root: Path, given: Sequence[str], classes: Sequence[str], groups: str | None) -> list[_Found]:
    """All images, class by class."""
    homes = [(split, name, root / split / name) for split in given or ("",) for name in classes]
    for split in given:
        others = sorted(set(_folders(root / split)) - set(classes))
        if others:
            raise ValueError(f"{root / split} must have the classes of train, got {', '.join(others)} too")
    files = [
        (path, home, name, split)
        for split, name, home in homes
        if home.is_dir()
        for path in _files(home, deeper=groups is not None)
    ]
    named = [""] * len(files) if groups is None else find_groups(groups, root, [each[:2] for each in files])
    return [
        _Found(path, name, split, _digest(path), group)
        for (path, _, name, split), group in zip(files, named, strict=True)
    ]


def _as_given(found: Sequence[_Found]) -> list[str]:
    split_of = [image.given for image in found]
    grouped = [k for k, image in enumerate(found) if image.group]
    check_apart([found[k].group for k in grouped], [split_of[k] for k in grouped])
    return split_of


def _shared_out(found: Sequence[_Found], shares: dict[str, float]) -> list[str]:
    """The split of each image; a group goes where its name leads it, however its images come and go."""
    ties = [(image.digest, image.group) if image.group else (image.digest,) for image in found]
    draws = [hashlib.sha256(image.group.encode()).digest() if image.group else image.digest for image in found]
    return stratify([image.label for image in found], ties, draws, shares)


def _require_all(
    root: Path, home: Path, classes: Sequence[str], found: Sequence[_Found], split_of: Sequence[str]
) -> None:
    """See that every class trains and every split has images; say which class a split lacks."""
    there = {(image.label, split) for image, split in zip(found, split_of, strict=True)}
    for name in classes:
        if (name, "train") not in there:
            raise ValueError(
                f"{home / name} must have more images ({', '.join(SUFFIXES)}): none came to the train split"
            )
    for split in SPLITS:
        absent = [name for name in classes if (name, split) not in there]
        if len(absent) == len(classes):
            raise ValueError(
                f"{root} must have more images: of {len(found)} none came to the {split} split, which takes three of a "
                "class that show something different, or of three groups"
            )
        if absent:
            logging.getLogger("torchcaps").warning(
                "%s: the %s split has no image of %s, so it says nothing of them", root, split, ", ".join(absent)
            )


def _copies(root: Path, found: Sequence[_Found], split_of: Sequence[str]) -> str:
    """How many images outside the train split show what one in it does."""
    digests = {
        name: [image.digest for image, split in zip(found, split_of, strict=True) if split == name] for name in SPLITS
    }
    trained_on = set(digests["train"])
    said = ""
    for split in ("val", "test"):
        n = sum(digest in trained_on for digest in digests[split])
        if n:
            said += f"; {n} of its {len(digests[split])} {split} images are copies of training images"
    if said:
        logging.getLogger("torchcaps").warning("%s%s: their error says little of new ones", root, said)
    return said


def _given_splits(root: Path) -> list[str]:
    """The folders of splits, if these are what there is; none if the folders are classes."""
    names = _folders(root)
    if not {"train", "test"} <= set(names) <= set(SPLITS):
        return []
    return names if all(_folders(root / name) for name in names) else []


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path, *, deeper: bool) -> list[Path]:
    """The images of one class, of its sub-folders too where these may be."""
    every = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in every if path.is_dir()]
    if folders and not deeper:  # train/dog and test/dog, perhaps, instead of dog
        raise ValueError(
            f"{folder} must hold the images of one class, got the folders {', '.join(path.name for path in folders)}: "
            "data.root has one level of sub-folders, one a class, or above these the folders train, test and perhaps "
            "val alone; folders of patients or objects below a class's want data.options.groups, such as '^(.+)/'"
        )
    unread = [path for path in every if path.suffix.lower() in _OTHERS]
    if unread:
        raise ValueError(
            f"{folder} must hold images as {', '.join(SUFFIXES)}, got {len(unread)} others, such as {unread[0].name}"
        )
    here = [path for path in every if path.suffix.lower() in SUFFIXES and not path.is_dir()]
    return here + [path for below in folders for path in _files(below, deeper=True)]


def _digest(path: Path) -> bytes:
    """A number drawn from what an image shows."""
    return hashlib.sha256(_content(path)).digest()


def _content(path: Path) -> bytes:
    """What a viewer that adds a rating leaves alone. Not the pixels of JPEG: other decoders round them otherwise."""
    with _opened(path) as image:
        if image.format in ("JPEG", "MPO"):
            return _without_metadata(path.read_bytes())
        if image.format in ("PNG", "BMP"):
            flat = image.convert("RGBA") if image.mode == "P" else image
            return f"{flat.mode} {flat.width}×{flat.height} ".encode() + flat.tobytes()
    return path.read_bytes()


def _without_metadata(jpeg: bytes) -> bytes:
    """A JPEG file without its segments for applications (EXIF, colour profiles, previews) and comments."""
    kept, at = [], 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] != 0xDA:  # up to the scan
        if jpeg[at + 1] == 0xFF:  # before a marker any number of these may stand
            at += 1
            continue
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        if not 0xE0 <= jpeg[at + 1] <= 0xEF and jpeg[at + 1] != 0xFE:
            kept.append(jpeg[at:end])
        at = end
    return b"".join(kept) + jpeg[at:]


class _OfTheFile(ValueError):
    """Says already what is wrong with which file."""


def read_image(path: Path, size: tuple[int, int], channels: int = 3) -> Tensor:
    """Read one image as ``[C, H, W]`` uint8, resized to (height, width); transparency becomes white.

    Args:
        path: the file.
        size: (height, width).
        channels: 3 for colour, 1 for grey.

    Raises:
        ValueError: the file is missing, not an image, or one of which is not known what is black and white (floats
            and 32 bits; of 16 bits 65535 is taken for white, whatever the brightest pixel is).
    """
    from PIL import Image

    with _opened(path) as file:
        image = _upright(file)
        if image.mode in ("I", "F"):
            raise _OfTheFile(f"{path} must have 8 or 16 bits a channel, got Pillow's mode {image.mode}")
        if image.mode.startswith("I;16"):  # Pillow would clip all 16-bit greys above 255
            grey, clear = np.array(image), image.info.get("transparency")
            bits, black_is_zero = _of_a_tiff(file)
            eight = grey >> (bits - 8) if black_is_zero else 255 - (grey >> (bits - 8))
            image = Image.fromarray(np.where(grey == clear, 255, eight).astype(np.uint8))
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image = image.convert("RGB" if channels == 3 else "L")
        resized = image.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(resized)).view(*size, channels).permute(2, 0, 1)


def _of_a_tiff(file: Image.Image) -> tuple[int, bool]:
    """Bits of a grey, and whether 0 is black; Pillow reads 12 bits as if they were the lowest of 16, and white as 0."""
    tags = getattr(file, "tag_v2", {})
    return tags.get(_BITS, (16,))[0], tags.get(_PHOTOMETRIC, 1) != 0


def _upright(image: Image.Image) -> Image.Image:
    """As its camera was held. (Pillow's ``exif_transpose`` writes all of EXIF anew, and fails where a tag is odd.)"""
    from PIL import Image

    image.load()  # a TIFF is turned by that, and then no longer says that it wants to be
    turn = Image.Transpose
    turns = (turn.FLIP_LEFT_RIGHT, turn.ROTATE_180, turn.FLIP_TOP_BOTTOM, turn.TRANSPOSE)
    turns = dict(enumerate((*turns, turn.ROTATE_270, turn.TRANSVERSE, turn.ROTATE_90), 2))
    orientation = image.getexif().get(_ORIENTATION)
    return image.transpose(turns[orientation]) if orientation in turns else image


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An image while it is read: whatever is broken in it is named."""
    from PIL import Image

    try:
        # Opened here: a file that Pillow opens itself it may map into memory, and then turns an oblong TIFF wrongly.
        with path.open("rb") as raw, Image.open(raw) as file:
            yield file
    except _OfTheFile:
        raise
    # Pillow has them all.
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
