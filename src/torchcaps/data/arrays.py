"""Your own images as arrays in one ``.npz`` file: of any number of channels, and of more than 8 bits."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_flag
from torchcaps.data.images import Dataset, Images, fixed_order, keep_a_tenth, numbered_classes, resized
from torchcaps.data.splits import SPLITS, TEST, VALIDATION, stratify


def load_arrays(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, channels_first: bool = False
) -> Dataset:
    """Images of your own in a ``.npz`` file, such as ``numpy.savez("mine.npz", images=..., labels=...)`` writes.

    It holds ``images`` and ``labels``, of which about 70 % train, 10 % validate and 20 % test, class by class and by
    their content. ``groups``, one number an image, keeps the images of one patient or object in one split. Or it holds
    ``train_images``, ``train_labels``, ``test_images``, ``test_labels`` and perhaps ``val_images``, ``val_labels``.
    ``classes`` may name the classes.

    Images are ``[N, H, W]`` or ``[N, H, W, C]``: uint8 and uint16 are shown as 0 … 1; floats and other integers, such
    as a CT's, as they are. Labels are ``[N]`` or ``[N, 1]`` integers, or ``[N, J]`` of 0 and 1.

    Args:
        root: the file.
        image_size: (height, width) to resize to.
        channels_first: images of four axes are ``[N, C, H, W]``.

    Raises:
        ValueError: no such file, or one without these arrays; arrays of other shapes or kinds; too few images.
    """
    check_flag("data.options.channels_first", channels_first)
    if root is None or not root.is_file():
        raise ValueError(f"data.root must be a .npz file, got {root}")
    arrays = _read(root)
    names = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    try:
        if "train_images" in arrays:
            parts = {
                split: _images(arrays, f"{split}_", image_size, channels_first=channels_first)
                for split in SPLITS
                if split != "val" or "val_images" in arrays
            }
            if "val" not in parts:
                parts["train"], parts["val"] = keep_a_tenth(parts["train"])
            note = "split by its arrays"
        else:
            parts = _shared_out(_images(arrays, "", image_size, channels_first=channels_first))
            by = " in the groups of its array" if "groups" in arrays else ""
            note = f"split by content{by}, stratified by class"
    except ValueError as error:
        raise ValueError(f"{root}: {error}") from error
    return Dataset(
        root.stem, names or numbered_classes(parts.values()), parts["train"], parts["val"], parts["test"], note=note
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays; nothing is unpickled."""
    try:
        with np.load(path) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            for name in file.files:
                _require_length(file, name)
            return {name: file[name] for name in file.files}
    except MemoryError:
        raise
    except Exception as error:  # zipfile and numpy raise whatever the broken bytes lead them to
        raise ValueError(f"{path} must be a .npz file of arrays without objects: {error}") from error


def _require_length(file: np.lib.npyio.NpzFile, name: str) -> None:
    """See that an array is as long as its header says, before numpy takes memory for it.

    Raises:
        ValueError: it is not.
    """
    archive = file.zip
    assert archive is not None  # while it is open
    entry = archive.getinfo(f"{name}.npy")
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(entry) as array:
        version = np.lib.format.read_magic(array)
        if version not in read_header:
            raise ValueError(f"{name} must be an array of version 1 or 2, got {version}")
        shape, _, dtype = read_header[version](array)
        there, wanted = entry.file_size - array.tell(), math.prod(shape) * dtype.itemsize
    if there != wanted and not dtype.hasobject:
        raise ValueError(f"{name} must hold {wanted} bytes for {dtype} of {list(shape)}, got {there}")


def _images(
    arrays: dict[str, np.ndarray], prefix: str, size: tuple[int, int] | None, *, channels_first: bool
) -> Images:
    names = f"{prefix}images", f"{prefix}labels"
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"it must hold {' and '.join(names)}, got {', '.join(arrays) or 'nothing'}")
    images, labels = (arrays[name] for name in names)
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or not images.size:
        raise ValueError(
            f"{names[0]} must be numbers of [N, H, W] or [N, H, W, C], got {images.dtype} of {images.shape}"
        )
    if labels.dtype.kind not in "buif" or labels.ndim not in (1, 2):
        raise ValueError(f"{names[1]} must be numbers of [N] or [N, J], got {labels.dtype} of {labels.shape}")
    if images.dtype not in (np.uint8, np.uint16):
        images = images.astype(np.float32)
    if images.ndim == 3:
        images = images[:, None]
    elif not channels_first:
        images = images.transpose(0, 3, 1, 2)
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    factors = {}
    if f"{prefix}groups" in arrays:
        factors["group"] = torch.from_numpy(arrays[f"{prefix}groups"].astype(np.int64))
    return Images(resized(pixels, size), torch.from_numpy(np.ascontiguousarray(labels)), factors)


def _shared_out(every: Images) -> dict[str, Images]:
    """Part images as those of a folder are."""
    digests = [hashlib.sha256(image.numpy().tobytes()).digest() for image in every.images]
    ties = [(digest,) for digest in digests]
    draws = digests
    if "group" in every.factors:
        groups = every.factors["group"].tolist()
        ties = [(digest, group) for digest, group in zip(digests, groups, strict=True)]
        draws = [hashlib.sha256(str(group).encode()).digest() for group in groups]
    found = stratify([str(label) for label in _rarest(every.labels)], ties, draws, {"test": TEST, "val": VALIDATION})
    parts = {}
    for split in SPLITS:
        places = torch.tensor([k for k, each in enumerate(found) if each == split], dtype=torch.int64)
        if not len(places):
            raise ValueError(f"there must be more images: of {len(every)} none came to the {split} split")
        parts[split] = every.take(places[fixed_order(len(places), 0)])
    return parts


def _rarest(labels: Tensor) -> list[int]:
    """Find each image's label, or the rarest of several; −1 for none."""
    if labels.dim() == 1:
        return labels.tolist()
    counts = labels.sum(dim=0)
    rarest = torch.where(labels, counts, len(labels) + 1).argmin(dim=1)
    return torch.where(labels.any(dim=1), rarest, -1).tolist()
