"""Your own images: a folder with one sub-folder for each class."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import Dataset, Images, fixed_order

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff")
#: Of images that Pillow cannot read, or not everywhere: refused, instead of passed over.
_OTHERS = (".heic", ".heif", ".avif", ".jp2", ".dng", ".svg")

#: Shares of the images that are kept for validation and for test.
VALIDATION, TEST = 0.1, 0.2


def load_folder(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
    """Images of any size in one sub-folder a class; colour if any image has colour.

    About 70 % train, 10 % validate and 20 % test. Which does what follows from its pixels alone: so images that are
    added later, renamed or given other metadata move none, and exact copies of one stay together.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to; by default 28×28.

    Raises:
        ValueError: no such folder, fewer than two classes, folders within those of the classes, a class without
            images to train on, no images to validate or test on, or an image that cannot be read.
    """
    if root is None or not root.is_dir():
        raise ValueError(f"data.root must be a folder with one sub-folder a class, got {root}")
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise ValueError(f"{root} must have at least two sub-folders, one a class; got {len(classes)}: {classes}")
    files = [path for name in classes for path in _files(root / name)]
    labels = torch.tensor([classes.index(path.parent.name) for path in files], dtype=torch.int64)
    found = [_read(path, image_size or (28, 28)) for path in files]
    parts = [part for _, part in found]
    for name in classes:
        if not any(path.parent.name == name and part == "train" for path, part in zip(files, parts, strict=True)):
            raise ValueError(
                f"{root / name} must have more images ({', '.join(SUFFIXES)}): none came to the train split"
            )
    for part in ("val", "test"):
        if part not in parts:
            raise ValueError(f"{root} must have more images: of {len(files)} none came to the {part} split")
    images = torch.stack([image for image, _ in found])  # [N, 3, H, W]
    if bool((images == images[:, :1]).all()):
        images = images[:, :1]
    every = Images(images, labels)
    splits = []
    for name in ("train", "val", "test"):
        chosen = every.take(torch.tensor([part == name for part in parts]))
        splits.append(chosen.take(fixed_order(len(chosen), 0)))  # the first n are of all classes
    return Dataset(root.resolve().name, tuple(classes), *splits, note="split by pixels")


def _files(folder: Path) -> list[Path]:
    """The images of one class, none of which is passed over."""
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


def _read(path: Path, size: tuple[int, int]) -> tuple[Tensor, str]:
    """An image as :func:`read_image` gives it, and its split, by a number 0 … 1 drawn from all of its pixels."""
    image = _whole(path).convert("RGB")
    drawn = hashlib.sha256(f"{image.width}×{image.height}".encode() + image.tobytes()).digest()
    draw = int.from_bytes(drawn[:8]) / 2**64
    part = "test" if draw < TEST else "val" if draw < TEST + VALIDATION else "train"
    return _resized(image, size), part


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
    return _resized(_whole(path).convert("RGB" if channels == 3 else "L"), size)


def _whole(path: Path) -> Image.Image:
    """An image in its own size, upright, of 8 bits a channel, on white where it is transparent."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode in ("I", "F"):
                raise ValueError(f"{path} must have 8 or 16 bits a channel, got Pillow's mode {image.mode}")
            if image.mode.startswith("I;16"):  # Pillow would clip all 16-bit greys above 255
                image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
            if image.has_transparency_data:
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
            image.load()
            return image
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error


def _resized(image: Image.Image, size: tuple[int, int]) -> Tensor:
    """Pixels ``[C, H, W]`` in another size, (height, width)."""
    from PIL import Image

    pixels = np.array(image.resize((size[1], size[0]), Image.Resampling.BICUBIC))
    return torch.from_numpy(pixels).view(*size, -1).permute(2, 0, 1)
