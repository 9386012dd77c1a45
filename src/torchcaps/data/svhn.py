"""Street View House Numbers, cropped digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from torchcaps.data.files import require
from torchcaps.data.images import Dataset, Images, keep_back, resized
from torchcaps.data.matlab import read_mat, require_array

#: Training images that are kept for validation, picked once with :data:`SPLIT_SEED`.
N_VALIDATION = 7257
SPLIT_SEED = 0

#: As tensorflow/datasets publishes them (url_checksums/svhn_cropped.txt). The host has no https.
_SHA256 = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
_ADDRESS = "http://ufldl.stanford.edu/housenumbers/"


def load_svhn(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
    """SVHN: 66,000 training, 7,257 validation and 26,032 test images of house numbers' digits, colour, 32×32.

    The training and validation images are the 73,257 of ``train_32x32.mat``, as in the paper; the
    531,131 "extra" ones are not used.

    Args:
        root: a folder with the two official ``.mat`` files; None downloads them.
        image_size: (height, width) to resize to.

    Raises:
        ValueError: a file is missing, damaged, or not to be downloaded.

    Source: Netzer et al. 2011, "Reading Digits in Natural Images with Unsupervised Feature Learning".
    """
    parts = [
        _read(require(name, sha256, root=root, folder="svhn", address=_ADDRESS), image_size)
        for name, sha256 in _SHA256.items()
    ]
    train, val = keep_back(parts[0], N_VALIDATION, SPLIT_SEED)
    return Dataset("svhn", tuple("0123456789"), train, val, test=parts[1])


def _read(path: Path, size: tuple[int, int] | None) -> Images:
    content = read_mat(path, path)
    pixels = require_array(content, "X", (32, 32, 3, None), path)
    labels = require_array(content, "y", (pixels.shape[3],), path)
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Images(resized(images, size), torch.from_numpy(labels % 10).long())  # the digit 0 is written as 10
