"""affNIST's official test set."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from torchcaps.data.files import pinned, require
from torchcaps.data.images import Images
from torchcaps.data.matlab import read_mat, require_array

_ADDRESS = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/"


def load_affnist(root: Path | None = None) -> Images:
    """affNIST: 32 affine variants of each of MNIST's 10,000 test digits, 40×40, to test on alone.

    No checksum of it is published. That of the file which is first read is kept beside it, and asked for from then on.

    Args:
        root: a folder with the official ``test.mat.zip``; None downloads it.

    Returns:
        ``[320000, 1, 40, 40]``; of a file with fewer, those.

    Raises:
        ValueError: the file is missing, damaged, another one than before, or not to be downloaded.

    Source: Tieleman 2013, https://www.cs.toronto.edu/~tijmen/affNIST/.
    """
    path = require("test.mat.zip", None, root=root, folder="affnist", address=_ADDRESS)
    with pinned(path, ours=root is None):
        return _read(path)


def _read(path: Path) -> Images:
    try:
        with zipfile.ZipFile(path) as archive, archive.open("test.mat") as file:
            content = read_mat(file, path)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be a whole zip file with test.mat in it: {error}") from error
    every = content.get("affNISTdata")
    every = every if isinstance(every, dict) else {}
    pixels = require_array(every, "image", (40 * 40, None), path)  # a column an image, row after row
    labels = require_array(every, "label_int", (pixels.shape[1],), path)
    images = torch.from_numpy(pixels.T.reshape(-1, 1, 40, 40))
    return Images(images, torch.from_numpy(labels).long())
