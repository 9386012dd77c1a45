"""MedMNIST: twelve small data sets of medical images, in their official files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_choice
from torchcaps.data.files import cache_folder, check_checksum
from torchcaps.data.images import Dataset, Images, resized
from torchcaps.data.medmnist_table import SIZES, SUBSETS, VOLUMES, Subset

_ADDRESS = "https://zenodo.org/records/10519652/files/"
_SPLITS = ("train", "val", "test")


def load_medmnist(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, subset: str = "pathmnist", size: int = 28
) -> Dataset:
    """MedMNIST: twelve data sets of medical images, split as their authors split them; "chestmnist" has several labels.

    Files are not downloaded, as their authors publish no sha256: an error says where to get one.

    Args:
        root: a folder with the official ``.npz`` file; None looks into ``medmnist`` in the cache.
        image_size: (height, width) to resize to.
        subset: such as "pathmnist", "chestmnist" or "bloodmnist"; any of
            :data:`~torchcaps.data.medmnist_table.SUBSETS`.
        size: 28, 64, 128 or 224: height and width of the file's images.

    Raises:
        ValueError: the file is missing, damaged, or holds something else; an unknown subset or size.

    Source: Yang et al. 2023, "MedMNIST v2"; checksums and names from the authors' package medmnist 3.0.2.
    """
    if subset in VOLUMES:
        raise ValueError(f"data.options.subset must be one of images, got {subset}, which holds volumes")
    check_choice("data.options.subset", subset, SUBSETS)
    check_choice("data.options.size", size, SIZES)
    known = SUBSETS[subset]
    name = f"{subset}.npz" if size == 28 else f"{subset}_{size}.npz"
    folder = cache_folder() / "medmnist" if root is None else root
    path = folder / name
    if not path.is_file():
        raise ValueError(f"data.root must hold {name}, but {path} is not there: get it from {_ADDRESS}{name}")
    check_checksum(path, known.md5[SIZES.index(size)], "md5")
    parts = [_read(path, split, known, n, size) for split, n in zip(_SPLITS, known.counts, strict=True)]
    train, val, test = (Images(resized(pixels, image_size), labels) for pixels, labels in parts)
    return Dataset(subset, known.classes, train, val, test, note="split by its authors")


def _read(path: Path, split: str, known: Subset, n: int, size: int) -> tuple[Tensor, Tensor]:
    """Read images ``[N, C, H, W]`` and labels ``[N]``, or ``[N, J]`` of several, of one split."""
    names = f"{split}_images", f"{split}_labels"
    try:
        with np.load(path) as arrays:  # which unpickles nothing
            images, labels = (arrays[name] for name in names)
    except MemoryError:
        raise
    except Exception as error:  # zipfile and numpy raise whatever the broken bytes lead them to
        raise ValueError(f"{path} must hold the arrays {' and '.join(names)}: {error}") from error
    wanted = (n, size, size) if known.channels == 1 else (n, size, size, known.channels)
    columns = len(known.classes) if known.multi_label else 1
    for array, shape, name in zip((images, labels), (wanted, (n, columns)), names, strict=True):
        if array.shape != shape or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"{path} must hold {name} as integers of {list(shape)}, got {array.dtype} of {list(array.shape)}"
            )
    if images.dtype != np.uint8:
        raise ValueError(f"{path} must hold {names[0]} as uint8, got {images.dtype}")
    pixels = torch.from_numpy(images.reshape(n, size, size, known.channels)).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.from_numpy(labels.astype(np.int64))
