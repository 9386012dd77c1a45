"""CIFAR-100 in either of its official archives: the binary one, or the pickled one, of which nothing is executed."""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_choice
from torchcaps.data.cifar10 import ArraysOnly
from torchcaps.data.files import require
from torchcaps.data.images import Dataset, Images, keep_back, resized

_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
BINARY, PICKLED = "cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"
_SHA256 = {
    BINARY: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    PICKLED: "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
}
#: Kinds of labels, and how many classes each has.
N_CLASSES = {"fine": 100, "coarse": 20}
#: Training images that are kept for validation, picked once with :data:`SPLIT_SEED`.
N_VALIDATION = 5000
SPLIT_SEED = 0
#: A record of the binary archive: coarse label, fine label, and three planes of 32×32.
_RECORD = 2 + 3 * 32 * 32


class _Half(NamedTuple):
    """Hold images ``[N, 3, 32, 32]`` and both labels ``[N]`` of the training or test half."""

    images: Tensor
    labels: dict[str, Tensor]


def load_cifar100(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, labels: str = "fine"
) -> Dataset:
    """CIFAR-100: 45,000 training, 5,000 validation and 10,000 test images of 100 kinds, colour, 32×32.

    Args:
        root: a folder with one of the official archives; None downloads the binary one.
        image_size: (height, width) to resize to.
        labels: "fine", or "coarse" for the 20 groups that the kinds form; the other ones become
            ``Images.factors``.

    Raises:
        ValueError: the archive is missing, damaged, not to be downloaded, or holds something else; unknown ``labels``.

    Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images".
    """
    check_choice("data.options.labels", labels, N_CLASSES)
    pickled = root is not None and not (root / BINARY).is_file() and (root / PICKLED).is_file()
    name = PICKLED if pickled else BINARY
    path = require(name, _SHA256[name], root=root, folder="cifar100", address=_ADDRESS)
    try:
        with tarfile.open(path) as archive:
            opened = ((file.name, archive.extractfile(file)) for file in archive)
            files = {name.rpartition("/")[2]: file.read() for name, file in opened if file is not None}
        halves, names = (_read_pickled if pickled else _read_binary)(files)
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole archive of CIFAR-100: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    other = next(kind for kind in N_CLASSES if kind != labels)
    train, test = (
        Images(resized(half.images, image_size), half.labels[labels], {other: half.labels[other]}) for half in halves
    )
    train, val = keep_back(train, N_VALIDATION, SPLIT_SEED)
    return Dataset("cifar100", names[labels], train, val, test, note="" if labels == "fine" else f"{labels} labels")


def _read_binary(files: dict[str, bytes]) -> tuple[list[_Half], dict[str, tuple[str, ...]]]:
    """Read both halves, and the names of the classes."""
    halves = []
    for name in ("train.bin", "test.bin"):
        raw = files[name]
        if len(raw) % _RECORD or not raw:
            raise ValueError(f"{name} must hold records of {_RECORD} bytes, got {len(raw)} bytes")
        records = torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(-1, _RECORD).copy())
        halves.append(_half(records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1], records[:, 0], name))
    names = {kind: tuple(files[f"{kind}_label_names.txt"].decode().split()) for kind in N_CLASSES}
    return halves, _all_named(names)


def _read_pickled(files: dict[str, bytes]) -> tuple[list[_Half], dict[str, tuple[str, ...]]]:
    """Read as :func:`_read_binary` does."""
    halves = []
    for name in ("train", "test"):
        content = _unpickled(files, name, "data", "fine_labels", "coarse_labels")
        pixels = content["data"]
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
            raise ValueError(f"{name} must hold data as uint8 of [N, 3072]")
        images = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy())
        fine, coarse = (torch.as_tensor(content[f"{kind}_labels"]) for kind in ("fine", "coarse"))
        halves.append(_half(images, fine, coarse, name))
    meta = _unpickled(files, "meta", "fine_label_names", "coarse_label_names")
    return halves, _all_named({kind: tuple(map(str, meta[f"{kind}_label_names"])) for kind in N_CLASSES})


def _unpickled(files: dict[str, bytes], name: str, *keys: str) -> dict[str, Any]:
    raw = files[name]
    try:
        content = ArraysOnly(io.BytesIO(raw), encoding="latin1").load()
        missing = [key for key in keys if key not in content]
    except Exception as error:  # a broken pickle raises whatever its bytes lead to
        raise ValueError(f"{name} must be a pickle of CIFAR-100: {error!r}") from error
    if missing:
        raise ValueError(f"{name} must hold {', '.join(keys)}, got no {missing[0]}")
    return content


def _half(images: Tensor, fine: Tensor, coarse: Tensor, name: str) -> _Half:
    found = {"fine": fine.long(), "coarse": coarse.long()}
    for kind, values in found.items():
        if values.shape != images.shape[:1] or not 0 <= int(values.min()) <= int(values.max()) < N_CLASSES[kind]:
            raise ValueError(f"{name} must hold a {kind} label 0 … {N_CLASSES[kind] - 1} for each image")
    return _Half(images, found)


def _all_named(names: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    for kind, n in N_CLASSES.items():
        if len(set(names[kind])) != n:
            raise ValueError(f"there must be {n} names of {kind} labels, got {len(set(names[kind]))}")
    return names
