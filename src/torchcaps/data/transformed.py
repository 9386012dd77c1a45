"""Images, a known transformation, and the transformed images: what a transforming auto-encoder learns from."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.checks import check_number, check_shapes
from torchcaps.data.augment import to_device
from torchcaps.ops.affine import AffineParts, Fill, affine_inverse, affine_matrix, warp
from torchcaps.ops.precision import without_autocast
from torchcaps.typed import typed


class Limits(NamedTuple):
    """How far random transformations go.

    Attributes:
        shift: pixels in each direction; whole ones if nothing else changes, so that images stay as sharp.
        degrees: rotation within ±degrees.
        scale: size within 1 ± scale, along x and y each.
        shear: shear within ±shear.
    """

    shift: float = 0.0
    degrees: float = 0.0
    scale: float = 0.0
    shear: float = 0.0

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n of them as matrices ``[n, 3, 3]`` (``torchcaps.ops.affine``), on the CPU.

        Args:
            n: how many.
            generator: on the CPU, so that every device draws the same.

        Raises:
            ValueError: a negative limit, or a scale of 1 or more, which would mirror.
        """
        for name in ("shift", "degrees", "shear"):
            check_number(name, getattr(self, name), 0)
        check_number("scale", self.scale)
        if not 0 <= self.scale < 1:
            raise ValueError(f"scale must be at least 0 and below 1, got {self.scale}")
        draw = 2 * torch.rand(n, 6, generator=generator, device="cpu") - 1  # in −1 … 1
        shift = self.shift * draw[:, 4:]
        if not (self.degrees or self.scale or self.shear):
            # The same chance for each of the whole numbers.
            most = math.floor(self.shift)
            shift = ((2 * most + 1) * draw[:, 4:] / 2).round().clamp(-most, most)
        angle = math.radians(self.degrees) * draw[:, 0]
        return affine_matrix(AffineParts(angle, 1 + self.scale * draw[:, 1:3], self.shear * draw[:, 3], shift))


class TransformedPair(NamedTuple):
    """What the network sees, the transformation that it is given, and what it is to reconstruct.

    Attributes:
        images: ``[B, C, H, W]``.
        transformation: T of each, ``[B, 3, 3]``.
        transformed: ``[B, C, H, W]``.
    """

    images: Tensor
    transformation: Tensor
    transformed: Tensor


@typed
def transformed_pairs(
    images: Tensor,
    limits: Limits,
    generator: torch.Generator,
    size: tuple[int, int] | None = None,
    *,
    fill: Fill = "zeros",
) -> TransformedPair:
    """Transform each image in two ways, on the device where they live.

    With random S and S' the network sees S x, is given T = S' S⁻¹, and is to reconstruct S' x = T S x. Both are made
    from x, so that each is interpolated once, and both go equally far, so that what it learns to see is also what it is
    asked about when poses are compared. (Images of a data set are often centred and upright: shown as they are, they
    would all have the same pose.)

    Args:
        images: x, floats ``[B, C, h, w]``.
        limits: of S and of S'; shifts within ±2 make those of T within ±4.
        generator: on the CPU, so that every device draws the same.
        size: (H, W) of both results, cut about the centre; that of the images by default.
        fill: what comes in from beyond the image, see :func:`torchcaps.ops.warp`.

    Raises:
        ValueError: an unknown ``fill``.
    """
    check_shapes(images=(images, "B C h w"))
    first, second = (to_device(limits.draw(len(images), generator), images.device) for _ in range(2))
    with without_autocast(first):  # bfloat16 would round it
        between = second @ affine_inverse(first)
    return TransformedPair(warp(images, first, size, fill=fill), between, warp(images, second, size, fill=fill))
