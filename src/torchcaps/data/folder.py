"""Your own images: a folder with one sub-folder for each class."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import Dataset, Images, fixed_order

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff")
#: Images that are not read are refused, instead of passed over.
_OTHERS = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".svg", ".tga", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),  # raw
)

#: Shares of the images that are kept for validation and for test.
VALIDATION, TEST = 0.1, 0.2


def load_folder(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
    """Images of any size in one sub-folder a class; colour if any image has colour.

    About 70 % train, 10 % validate and 20 % test. Which does what follows from its content alone: so images that are
    added later, renamed or given other metadata (in PNG and JPEG) move none, and exact copies of one stay together.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to; by default 28×28.

    Raises:
        ValueError: no such folder, fewer than two classes, folders within those of the classes, a class without
            images to train on, no images to validate or test on, or an image that cannot be read or is of a format
            that is not.
    """
    if root is None or not root.is_dir():
        raise ValueError(f"data.root must be a folder with one sub-folder a class, got {root}")
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise ValueError(f"{root} must have at least two sub-folders, one a class; got {len(classes)}: {classes}")
    files = [path for name in classes for path in _files(root / name)]
    labels = torch.tensor([classes.index(path.parent.name) for path in files], dtype=torch.int64)
    parts = [_part(path) for path in files]
    for name in classes:
        if not any(path.parent.name == name and part == "train" for path, part in zip(files, parts, strict=True)):
            raise ValueError(
                f"{root / name} must have more images ({', '.join(SUFFIXES)}): none came to the train split"
            )
    for part in ("val", "test"):
        if part not in parts:
            raise ValueError(f"{root} must have more images: of {len(files)} none came to the {part} split")
    images = torch.stack([read_image(path, image_size or (28, 28)) for path in files])  # [N, 3, H, W]
    if bool((images == images[:, :1]).all()):
        images = images[:, :1]
    every = Images(images, labels)
    splits = []
    for name in ("train", "val", "test"):
        chosen = every.take(torch.tensor([part == name for part in parts]))
        splits.append(chosen.take(fixed_order(len(chosen), 0)))  # the first n are of all classes
    return Dataset(root.resolve().name, tuple(classes), *splits, note="split by content, without metadata")


def _files(folder: Path) -> list[Path]:
    """The images of one class."""
    every = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    deeper = [path.name for path in every if path.is_dir()]
    if deeper:  # train/dog and test/dog, perhaps, instead of dog
        raise ValueError(
            f"{folder} must hold the images of one class, got the folders {', '.join(deeper)}: data.root has one "
            "level of sub-folders, one a class, and what trains, validates and tests is drawn from each"
        )
    unread = [path for path in every if path.suffix.lower() in _OTHERS]
    if unread:
        raise ValueError(
            f"{folder} must hold images as {', '.join(SUFFIXES)}, got {len(unread)} others, such as {unread[0].name}"
        )
    return [path for path in every if path.suffix.lower() in SUFFIXES]


def _part(path: Path) -> str:
    """The split of an image, by a number 0 … 1 drawn from what it shows."""
    draw = int.from_bytes(hashlib.sha256(_content(path)).digest()[:8]) / 2**64
    return "test" if draw < TEST else "val" if draw < TEST + VALIDATION else "train"


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
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        if not 0xE0 <= jpeg[at + 1] <= 0xEF and jpeg[at + 1] != 0xFE:
            kept.append(jpeg[at:end])
        at = end
    return b"".join(kept) + jpeg[at:]


def read_image(path: Path, size: tuple[int, int], channels: int = 3) -> Tensor:
    """Read one image as ``[C, H, W]`` uint8, resized to (height, width); transparency becomes white.

    Args:
        path: the file.
        size: (height, width).
        channels: 3 for colour, 1 for grey.

    Raises:
        ValueError: the file is missing, not an image, or one of which is not known what is black and white (floats
            and 32 bits).
    """
    from PIL import Image, ImageOps

    with _opened(path) as file:
        image = ImageOps.exif_transpose(file)
        if image.mode in ("I", "F"):
            raise ValueError(f"{path} must have 8 or 16 bits a channel, got Pillow's mode {image.mode}")
        if image.mode.startswith("I;16"):  # Pillow would clip all 16-bit greys above 255
            image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image = image.convert("RGB" if channels == 3 else "L")
        resized = image.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(resized)).view(*size, channels).permute(2, 0, 1)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An image while it is read: whatever is broken in it is named."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            yield file
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
