"""affNIST's official test set."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from torchcaps.data.files import require
from torchcaps.data.images import Images
from torchcaps.data.matlab import read_mat, require_array

_ADDRESS = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/"
#: As tensorflow/datasets publishes it (url_checksums/affnist.txt). The same site has other files of this name.
_SHA256 = "2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a"


def load_affnist(root: Path | None = None) -> Images:
    """affNIST: 32 affine variants of each of MNIST's 10,000 test digits, 40×40, to test on alone.

    Args:
        root: a folder with the official ``test.mat.zip``; None downloads it.

    Returns:
        ``[320000, 1, 40, 40]``.

    Raises:
        ValueError: the file is missing, damaged, another one, or not to be downloaded.

    Source: Tieleman 2013, https://www.cs.toronto.edu/~tijmen/affNIST/.
    """
    path = require("test.mat.zip", _SHA256, root=root, folder="affnist", address=_ADDRESS)
    with zipfile.ZipFile(path) as archive, archive.open("test.mat") as file:
        content = read_mat(file, path)
    every = content.get("affNISTdata")
    every = every if isinstance(every, dict) else {}
    pixels = require_array(every, "image", (40 * 40, None), path)  # a column an image, row after row
    labels = require_array(every, "label_int", (pixels.shape[1],), path)
    images = torch.from_numpy(pixels.T.reshape(-1, 1, 40, 40))
    return Images(images, torch.from_numpy(labels).long())
