"""Masks as image files: the number of a class at each pixel, with colours for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.dicom import dicom_size, read_dicom_numbers
from torchcaps.data.image_file import opened, orientation_of, upright
from torchcaps.data.medical import is_dicom

if TYPE_CHECKING:
    from PIL import Image

#: Colours of the classes, taken in turn; background is black.
PALETTE = (
    *((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66)),
    *((0, 114, 178), (213, 94, 0), (204, 121, 167), (170, 170, 170)),
)
#: Numbers that eight bits have for classes; 0 is background.
MOST_CLASSES = 255
#: EXIF's numbers of images that lie on their side.
_ON_ITS_SIDE = (5, 6, 7, 8)


def read_mask(path: Path, n_classes: int) -> np.ndarray:
    """Read a mask: 0 is background, k the k-th class; of a single class 255 is it too.

    Args:
        path: a grey or palette image, or a DICOM file. Of colours all channels must be equal.
        n_classes: how many classes there are.

    Returns:
        ``[H, W]`` uint8 of 0 … n_classes.

    Raises:
        ValueError: naming the file; no image, several pictures, colours, or values of no class.

    Source of the form: PASCAL VOC's and most tools' PNG of class numbers.
    """
    if is_dicom(path):
        return check_numbers(path, read_dicom_numbers(path), n_classes)
    with opened(path) as file:
        if getattr(file, "n_frames", 1) > 1:
            raise ValueError(f"it must hold one picture, got {file.n_frames}")  # type: ignore[attr-defined]
        image = upright(file).copy()
    return check_numbers(path, _numbers(path, image), n_classes)


def check_numbers(path: Path, numbers: np.ndarray, n_classes: int) -> np.ndarray:
    """Refuse numbers of no class; return them as uint8, with 255 as 1 where there is one class.

    Args:
        path: of the file that they are from.
        numbers: ``[H, W]``, or ``[X, Y, Z]`` of a volume.
        n_classes: how many classes there are.

    Raises:
        ValueError: naming the file, the number, and its place.
    """
    known = [*range(n_classes + 1), *([255] if n_classes == 1 else [])]
    found = np.unique(numbers)
    strange = found[~np.isin(found, known)]
    if len(strange):
        wanted = "0 and 1, or 0 and 255" if n_classes == 1 else f"0 … {n_classes}"
        place = np.argwhere(numbers == strange[0])[0]
        many = f" and {len(strange) - 1} other values" if len(strange) > 1 else ""
        where = f"row {place[0]}, column {place[1]}" if len(place) == 2 else f"voxel {', '.join(map(str, place))}"
        raise ValueError(
            f"{path} must hold {wanted} (0 is background; data.options.classes names the others), got {strange[0]}"
            f"{many} ({where})"
        )
    return np.minimum(numbers, n_classes).astype(np.uint8)


def _numbers(path: Path, image: Image.Image) -> np.ndarray:
    if image.mode == "1":
        image = image.convert("L")
    values = np.array(image)
    if image.mode in ("L", "P") or image.mode.startswith("I"):
        return values
    bands = image.getbands()
    colours = [values[..., k] for k, band in enumerate(bands) if band != "A"] if values.ndim == 3 else []
    clear = "A" in bands and bool((values[..., bands.index("A")] != 255).any())
    if not colours or clear or not all(np.array_equal(colours[0], other) for other in colours[1:]):
        raise ValueError(
            f"{path} must be grey, or have a palette, to name classes by numbers; got {image.mode} colours"
        )
    return colours[0]


def shown_size(path: Path) -> tuple[int, int]:
    """Return (height, width) of an image as it is shown, turned as its camera was held.

    Raises:
        ValueError: naming the file, which is no image.
    """
    if is_dicom(path):
        return dicom_size(path)
    with opened(path) as file:
        width, height = file.size
        return (width, height) if orientation_of(file) in _ON_ITS_SIDE else (height, width)


def nearest(masks: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Resize masks ``[N, J, H, W]``, bool or numbers below 256, to (height, width) with no value between; None leaves.

    Each takes its nearest pixel.
    """
    if size is None or tuple(masks.shape[2:]) == tuple(size):
        return masks
    return F.interpolate(masks.to(torch.uint8), size=tuple(size), mode="nearest-exact").to(masks.dtype)


def as_bits(numbers: Tensor, n_classes: int) -> Tensor:
    """Return a mask for each class ``[..., J, H, W]`` bool, of the classes' numbers ``[..., H, W]``."""
    classes = torch.arange(1, n_classes + 1, device=numbers.device).view(-1, 1, 1)
    return numbers.unsqueeze(-3) == classes


def as_numbers(scores: Tensor) -> Tensor:
    """Return the number of the class with the highest score, of those above ½; else 0, background.

    Args:
        scores: ``[..., J, H, W]``.

    Returns:
        ``[..., H, W]`` int64.

    Example:
        >>> import torch
        >>> as_numbers(torch.tensor([[[0.2, 0.6, 0.7]], [[0.4, 0.9, 0.1]]]))
        tensor([[0, 2, 1]])
    """
    best = scores.max(dim=-3)
    return torch.where(best.values > 0.5, best.indices + 1, 0)


def colour_of(k: int) -> tuple[int, int, int]:
    """Return the colour of class k, from 0, as 0 … 255 of red, green and blue."""
    return PALETTE[k % len(PALETTE)]


def write_mask(path: Path, numbers: Tensor) -> None:
    """Write the numbers ``[H, W]`` of classes as a PNG with a palette: programs read numbers, people see colours."""
    from PIL import Image

    image = Image.fromarray(numbers.cpu().numpy().astype(np.uint8))
    image.putpalette([0, 0, 0, *(value for k in range(MOST_CLASSES) for value in colour_of(k))])
    image.save(path, format="PNG")
