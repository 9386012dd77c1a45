"""CIFAR-10 in its official archive, or subsets of it in ``.npz`` files."""

from __future__ import annotations

import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.files import require
from torchcaps.data.images import Dataset, Images, keep_back, resized

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

#: One in so many training images is kept for validation; those are picked once with :data:`SPLIT_SEED`.
VALIDATION = 10
SPLIT_SEED = 0

ARCHIVE = "cifar-10-python.tar.gz"
_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
_BATCHES = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}

#: Balanced subsets of both halves.
_NPZ = {
    "train": "3d82ca5dfb43daf5bcac55a1d417319a305c96ff5195984059456290b3c815c0",
    "test": "bbfd4f3c9f3a4f5202a623e744560bd4649479166e24d78d5637e220955e7c3f",
}


def load_cifar10(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
    """CIFAR-10: 45,000 training, 5,000 validation and 10,000 test images of ten kinds, colour, 32×32.

    Args:
        root: a folder with the official archive, or with ``cifar10_train_subset.npz`` and
            ``cifar10_test_subset.npz``, of which a tenth of the training images validates too and
            ``Dataset.note`` tells; None downloads the archive.
        image_size: (height, width) to resize to.

    Raises:
        ValueError: files are missing, damaged, or not to be downloaded.

    Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images".
    """
    subset = root is not None and not (root / ARCHIVE).is_file() and (root / _npz_name("train")).is_file()
    parts = _read_npz(root) if subset else _read_archive(root)
    halves = {half: Images(resized(images, image_size), labels) for half, (images, labels) in parts.items()}
    n_train, n_test = (len(part) for part in halves.values())
    note = f"subsets: {n_train:,} of 50,000 training images and {n_test:,} of 10,000 test images" if subset else ""
    train, val = keep_back(halves["train"], n_train // VALIDATION, SPLIT_SEED)
    return Dataset("cifar10", CLASSES, train, val, halves["test"], note=note)


def _npz_name(half: str) -> str:
    return f"cifar10_{half}_subset.npz"


def _read_npz(root: Path | None) -> dict[str, tuple[Tensor, ...]]:
    """Images ``[N, 3, 32, 32]`` and labels ``[N]`` of each half."""
    found = {}
    for half, sha256 in _NPZ.items():
        with np.load(require(_npz_name(half), sha256, root=root, folder="cifar10", address="")) as arrays:
            images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).contiguous()
            found[half] = images, torch.from_numpy(arrays["labels"]).long()
    return found


def _read_archive(root: Path | None) -> dict[str, tuple[Tensor, ...]]:
    """Read the archive as :func:`_read_npz` does. Nothing is unpacked to the disk."""
    path = require(ARCHIVE, _SHA256, root=root, folder="cifar10", address=_ADDRESS)
    try:
        with tarfile.open(path) as archive:
            files = {file.name.rpartition("/")[2]: file for file in archive}
            found = {half: [read_batch(archive.extractfile(files[name])) for name in _BATCHES[half]] for half in _NPZ}
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole archive with {_BATCHES}: {error!r}") from error
    return {half: tuple(torch.cat(parts) for parts in zip(*found[half], strict=True)) for half in found}


def read_batch(file: Any) -> tuple[Tensor, Tensor]:
    """Read one of the archive's pickled batches.

    Returns:
        images ``[N, 3, 32, 32]`` uint8 and labels ``[N]`` int64.

    Raises:
        ValueError: it holds anything but arrays and plain values, or no batch of images.
    """
    try:
        content = ArraysOnly(file, encoding="latin1").load()
        pixels, labels = content["data"], content["labels"]
        return torch.from_numpy(pixels.reshape(-1, 3, 32, 32).astype(np.uint8)), torch.tensor(labels)
    except Exception as error:  # a broken pickle raises whatever its bytes lead to
        raise ValueError(f"a batch of CIFAR-10 must hold data and labels: {error!r}") from error


class ArraysOnly(pickle.Unpickler):
    """Makes numpy's arrays and nothing else: a pickle could otherwise run what it likes."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return what numpy's arrays are made by, and refuse everything else."""
        reconstruct, (array, *_), _ = np.empty(0).__reduce__()
        known = {
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy", "ndarray"): array,
            ("numpy", "dtype"): _dtype,
        }
        if (module_name, global_name) not in known:
            raise ValueError(f"a batch of CIFAR must hold numpy's arrays alone, got {module_name}.{global_name}")
        return known[module_name, global_name]


def _dtype(name: str, align: int, copy: int) -> np.dtype:
    """Make a dtype as old pickles call it, with numbers where numpy wants truth values by now."""
    return np.dtype(name, align=bool(align), copy=bool(copy))
