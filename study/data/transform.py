"""The same smooth change of every image: turned, shifted, scaled, thickened.

What leaves the image is lost; what comes in is as the nearest pixel of its edge, so that grounds of any colour go on.
Images are floats ``[B, C, H, W]``; others are a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_positive, check_shapes
from torchcaps.ops.affine import resample
from torchcaps.ops.precision import at_least_float32, constant

#: How many times finer the grid is on which thickness is changed, and all changes by name.
_FINER = 4


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn counter-clockwise about the centre, ``[B, C, H, W]`` → the same; 0 changes nothing, 180 is exact."""
    _check(images)
    if degrees % 180 == 0:
        return images.flip(2, 3) if degrees % 360 else images
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _warp(images, ((cos, -sin, 0.0), (sin, cos, 0.0)))


def shift_right(images: Tensor, pixels: float) -> Tensor:
    """Move right, left where negative; parts of a pixel too."""
    _check(images)
    return _warp(images, ((1.0, 0.0, -pixels), (0.0, 1.0, 0.0))) if pixels else images


def scale(images: Tensor, factor: float) -> Tensor:
    """Enlarge about the centre, shrink below 1.

    Raises:
        ValueError: a factor that is not above 0.
    """
    _check(images)
    check_positive("factor", factor)
    return _warp(images, ((1 / factor, 0.0, 0.0), (0.0, 1 / factor, 0.0))) if factor != 1 else images


def thicken(images: Tensor, pixels: float) -> Tensor:
    """Grow what is bright by so many pixels on every side, or let it shrink where negative, in quarters of a pixel.

    Dilation and erosion of grey values by a disc, on a grid four times finer.

    Source: Castro et al. 2019 ("Morpho-MNIST"), section 2.2, who also work on a four times finer grid.
    """
    _check(images)
    return TRANSFORMATIONS["thicken"](images, pixels) if _radius(pixels) else images


def _radius(pixels: float) -> int:
    """In pixels of the finer grid."""
    return round(abs(pixels) * _FINER)


def _grow(fine: Tensor, pixels: float) -> Tensor:
    """Thicken what has been brought to the finer grid, by so many pixels of the coarse one."""
    radius, sign = _radius(pixels), 1 if pixels > 0 else -1
    around = F.pad(sign * fine, (radius,) * 4, mode="replicate")
    height, width = fine.shape[2:]
    grown = sign * fine
    for down in range(-radius, radius + 1):
        for right in range(-radius, radius + 1):
            if down**2 + right**2 <= radius**2:
                top, left = radius + down, radius + right
                grown = torch.maximum(grown, around[:, :, top : top + height, left : left + width])
    return sign * grown


def _evenly(change: Callable[[Tensor, float], Tensor], mode: str = "bicubic") -> Callable[[Tensor, float], Tensor]:
    """Make a change on a grid four times finer, which images go through even if the change is none.

    So all values cost the same sharpness. On the image's own grid what falls on whole pixels would stay sharp and all
    else be blurred, and a network's answers to the two would differ by that alone.
    """

    def changed(images: Tensor, value: float) -> Tensor:
        _check(images)
        if not images.numel():
            return images
        fine = F.interpolate(images, scale_factor=_FINER, mode=mode, align_corners=False)
        least, most = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)  # bicubic overshoots
        return F.avg_pool2d(change(fine.clamp(least, most), value), _FINER)

    return changed


#: The changes by name: each takes images ``[B, C, H, W]`` and one number, for all of them the same. All values blur
#: alike, also those that change nothing.
TRANSFORMATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "rotate": _evenly(rotate),
    "shift": _evenly(lambda fine, pixels: shift_right(fine, pixels * _FINER)),
    "scale": _evenly(scale),
    "thicken": _evenly(_grow, "bilinear"),  # which does not reach beyond the neighbours
}

#: The values that change nothing.
NEUTRAL = {"rotate": 0, "shift": 0, "scale": 1, "thicken": 0}


def _check(images: Tensor) -> None:
    """Refuse images that cannot be interpolated."""
    check_shapes(images=(images, "B C H W"))
    if not images.is_floating_point():
        raise ValueError(f"images must be floats, such as to_float(images) makes of them, got {images.dtype}")


def _warp(images: Tensor, rows: tuple[tuple[float, float, float], tuple[float, float, float]]) -> Tensor:
    """Take every pixel from where the map sends it: rows x and y of it, in pixels right and down from the centre."""
    height, width = images.shape[2:]
    (xx, xy, x0), (yx, yy, y0) = rows
    unit = ((xx, xy * height / width, 2 * x0 / width), (yx * width / height, yy, 2 * y0 / height))
    halves = torch.stack([constant(row, at_least_float32(images[:0])) for row in unit])
    return resample(images, halves.expand(len(images), 2, 3), padding="border").to(images.dtype)
