"""From ink on a canvas to the image that a network was trained on: MNIST's preprocessing, and affine changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import as_number, check_at_least, check_floating, check_shapes
from torchcaps.ops.precision import at_least_float32
from torchcaps.typed import typed

#: Side of the box that MNIST scales a digit into, and of the image in whose middle it stands.
BOX, SIDE = 20, 28
#: Ink below this is none: what is left of a wiped stroke's edge.
FAINTEST = 0.04


@typed
def fit_drawing(ink: Tensor) -> Tensor:
    """Cut out the ink, scale it into 20×20, and lay its centre of mass in the middle of 28×28, as MNIST does.

    Args:
        ink: ``[H, W]`` of values 0 … 1, 1 where there is ink.

    Returns:
        ``[1, 28, 28]`` of values 0 … 1; black where there is no ink.

    Raises:
        ValueError: another shape.

    Example:
        >>> import torch
        >>> ink = torch.zeros(140, 140)
        >>> ink[10:110, 20:40] = 1
        >>> image = fit_drawing(ink)
        >>> image.shape, int((image > 0.5).any(dim=2).sum()), int((image > 0.5).any(dim=1).sum())  # rows, columns
        (torch.Size([1, 28, 28]), 20, 4)

    Source: LeCun, Cortes, Burges, "The MNIST database": 20×20 with the aspect ratio kept, centred by mass in 28×28.
    """
    check_shapes(ink=(ink, "H W"))
    check_floating("ink", ink)
    if ink.is_meta or not ink.isfinite().all():
        raise ValueError(f"ink must be numbers 0 … 1, got others, on {ink.device}")
    ink = ink.detach().float()
    box = _cut(ink)
    if box is None:
        return torch.zeros(1, SIDE, SIDE)
    scale = BOX / max(box.shape)
    height, width = (max(1, _nearest(n * scale)) for n in box.shape)
    enlarges = scale > 1
    digit = F.interpolate(
        box[None, None],
        size=(height, width),
        mode="bilinear" if enlarges else "area",  # the mean of the pixels that a pixel covers
        align_corners=False if enlarges else None,
    )[0, 0]
    y, x = _centre_of_mass(digit)
    # In all of MNIST's own images it lies within the pixel that is right below the middle: 14 … 15, not 13.5 … 14.5.
    return _placed(digit, _up(SIDE / 2 - y), _up(SIDE / 2 - x))[None]


def overlay_drawings(inks: Sequence[Tensor], margin: int) -> Tensor:
    """Fit each drawing on its own, shift it by where it was drawn, and sum them, as pairs to train on are made.

    Args:
        inks: ``[H, W]`` each, of one size.
        margin: pixels on every side beyond 28×28, and the largest shift.

    Returns:
        ``[1, 28 + 2 margin, 28 + 2 margin]`` of values 0 … 1.

    Source: Sabour et al. 2017, section 6.
    """
    check_at_least("margin", margin, 0)
    side = SIDE + 2 * margin
    image = torch.zeros(side, side)
    for ink in inks:
        down, right = (_shift(centre, n, margin) for centre, n in zip(_centre_of_mass(ink), ink.shape))
        image += _placed(fit_drawing(ink)[0], margin + down, margin + right, side)
    return image.clamp_max(1)[None]


@typed
def transform_image(
    image: Tensor, *, rotate: float = 0.0, shift: tuple[float, float] = (0.0, 0.0), shear: float = 0.0
) -> Tensor:
    """Shear an image, rotate it and shift it; what comes in from outside is black.

    Args:
        image: ``[C, H, W]``.
        rotate: degrees, clockwise.
        shift: pixels (to the right, down).
        shear: pixels to the right for each pixel upwards.

    Returns:
        ``[C, H, W]``; the very same image where nothing is changed.

    Raises:
        ValueError: another shape, or a number that is none.
    """
    check_shapes(image=(image, "C H W"))
    check_floating("image", image)
    rotate, shear = (_finite(name, value) for name, value in (("rotate", rotate), ("shear", shear)))
    shift = _finite("shift", shift[0]), _finite("shift", shift[1])
    if not image.numel() or image.is_meta:
        raise ValueError(f"image must have pixels, got shape {list(image.shape)} on {image.device}")
    if not (rotate or shear or any(shift)):
        return image
    height, width = image.shape[1:]
    c, s = math.cos(math.radians(rotate)), math.sin(math.radians(rotate))
    # In pixels (x right, y down) the change is R K p + t; the grid wants its inverse, K⁻¹ R⁻¹ (q − t).
    inverse = torch.tensor([[1.0, shear], [0.0, 1.0]]) @ torch.tensor([[c, s], [-s, c]])
    offset = -inverse @ torch.tensor(shift)
    scale = torch.tensor([width / 2, height / 2])
    theta = torch.cat((inverse * scale[None] / scale[:, None], (offset / scale)[:, None]), dim=1)
    grid = F.affine_grid(theta[None], [1, *image.shape], align_corners=False)
    wide = at_least_float32(image)
    return F.grid_sample(wide[None], grid.to(wide), align_corners=False)[0].to(image)


def _finite(name: str, value: float) -> float:
    number = as_number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def _cut(ink: Tensor) -> Tensor | None:
    """Return the smallest rectangle that holds all ink."""
    marked = ink > FAINTEST
    rows, columns = marked.any(dim=1).nonzero().flatten(), marked.any(dim=0).nonzero().flatten()
    if not len(rows):
        return None
    return ink[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]


def _centre_of_mass(ink: Tensor) -> tuple[float, float]:
    """Return (row, column), measured from the upper left corner; the middle where there is no ink."""
    height, width = ink.shape
    mass = float(ink.sum())
    if mass <= 0:
        return height / 2, width / 2
    rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
    return float((ink.sum(dim=1) * rows).sum()) / mass, float((ink.sum(dim=0) * columns).sum()) / mass


def _placed(part: Tensor, first_row: int, first_column: int, side: int = SIDE) -> Tensor:
    """Lay a part into a black square, and cut off what stands out."""
    image = torch.zeros(side, side)
    a, b = max(0, first_row), max(0, first_column)
    c, d = min(side, first_row + part.shape[0]), min(side, first_column + part.shape[1])
    image[a:c, b:d] = part[a - first_row : c - first_row, b - first_column : d - first_column]
    return image


def _shift(centre: float, size: int, most: int) -> int:
    """Return how many of the network's pixels a drawing stands off the middle, at most ``most``."""
    return max(-most, min(most, _nearest((centre / size - 0.5) * SIDE)))


def _up(value: float) -> int:
    """Round up, but not what rounding alone puts above a whole number, as in a symmetric drawing."""
    return math.ceil(value - 1e-4)


def _nearest(value: float) -> int:
    """Round to the nearest whole number, a half down."""
    return _up(value - 0.5)
