"""MNIST, and Fashion-MNIST and Kuzushiji-MNIST, which have its form, in their official files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_choice
from torchcaps.data.files import require
from torchcaps.data.images import Dataset, Images, keep_back, resized

#: Training images that are kept for validation, picked once with :data:`SPLIT_SEED`.
N_VALIDATION = 5000
SPLIT_SEED = 0

_MNIST = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_FASHION_MNIST = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_KMNIST = {
    "train-images-idx3-ubyte.gz": "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
    "train-labels-idx1-ubyte.gz": "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
    "t10k-images-idx3-ubyte.gz": "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
    "t10k-labels-idx1-ubyte.gz": "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
}
_FASHION_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_KMNIST_CLASSES = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def load_mnist(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, hold_out: bool = True
) -> Dataset:
    """MNIST: 55,000 training, 5,000 validation and 10,000 test images of handwritten digits, 28×28.

    Args:
        root: a folder with the four official ``.gz`` files; None downloads them.
        image_size: (height, width) to resize to.
        hold_out: keep the validation images from training. False trains on all 60,000, for a schedule that was
            fixed before: the same 5,000 validate then too, but say nothing that could be chosen on.

    Raises:
        ValueError: an argument that is none of these; a file is missing, damaged, or not to be downloaded.
    """
    address = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    return _load("mnist", _MNIST, address, tuple("0123456789"), root, image_size, hold_out)


def load_fashion_mnist(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, hold_out: bool = True
) -> Dataset:
    """Fashion-MNIST: MNIST's sizes and splits, with ten kinds of clothing; arguments as for MNIST."""
    # The host has no https; the checksums are sha256, so nothing else can be slipped in.
    address = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    return _load("fashion-mnist", _FASHION_MNIST, address, _FASHION_CLASSES, root, image_size, hold_out)


def load_kmnist(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, hold_out: bool = True
) -> Dataset:
    """Kuzushiji-MNIST: MNIST's sizes and splits, with ten cursive Japanese characters; arguments as for MNIST.

    Source: Clanuwat et al. 2018, "Deep Learning for Classical Japanese Literature".
    """
    address = "https://codh.rois.ac.jp/kmnist/dataset/kmnist/"
    return _load("kmnist", _KMNIST, address, _KMNIST_CLASSES, root, image_size, hold_out)


def _load(
    name: str,
    files: dict[str, str],
    address: str,
    classes: tuple[str, ...],
    root: Path | None,
    image_size: tuple[int, int] | None,
    hold_out: bool,
) -> Dataset:
    check_choice("hold_out", hold_out, (True, False))
    arrays = [read_idx(require(file, sha, root=root, folder=name, address=address)) for file, sha in files.items()]
    every, test = _images(arrays[0], arrays[1], image_size), _images(arrays[2], arrays[3], image_size)
    train, val = keep_back(every, N_VALIDATION, SPLIT_SEED)
    if hold_out:
        return Dataset(name, classes, train, val, test)
    return Dataset(name, classes, every, val, test, note="the validation images are trained on too", held_out=False)


def _images(images: Tensor, labels: Tensor, size: tuple[int, int] | None) -> Images:
    return Images(resized(images.unsqueeze(1), size), labels.long())


def read_idx(path: Path, *, integers: bool = False) -> Tensor:
    """Read a gzipped idx file: magic number, big-endian sizes, data.

    Args:
        path: the file.
        integers: it holds integers of 32 bits, instead of bytes.

    Returns:
        uint8, or int64 of integers, of the shape that the file states.

    Raises:
        ValueError: not gzip, not an idx file of bytes (or integers), or longer or shorter than it says.
    """
    return parse_idx(path.read_bytes(), str(path), integers=integers)


def parse_idx(compressed: bytes, name: str, *, integers: bool = False) -> Tensor:
    """Read a gzipped idx file from memory, as :func:`read_idx` does; errors call it ``name``."""
    try:
        raw = gzip.decompress(compressed)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} must be a whole gzip file: {error}") from error
    kind, dtype, what = (b"\x00\x00\x0c", ">i4", "integers") if integers else (b"\x00\x00\x08", ">u1", "bytes")
    if len(raw) < 4 or raw[:3] != kind:
        raise ValueError(f"{name} must be an idx file of {what} (magic number 0x{kind.hex()}..), got 0x{raw[:4].hex()}")
    n_dims = raw[3]
    header = 4 + 4 * n_dims
    if len(raw) < header:
        raise ValueError(f"{name} must have a header of {header} bytes, got {len(raw)}")
    shape = struct.unpack(f">{n_dims}I", raw[4:header])
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if len(raw) - header != n_bytes:
        raise ValueError(f"{name} must hold {n_bytes} bytes for shape {list(shape)}, got {len(raw) - header}")
    values = np.frombuffer(raw, dtype, offset=header).reshape(shape)
    return torch.from_numpy(values.astype(np.int64 if integers else np.uint8))
