"""EMNIST and QMNIST: MNIST's larger relatives, in their official files."""

from __future__ import annotations

import string
import zipfile
from pathlib import Path

from torch import Tensor

from torchcaps.checks import check_choice
from torchcaps.data.files import require
from torchcaps.data.images import Dataset, Images, keep_a_tenth, keep_back, resized
from torchcaps.data.mnist import N_VALIDATION, SPLIT_SEED, parse_idx, read_idx

ARCHIVE = "gzip.zip"
_ARCHIVE_SHA256 = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
_ARCHIVE_ADDRESS = "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/"

#: Digits, capital and small letters; of "balanced" and "bymerge" the small ones that look like capitals are these.
_ALL = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
_MERGED = tuple(name for name in _ALL if name not in "cijklmopsuvwxyz")
#: The classes of each subset.
SUBSETS = {
    "balanced": _MERGED,
    "byclass": _ALL,
    "bymerge": _MERGED,
    "digits": tuple(string.digits),
    "letters": tuple(string.ascii_uppercase),
    "mnist": tuple(string.digits),
}

_QMNIST = {
    "qmnist-train-images-idx3-ubyte.gz": "9e26a7bf1683614e065d7b76460ccd52807165b3f22561fb782bd9f38c52b51d",
    "qmnist-train-labels-idx2-int.gz": "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
    "qmnist-test-images-idx3-ubyte.gz": "43fc22bf7498b8fc98de98369d72f752d0deabc280a43a7bcc364ab19e57b375",
    "qmnist-test-labels-idx2-int.gz": "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
}
_QMNIST_ADDRESS = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
#: Columns of QMNIST's labels: the digit, and who wrote it.
_DIGIT, _WRITER, _COLUMNS = 0, 2, 8


def load_emnist(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, subset: str = "balanced"
) -> Dataset:
    """EMNIST: handwritten digits and letters, 28×28; a tenth of the training images validates.

    Args:
        root: a folder with the official archive ``gzip.zip``, or with the four ``.gz`` files of the subset as the
            archive has them (of which no checksum is known); None downloads the archive, 0.5 GB.
        image_size: (height, width) to resize to.
        subset: one of :data:`SUBSETS`. In "letters" a letter is one class, capital or small.

    Raises:
        ValueError: files are missing, damaged, or not to be downloaded; an unknown subset.

    Source: Cohen et al. 2017, "EMNIST: an extension of MNIST to handwritten letters".
    """
    check_choice("data.options.subset", subset, SUBSETS)
    names = [
        f"emnist-{subset}-{half}-{what}-ubyte.gz"
        for half in ("train", "test")
        for what in ("images-idx3", "labels-idx1")
    ]
    if root is not None and not (root / ARCHIVE).is_file() and (root / names[0]).is_file():
        arrays = [_read(root / name) for name in names]
        where = str(root)
    else:
        archive = require(ARCHIVE, _ARCHIVE_SHA256, root=root, folder="emnist", address=_ARCHIVE_ADDRESS)
        arrays, where = _read_archive(archive, names), str(archive)
    first = 1 if subset == "letters" else 0  # letters are counted from 1
    every, test = (
        _images(arrays[k], arrays[k + 1], image_size, first, len(SUBSETS[subset]), f"{where}, {names[k]}")
        for k in (0, 2)
    )
    train, val = keep_a_tenth(every)
    return Dataset("emnist", SUBSETS[subset], train, val, test, note=f"EMNIST {subset}")


def _read(path: Path) -> Tensor:
    if not path.is_file():
        raise ValueError(f"data.root must hold {path.name}, but {path} is not there")
    return read_idx(path)


def _read_archive(path: Path, names: list[str]) -> list[Tensor]:
    """Read files from the archive; nothing is unpacked to the disk."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {entry.rpartition("/")[2]: entry for entry in archive.namelist()}
            return [parse_idx(archive.read(inside[name]), f"{path}, {name},") for name in names]
    except (MemoryError, ValueError):
        raise
    except Exception as error:  # zipfile raises whatever the broken bytes lead it to
        raise ValueError(f"{path} must be a whole archive with {', '.join(names)}: {error!r}") from error


def _images(
    pixels: Tensor, labels: Tensor, size: tuple[int, int] | None, first: int, n_classes: int, where: str
) -> Images:
    if pixels.shape[1:] != (28, 28) or labels.shape != pixels.shape[:1] or not len(labels):
        raise ValueError(f"{where} must hold images of 28×28 with a label each, got {list(pixels.shape)}")
    labels = labels.long() - first
    if not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise ValueError(
            f"{where} must have labels {first} … {n_classes - 1 + first}, got {labels.min() + first} … "
            f"{labels.max() + first}"
        )
    upright = pixels.transpose(1, 2).contiguous()  # the files have columns where MNIST's have rows
    return Images(resized(upright.unsqueeze(1), size), labels)


def load_qmnist(root: Path | None = None, image_size: tuple[int, int] | None = None) -> Dataset:
    """QMNIST: MNIST rebuilt, with 60,000 test images and who wrote each: 55,000 training, 5,000 validation images.

    Args:
        root: a folder with the four official ``.gz`` files; None downloads them.
        image_size: (height, width) to resize to.

    Returns:
        The data; ``factors["writer"]`` of each split is the writer's number. The first 10,000 test images are MNIST's.

    Raises:
        ValueError: files are missing, damaged, or not to be downloaded.

    Source: Yadav, Bottou 2019, "Cold Case: The Lost MNIST Digits".
    """
    paths = [
        require(name, sha256, root=root, folder="qmnist", address=_QMNIST_ADDRESS) for name, sha256 in _QMNIST.items()
    ]
    every, test = (_qmnist(paths[k], paths[k + 1], image_size) for k in (0, 2))
    train, val = keep_back(every, N_VALIDATION, SPLIT_SEED)
    return Dataset("qmnist", tuple(string.digits), train, val, test)


def _qmnist(images: Path, labels: Path, size: tuple[int, int] | None) -> Images:
    pixels, table = read_idx(images), read_idx(labels, integers=True)
    if pixels.shape[1:] != (28, 28) or table.shape != (len(pixels), _COLUMNS):
        raise ValueError(f"{labels} must hold {_COLUMNS} numbers for each of {len(pixels)} images of {images}")
    return Images(resized(pixels.unsqueeze(1), size), table[:, _DIGIT].clone(), {"writer": table[:, _WRITER].clone()})
