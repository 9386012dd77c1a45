"""Batched augmentation on the device where the images live."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def shift(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """Move each image by its own whole number of pixels on a canvas ``pad`` larger on every side.

    Args:
        images: ``[B, C, H, W]``.
        offsets: (down, right) of each image, ``[B, 2]`` int64, within ±``pad``.
        pad: zeros added on every side.

    Returns:
        ``[B, C, H + 2 pad, W + 2 pad]``.
    """
    n, _, height, width = images.shape
    padded = F.pad(images, (2 * pad,) * 4)
    rows = torch.arange(height + 2 * pad, device=images.device) + pad - offsets[:, :1]  # [B, H + 2 pad]
    columns = torch.arange(width + 2 * pad, device=images.device) + pad - offsets[:, 1:]  # [B, W + 2 pad]
    batch = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_shift(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Shift each image by up to ``most`` pixels in each direction, filling with zeros.

    Args:
        images: ``[B, C, H, W]``.
        most: largest shift; the paper's 2 for MNIST.
        generator: on the CPU, so that every device draws the same.

    Source: Sabour et al. 2017, section 5.
    """
    if most == 0:
        return images
    offsets = torch.randint(-most, most + 1, (len(images), 2), generator=generator).to(images.device)
    return shift(images, offsets, most)[:, :, most:-most, most:-most]


def random_affine(
    images: Tensor,
    generator: torch.Generator,
    *,
    degrees: float = 0.0,
    scale: float = 0.0,
    shear: float = 0.0,
    translate: float = 0.0,
) -> Tensor:
    """Warp each image by its own random affine transformation, interpolating bilinearly.

    Args:
        images: floats ``[B, C, H, W]``.
        generator: on the CPU, so that every device draws the same.
        degrees: rotation within ±degrees.
        scale: size within 1 ± scale.
        shear: horizontal shear within ±shear.
        translate: shift within ± that many pixels, fractions too.
    """
    n, _, height, width = images.shape
    draw = (2 * torch.rand(n, 5, generator=generator) - 1).to(images.device)  # [B, 5] in −1 … 1
    angle, size, slant = math.radians(degrees) * draw[:, 0], 1 + scale * draw[:, 1], shear * draw[:, 2]
    cos, sin = angle.cos() / size, angle.sin() / size
    # Rows of the inverse map from output to input, in units of half the image's width and height.
    x_row = torch.stack((cos, (sin + slant * cos) * height / width, -2 * translate * draw[:, 3] / width), dim=1)
    y_row = torch.stack((-sin * width / height, cos - slant * sin, -2 * translate * draw[:, 4] / height), dim=1)
    grid = F.affine_grid(torch.stack((x_row, y_row), dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
