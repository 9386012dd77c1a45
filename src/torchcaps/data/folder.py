"""Your own images: a folder with one sub-folder for each class."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import Dataset, Images, fixed_order

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")

#: Shares of the images that are kept for validation and for test.
VALIDATION, TEST = 0.1, 0.2


def load_folder(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
    """Images of any size in one sub-folder a class; colour if any image has colour.

    About 70 % train, 10 % validate and 20 % test. Which does what follows from its file's content alone: so images
    that are added later or renamed move none, and exact copies of one stay together.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to; by default 28×28.

    Raises:
        ValueError: no such folder, fewer than two classes, folders within those of the classes alone, a class without
            images to train on, no images to validate or test on, or a file that cannot be read as an image.
    """
    if root is None or not root.is_dir():
        raise ValueError(f"data.root must be a folder with one sub-folder a class, got {root}")
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise ValueError(f"{root} must have at least two sub-folders, one a class; got {len(classes)}: {classes}")
    files = [
        path
        for name in classes
        for path in sorted((root / name).iterdir())
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
    labels = torch.tensor([classes.index(path.parent.name) for path in files], dtype=torch.int64)
    parts = [_part(path) for path in files]
    for name in classes:
        if not any(path.parent.name == name for path in files):
            _refuse_deeper(root / name)
        if not any(path.parent.name == name and part == "train" for path, part in zip(files, parts, strict=True)):
            raise ValueError(
                f"{root / name} must have more images ({', '.join(SUFFIXES)}): none came to the train split"
            )
    for part in ("val", "test"):
        if part not in parts:
            raise ValueError(f"{root} must have more images: of {len(files)} none came to the {part} split")
    size = image_size or (28, 28)
    images = torch.stack([read_image(path, size) for path in files])  # [N, 3, H, W]
    if bool((images == images[:, :1]).all()):
        images = images[:, :1]
    every = Images(images, labels)
    splits = []
    for name in ("train", "val", "test"):
        found = every.take(torch.tensor([part == name for part in parts]))
        splits.append(found.take(fixed_order(len(found), 0)))  # the first n are of all classes
    return Dataset(root.resolve().name, tuple(classes), *splits, note="split by content")


def _refuse_deeper(folder: Path) -> None:
    """Say why nothing was found, where train/dog and test/dog were given instead of dog."""
    deeper = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if deeper:
        raise ValueError(
            f"{folder} must hold the images of one class, got the folders {', '.join(deeper)}: data.root has one "
            "level of sub-folders, one a class, and what trains, validates and tests is drawn from each"
        )


def _part(path: Path) -> str:
    """The split of an image, by a number 0 … 1 drawn from what is in its file."""
    draw = int.from_bytes(hashlib.sha256(path.read_bytes()).digest()[:8]) / 2**64
    return "test" if draw < TEST else "val" if draw < TEST + VALIDATION else "train"


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

    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode in ("I", "F"):
                raise ValueError(f"{path} must have 8 or 16 bits a channel, got Pillow's mode {image.mode}")
            if image.mode.startswith("I;16"):  # Pillow would clip all 16-bit greys above 255
                image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
            if image.has_transparency_data:
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
            image = image.convert("RGB" if channels == 3 else "L")
            resized = image.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    return torch.from_numpy(np.array(resized)).view(*size, channels).permute(2, 0, 1)
