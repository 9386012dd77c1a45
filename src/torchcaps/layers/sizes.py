"""Sizes of maps, and the check that a map has the right one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def conv_size(size: tuple[int, int], kernel_size: int, stride: int = 1, padding: int = 0) -> tuple[int, int]:
    """Height and width after a convolution.

    Raises:
        ValueError: the kernel is larger than the padded map.
    """
    for extent in size:
        if extent + 2 * padding < kernel_size:
            raise ValueError(
                f"a {kernel_size}×{kernel_size} kernel does not fit into a map of {size[0]}×{size[1]} "
                f"(padding {padding})"
            )
    height, width = ((extent + 2 * padding - kernel_size) // stride + 1 for extent in size)
    return height, width


def require_map(x: Tensor, channels: int, kernel_size: int = 1, padding: int = 0) -> None:
    """Refuse anything but ``[B, channels, H, W]`` of at least the kernel's size.

    Raises:
        ValueError: saying what was got.
    """
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(f"x must be [B, C={channels}, H, W], got shape {list(x.shape)}")
    conv_size((x.shape[2], x.shape[3]), kernel_size, 1, padding)


def as_image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width).

    Raises:
        ValueError: not three positive integers.
    """
    if len(shape) != 3 or not all(isinstance(size, int) and size >= 1 for size in shape):
        raise ValueError(f"image_shape must be (channels, height, width), got {tuple(shape)}")
    channels, height, width = shape
    return channels, height, width
