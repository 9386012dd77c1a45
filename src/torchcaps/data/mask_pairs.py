"""Images and their masks, found by their names and read: files of one picture, and volumes slice by slice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.image_file import Frames, as_pixels
from torchcaps.data.layout import SUFFIXES
from torchcaps.data.mask_file import as_bits, nearest, read_mask, shown_size
from torchcaps.data.medical import (
    MEDICAL_SUFFIXES,
    Window,
    is_index,
    is_medical,
    is_unnamed_dicom,
    is_volume,
    reader_of,
    stem_of,
    suffix_of,
)
from torchcaps.data.nifti import check_aligned, read_label_volume, read_volume
from torchcaps.data.pixels import read_files
from torchcaps.progress import with_time_left

#: Endings of the files that are images or masks.
MASKED_SUFFIXES = (*SUFFIXES, *MEDICAL_SUFFIXES)
#: Faults that are named in an error.
_NAMED = 20


class Pairs(NamedTuple):
    """Hold N images with their masks.

    Attributes:
        images: ``[N, C, H, W]`` uint8.
        masks: ``[N, J, H, W]`` bool.
        digests: of the images' content; all slices of a volume have the volume's.
        files: for each the place of its file in the list.
    """

    images: Tensor
    masks: Tensor
    digests: list[bytes]
    files: list[int]


def find_pairs(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Find each image's mask by its name without the ending.

    Raises:
        ValueError: naming files without a partner, two of one name, or of which a package is missing.
    """
    found = [_by_name(images), _by_name(masks)]
    faults = [f"{path} has no mask {masks / name}.png" for name, path in found[0].items() if name not in found[1]]
    faults += [f"{path} has no image {images / name}.*" for name, path in found[1].items() if name not in found[0]]
    refuse(images.parent, faults)
    pairs = [(path, found[1][name]) for name, path in found[0].items()]
    for path in {suffix_of(path): path for pair in pairs for path in pair}.values():
        if is_medical(path):  # one of each: a missing package is said once
            reader_of(path)
    refuse(images.parent, [_of_two_kinds(*pair) for pair in pairs if is_volume(pair[0]) != is_volume(pair[1])])
    return pairs


def _of_two_kinds(image: Path, mask: Path) -> str:
    return f"{mask} must be {'a NIfTI volume' if is_volume(image) else 'one picture'} as {image}, got {mask.name}"


def _is_masked(path: Path) -> bool:
    """Return whether a file is an image or a mask, by its ending, or by its content where it has none."""
    return suffix_of(path) in MASKED_SUFFIXES or is_unnamed_dicom(path)


def _is_beside(path: Path) -> bool:
    """Return whether a file is of another kind. What has no ending might be meant, except for a medium's index."""
    return suffix_of(path) != "" or is_index(path)


def _not_known(path: Path) -> str:
    return f"{path} must begin as a DICOM file (128 bytes, then DICM) or have the ending of an image, got neither"


def _by_name(folder: Path) -> dict[str, Path]:
    inside = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    refuse(folder.parent, [_not_known(path) for path in inside if not _is_masked(path) and not _is_beside(path)])
    found = dict[str, Path]()
    for path in filter(_is_masked, inside):
        name = path.relative_to(folder).with_name(stem_of(path)).as_posix()
        if name in found:
            raise ValueError(f"{folder} must have one file of a name, got {found[name].name} and {path.name}")
        found[name] = path
    if not found:
        raise ValueError(f"{folder} must hold images ({', '.join(MASKED_SUFFIXES)}), got none")
    return found


def read_pairs(
    pairs: Sequence[tuple[Path, Path]],
    n_classes: int,
    size: tuple[int, int],
    *,
    max_value: int | None,
    frames: Frames,
    window: Window,
) -> Pairs:
    """Read images and masks, resized to (height, width); arguments are those of ``read_image`` and ``read_mask``.

    Raises:
        ValueError: naming all files that cannot be read, and masks that do not fit.
    """
    whole = [k for k, (image, _) in enumerate(pairs) if is_volume(image)]
    single = [k for k, (image, _) in enumerate(pairs) if not is_volume(image)]
    parts, faults = list[Pairs](), list[str]()
    if single:
        masks, faults = _read_masks([pairs[k] for k in single], n_classes, size)
        refuse(pairs[0][1].parent, faults)
        reading = {"max_value": max_value, "frames": frames, "window": window}
        pixels = read_files([pairs[k][0] for k in single], size, **reading)
        refuse(pairs[0][0].parent, pixels.broken)
        parts.append(Pairs(pixels.images, masks, pixels.digests, single))
    for k in with_time_left(whole, "read volumes"):
        try:
            parts.append(_read_volumes(*pairs[k], n_classes, size, frames, window)._replace(files=[k]))
        except ValueError as error:
            faults.append(str(error))
    refuse(pairs[0][0].parent, faults)
    return _together(parts)


def _together(parts: Sequence[Pairs]) -> Pairs:
    channels = max(part.images.shape[1] for part in parts)
    images = torch.cat([part.images.expand(-1, channels, -1, -1) for part in parts])
    digests = [digest for part in parts for digest in part.digests]
    files = [file for part in parts for file in (part.files if len(part.files) > 1 else part.files * len(part.images))]
    return Pairs(images, torch.cat([part.masks for part in parts]), digests, files)


def _read_masks(pairs: Sequence[tuple[Path, Path]], n_classes: int, size: tuple[int, int]) -> tuple[Tensor, list[str]]:
    """Read the masks of images, resized, ``[N, J, H, W]`` bool, and say what is wrong with others."""
    masks, faults = torch.zeros(len(pairs), n_classes, *size, dtype=torch.bool), list[str]()
    for k, (image, path) in enumerate(with_time_left(pairs, "read masks")):
        try:
            numbers, wanted = read_mask(path, n_classes), shown_size(image)
        except ValueError as error:
            faults.append(str(error))
            continue
        if numbers.shape != wanted:
            sizes = ["×".join(map(str, each)) for each in (wanted, numbers.shape)]
            faults.append(f"{path} must be {sizes[0]} as {image.name}, got {sizes[1]}")
            continue
        masks[k] = _resized(numbers[None], n_classes, size)[0]
    return masks, faults


def _read_volumes(
    image: Path, mask: Path, n_classes: int, size: tuple[int, int], frames: Frames, window: Window
) -> Pairs:
    labels = read_label_volume(mask, n_classes)
    volume = read_volume(image, window, first=frames == "first")
    check_aligned(volume, labels)
    pixels = torch.stack([as_pixels(each, size, 1) for each in volume.slices])
    return Pairs(pixels, _resized(labels.slices, n_classes, size), [volume.digest] * len(pixels), [])


def _resized(numbers: np.ndarray, n_classes: int, size: tuple[int, int]) -> Tensor:
    """Return a mask for each class, ``[N, J, H, W]`` bool, of numbers ``[N, h, w]``."""
    # Numbers are resized, not the masks of each class: that is as exact, and takes a fraction of the memory.
    resized = nearest(torch.from_numpy(np.ascontiguousarray(numbers))[:, None], size)
    return as_bits(resized[:, 0], n_classes)


def refuse(root: Path, faults: Sequence[str]) -> None:
    """Name all files that something is wrong with.

    Raises:
        ValueError: there are any.
    """
    if len(faults) == 1:
        raise ValueError(faults[0])
    if faults:
        more = [f"and {len(faults) - _NAMED} more"] if len(faults) > _NAMED else []
        raise ValueError("\n  ".join([f"{root}: {len(faults)} files must be mended:", *faults[:_NAMED], *more]))
