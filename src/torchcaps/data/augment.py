"""Batched augmentation on the device where the images live."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_choice
from torchcaps.ops.affine import FILLS, Fill, resample
from torchcaps.ops.precision import constant


def to_device(drawn: Tensor, device: torch.device) -> Tensor:
    """Move what was drawn on the CPU to where the images live; the host does not wait until a GPU has it."""
    if device.type != "cuda":
        return drawn.to(device)
    return drawn.pin_memory().to(device, non_blocking=True)


def shift(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """Move each image by its own whole number of pixels on a canvas ``pad`` larger on every side.

    Args:
        images: ``[B, C, H, W]``.
        offsets: (down, right) of each image, ``[B, 2]`` int64, within ±``pad``.
        pad: zeros added on every side.

    Returns:
        ``[B, C, H + 2 pad, W + 2 pad]``.
    """
    _, _, height, width = images.shape
    return crop(F.pad(images, (2 * pad,) * 4), pad - offsets, (height + 2 * pad, width + 2 * pad))


def crop(images: Tensor, corners: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut from each image its own window.

    Args:
        images: ``[B, C, H, W]``.
        corners: (row, column) of each window's upper left pixel, ``[B, 2]`` int64; all of the window
            within the image.
        size: (height, width) of the windows.

    Returns:
        ``[B, C, height, width]``.
    """
    rows = torch.arange(size[0], device=images.device) + corners[:, :1]  # [B, height]
    columns = torch.arange(size[1], device=images.device) + corners[:, 1:]  # [B, width]
    return _take(images, rows, columns)


