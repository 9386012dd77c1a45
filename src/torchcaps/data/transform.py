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

from torchcaps.checks import check_shapes

#: Thickness is changed on a grid so many times finer.
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
    if not factor > 0:
        raise ValueError(f"factor must be above 0, got {factor}")
    return _warp(images, ((1 / factor, 0.0, 0.0), (0.0, 1 / factor, 0.0))) if factor != 1 else images


def thicken(images: Tensor, pixels: float) -> Tensor:
    """Grow what is bright by so many pixels on every side, or let it shrink where negative, in quarters of a pixel.

    Dilation and erosion of grey values by a disc, on a grid four times finer.

    Source: Castro et al. 2019 ("Morpho-MNIST"), section 2.2, who also work on a four times finer grid.
    """
    _check(images)
    radius = round(abs(pixels) * _FINER)
    if radius == 0:
        return images
    sign = 1 if pixels > 0 else -1
    fine = F.interpolate(sign * images, scale_factor=_FINER, mode="bilinear", align_corners=False)
    around = F.pad(fine, (radius,) * 4, mode="replicate")
    height, width = fine.shape[2:]
    grown = fine
    for down in range(-radius, radius + 1):
        for right in range(-radius, radius + 1):
            if down**2 + right**2 <= radius**2:
                top, left = radius + down, radius + right
                grown = torch.maximum(grown, around[:, :, top : top + height, left : left + width])
    return sign * F.avg_pool2d(grown, _FINER)


#: The changes by name: each takes images ``[B, C, H, W]`` and one number, for all of them the same.
TRANSFORMATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "rotate": rotate,
    "shift": shift_right,
    "scale": scale,
    "thicken": thicken,
}


def _check(images: Tensor) -> None:
    """Refuse images that cannot be interpolated."""
    check_shapes(images=(images, "B C H W"))
    if not images.is_floating_point():
        raise ValueError(f"images must be floats, such as to_float(images) makes of them, got {images.dtype}")


def _warp(images: Tensor, rows: tuple[tuple[float, float, float], tuple[float, float, float]]) -> Tensor:
    """Take every pixel from where the map sends it: rows x and y of it, in pixels right and down from the centre."""
    height, width = images.shape[2:]
    (xx, xy, x0), (yx, yy, y0) = rows
    # affine_grid counts in halves of the image's width and height.
    unit = ((xx, xy * height / width, 2 * x0 / width), (yx * width / height, yy, 2 * y0 / height))
    theta = torch.tensor(unit, dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
