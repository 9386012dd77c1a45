"""Your own images: a folder with one sub-folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import Dataset, Images, fixed_order

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")

#: Shares of the images of each class that are kept for validation and for test.
VALIDATION, TEST, SPLIT_SEED = 0.1, 0.2, 0


def load_folder(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
    """Images of any size in one sub-folder a class; colour if any image has colour.

    Of every class 70 % train, 10 % validate and 20 % test, in an order that depends on nothing but
    the file names.

    Args:
        root: the folder.
        image_size: (height, width) that all are resized to; by default 28×28.

    Raises:
        ValueError: no such folder, fewer than two classes, a class of fewer than three images, or a
            file that cannot be read as an image.
    """
    if root is None or not root.is_dir():
        raise ValueError(f"data.root must be a folder with one sub-folder a class, got {root}")
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise ValueError(f"{root} must have at least two sub-folders, one a class; got {len(classes)}: {classes}")
    files = {name: sorted(p for p in (root / name).iterdir() if p.suffix.lower() in SUFFIXES) for name in classes}
    for name, paths in files.items():
        if len(paths) < 3:
            raise ValueError(f"{root / name} must have at least three images ({', '.join(SUFFIXES)}), got {len(paths)}")
    size = image_size or (28, 28)
    colour = torch.stack([read_image(p, size) for paths in files.values() for p in paths])  # [N, 3, H, W]
    if bool((colour == colour[:, :1]).all()):
        colour = colour[:, :1]
    labels = torch.tensor([k for k, name in enumerate(classes) for _ in files[name]])
    every = Images(colour, labels)
    train, val, test = (torch.cat(parts) for parts in zip(*map(_split, _by_class(labels)), strict=True))
    return Dataset(root.name, tuple(classes), every.take(train), every.take(val), every.take(test))


def read_image(path: Path, size: tuple[int, int], channels: int = 3) -> Tensor:
    """Read one image as ``[C, H, W]`` uint8, resized to (height, width).

    Args:
        path: the file.
        size: (height, width).
        channels: 3 for colour, 1 for grey.

    Raises:
        ValueError: the file is missing or not an image.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            resized = image.convert("RGB" if channels == 3 else "L").resize(
                (size[1], size[0]), Image.Resampling.BICUBIC
            )
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    return torch.from_numpy(np.array(resized)).view(*size, channels).permute(2, 0, 1)


def _by_class(labels: Tensor) -> list[Tensor]:
    return [(labels == k).nonzero().squeeze(1) for k in range(int(labels.max()) + 1)]


def _split(members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = len(members)
    n_test, n_val = max(1, round(TEST * n)), max(1, round(VALIDATION * n))
    mixed = members[fixed_order(n, SPLIT_SEED)]
    return mixed[n_test + n_val :], mixed[n_test : n_test + n_val], mixed[:n_test]