def _take(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Take from each image its own rows ``[B, height]`` and columns ``[B, width]``: ``[B, C, height, width]``."""
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    windows = images.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    # Channels first, of one channel too: oneDNN's gradient of strided 1×1 convolutions writes beyond its memory
    # where few channels lie last (uxlfoundation/oneDNN#6035), as in a ResNet's first shortcut.
    return windows.clone(memory_format=torch.contiguous_format)


def random_corners(images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Draw a corner for each image to :func:`crop` at, any one that keeps the window within the image.

    Args:
        images: ``[B, C, H, W]``.
        size: (height, width) of the windows, at most (H, W).
        generator: on the CPU, so that every device draws the same.

    Returns:
        (row, column), ``[B, 2]`` int64.
    """
    n, _, height, width = images.shape
    rows = torch.randint(height - size[0] + 1, (n,), generator=generator, device="cpu")
    columns = torch.randint(width - size[1] + 1, (n,), generator=generator, device="cpu")
    return to_device(torch.stack((rows, columns), dim=1), images.device)


#: Where windows to average over lie, as (down, right) of the central one: that one, then four each
#: at the corners of squares around it. Source: the released code of Hinton et al. 2018.
CROPS_13 = ((0, 0), *((r * k, c * k) for k in (1, 2, 3) for r in (-1, 1) for c in (-1, 1)))


def central_crop(images: Tensor, size: tuple[int, int], offset: tuple[int, int] = (0, 0)) -> Tensor:
    """Cut the same window from every image.

    Args:
        images: ``[..., H, W]``.
        size: (height, width) of the window.
        offset: (down, right) from the centre; the whole window within the image.

    Returns:
        ``[..., height, width]``, a view. Where the centre falls between two pixels it is rounded up
        and to the left.
    """
    row, column = ((have - want) // 2 + by for have, want, by in zip(images.shape[-2:], size, offset, strict=True))
    return images[..., row : row + size[0], column : column + size[1]]


def random_shift(images: Tensor, most: int, generator: torch.Generator, fill: Fill = "zeros") -> Tensor:
    """Shift each image by up to ``most`` pixels in each direction.

    Args:
        images: ``[B, C, H, W]``.
        most: largest shift; the paper's 2 for MNIST.
        generator: on the CPU, so that every device draws the same.
        fill: what comes in, one of :data:`FILLS`; zeros are black, which frames photographs.

    Raises:
        ValueError: an unknown ``fill``.

    Source: Sabour et al. 2017, section 5.
    """
    check_choice("fill", fill, FILLS)
    if most == 0:
        return images
    offsets = torch.randint(-most, most + 1, (len(images), 2), generator=generator, device="cpu")
    if fill != "zeros":
        by = to_device(offsets, images.device)
        rows, columns = (
            _within(torch.arange(size, device=images.device) - by[:, axis, None], size, fill)
            for axis, size in enumerate(images.shape[2:])
        )
        return _take(images, rows, columns)
    return shift(images, to_device(offsets, images.device), most)[:, :, most:-most, most:-most]


def _within(places: Tensor, size: int, fill: Fill) -> Tensor:
    """Find the pixels of a row of ``size`` that stand for those at any places."""
    if fill == "border":
        return places.clamp(0, size - 1)
    folded = places.remainder(2 * size)
    return torch.minimum(folded, 2 * size - 1 - folded)


def random_flip(images: Tensor, generator: torch.Generator, channels: Sequence[int] | None = None) -> Tensor:
    """Mirror about half of the images left to right.

    Args:
        images: ``[B, C, H, W]``.
        generator: on the CPU, so that every device draws the same.
        channels: their order in a mirror, where that is another: of a stereo pair the left eye's image becomes the
            right eye's, or what was near would seem far.
    """
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator, device="cpu") < 0.5
    mirror = images.flip(3)
    mirror = mirror if channels is None else torch.stack([mirror[:, channel] for channel in channels], dim=1)
    return torch.where(to_device(mirrored, images.device), mirror, images)


def random_gamma(images: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Raise each image to its own power γ: γ below 1 lights up what is dark, γ above 1 darkens it.

    Args:
        images: floats 0 … 1, ``[B, C, H, W]``.
        most: log γ is drawn evenly within ±``most``.
        generator: on the CPU, so that every device draws the same.
    """
    log_gamma = most * (2 * torch.rand(len(images), 1, 1, 1, generator=generator, device="cpu") - 1)
    gamma = to_device(log_gamma.exp(), images.device).to(images.dtype)
    return images.clamp_min(0) ** gamma  # of less than 0, NaN would come


def random_shading(images: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Let light fall off across each image, in a direction of its own, as if a lamp had been moved.

    Args:
        images: floats ``[B, C, H, W]``.
        most: pixels at the centre of the lower edge are multiplied by e^a and those of the upper one by e^−a, with a
            drawn evenly within ±``most``; those of the right and left edge likewise.
        generator: on the CPU, so that every device draws the same.
    """
    n, _, height, width = images.shape
    drawn = most * (2 * torch.rand(n, 2, generator=generator, device="cpu") - 1)
    down, right = to_device(drawn, images.device).T
    rows, columns = (torch.linspace(-1, 1, size, device=images.device) for size in (height, width))
    slope = down[:, None, None] * rows[:, None] + right[:, None, None] * columns  # [B, H, W]
    return images * slope.exp().to(images.dtype).unsqueeze(1)


def random_brightness(images: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Add to each image its own number within ±``most``, to all channels the same. Nothing is clipped.

    Args:
        images: floats ``[B, C, H, W]``.
        most: in units of the pixels.
        generator: on the CPU, so that every device draws the same.

    Source: ``tf.image.random_brightness``; 63 of 255 in the released code of Hinton et al. 2018.
    """
    by = most * (2 * torch.rand(len(images), 1, 1, 1, generator=generator, device="cpu") - 1)
    return images + to_device(by, images.device).to(images.dtype)


def random_contrast(images: Tensor, factors: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Scale each image by its own factor about the mean of each of its channels. Nothing is clipped.

    Args:
        images: floats ``[B, C, H, W]``.
        factors: smallest and largest.
        generator: on the CPU, so that every device draws the same.

    Source: ``tf.image.random_contrast``; 0.2 … 1.8 in the released code of Hinton et al. 2018.
    """
    least, most = factors
    factor = least + (most - least) * torch.rand(len(images), 1, 1, 1, generator=generator, device="cpu")
    mean = images.mean(dim=(2, 3), keepdim=True)  # [B, C, 1, 1]
    return mean + (images - mean) * to_device(factor, images.device).to(images.dtype)


def random_affine(
    images: Tensor,
    generator: torch.Generator,
    *,
    degrees: float = 0.0,
    scale: float = 0.0,
    shear: float = 0.0,
    translate: float = 0.0,
    aspect: float = 0.0,
    fill: Fill = "zeros",
) -> Tensor:
    """Warp each image by its own random affine transformation, interpolating bilinearly.

    Args:
        images: floats ``[B, C, H, W]``.
        generator: on the CPU, so that every device draws the same.
        degrees: rotation within ±degrees.
        scale: size within 1 ± scale.
        shear: horizontal shear within ±shear.
        translate: shift within ± that many pixels, fractions too.
        aspect: logarithm of width over height within ± that, at the same area, before the image is turned.
        fill: what comes in, one of :data:`FILLS`; zeros are black, which frames photographs.

    Raises:
        ValueError: an unknown ``fill``.
    """
    check_choice("fill", fill, FILLS)
    n, _, height, width = images.shape
    draw = to_device(2 * torch.rand(n, 5, generator=generator, device="cpu") - 1, images.device)  # [B, 5] in −1 … 1
    angle, size, slant = math.radians(degrees) * draw[:, 0], 1 + scale * draw[:, 1], shear * draw[:, 2]
    cos, sin = angle.cos() / size, angle.sin() / size
    # Rows of the inverse map from output to input, in units of half the image's width and height.
    x_row = torch.stack((cos, (sin + slant * cos) * height / width), dim=1)
    y_row = torch.stack((-sin * width / height, cos - slant * sin), dim=1)
    linear = torch.stack((x_row, y_row), dim=1)  # [B, 2, 2]
    if aspect:
        drawn = to_device(2 * torch.rand(n, 1, generator=generator, device="cpu") - 1, images.device)
        linear = linear * (0.5 * aspect * torch.cat((-drawn, drawn), dim=1)).exp()[:, :, None]
    shift = 2 * translate * draw[:, 3:] / constant((width, height), draw)  # of the output, after all else
    offset = -(linear * shift[:, None]).sum(dim=2, keepdim=True)  # no product of matrices: autocast would round it
    return resample(images, torch.cat((linear, offset), dim=2), padding=fill).to(images.dtype)
