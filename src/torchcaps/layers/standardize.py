"""Each image on its own scale."""

from __future__ import annotations

import math

from torch import Tensor, nn

from torchcaps.checks import check_floating, check_shapes
from torchcaps.ops.precision import at_least_float32


class Standardize(nn.Module):
    """Zero mean and unit variance for each image, over all its channels and pixels.

    As the first layer of a model it makes a user's images, an attack's and a recipe's alike; scale and
    brightness of the input do not matter. The deviation is at least 1/√n for n numbers of range 0 … 255 (as
    in the authors' code), here of range 0 … 1; so a flat image becomes 0.

    Input:
        x: ``[B, C, H, W]``.

    Output:
        the same shape.

    Raises:
        ValueError: another number of axes, or numbers that are not floating point: convert pixels first.

    Source: Hinton, Sabour, Frosst 2018, section 5 (data).
    """

    def forward(self, x: Tensor) -> Tensor:
        check_shapes(x=(x, "B C H W"))
        check_floating("x", x)
        wide = at_least_float32(x)  # the least deviation is 0 in float16
        centred = wide - wide.mean(dim=(1, 2, 3), keepdim=True)
        centred = centred - centred.mean(dim=(1, 2, 3), keepdim=True)  # of what rounding left, which the floor enlarges
        variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
        least = 1 / (255**2 * max(1, math.prod(x.shape[1:])))
        return (centred * variance.clamp_min(least).rsqrt()).to(x.dtype)
