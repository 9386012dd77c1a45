"""Sizes of maps, and the check that a map has the right one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral

from torch import Tensor

from torchcaps.checks import check_at_least, check_tensor


def conv_size(
    size: tuple[int, int], kernel_size: int | tuple[int, int], stride: int = 1, padding: int = 0
) -> tuple[int, int]:
    """Height and width after a convolution, with a square kernel or one of (rows, columns).

    Raises:
        ValueError: the kernel is larger than the padded map.
    """
    kernel = kernel_size if isinstance(kernel_size, Sequence) else (kernel_size, kernel_size)
    for extent, side in zip(size, kernel, strict=True):
        if extent + 2 * padding < side:
            raise ValueError(
                f"a {kernel[0]}×{kernel[1]} kernel does not fit into a map of {size[0]}×{size[1]} (padding {padding})"
            )
    height, width = ((extent + 2 * padding - side) // stride + 1 for extent, side in zip(size, kernel, strict=True))
    return height, width


@contextmanager
def fitting(image_shape: tuple[int, int, int]) -> Iterator[None]:
    """Let what does not fit into an inner map say that the images are too small for the network."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"image_shape (channels, height, width) must be larger, got {image_shape}: {error}") from None


def require_map(x: Tensor, channels: int, kernel_size: int = 1, padding: int = 0) -> None:
    """Refuse anything but floats ``[B, channels, H, W]`` of at least the kernel's size.

    Raises:
        ValueError: saying what was got.
    """
    check_tensor("x", x)
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point, got {x.dtype}: torchcaps.data.to_float makes pixels 0 … 1")
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(f"x must be [B, C={channels}, H, W], got shape {list(x.shape)}")
    conv_size((x.shape[2], x.shape[3]), kernel_size, 1, padding)


def require_images(x: Tensor, image_shape: tuple[int, int, int]) -> None:
    """Refuse anything but images of the shape that a model was made for.

    Raises:
        ValueError: saying what was got.
    """
    require_map(x, image_shape[0])
    if tuple(x.shape[1:]) != image_shape:
        raise ValueError(f"x must be images of {list(image_shape)}, got {list(x.shape[1:])}")


def check_convolution(in_channels: int, n_types: int, d_out: int, kernel_size: int, stride: int, padding: int) -> None:
    """Refuse sizes that no convolution into capsules has.

    Raises:
        ValueError: naming the one that is too small.
    """
    for name, value in (("in_channels", in_channels), ("n_types", n_types), ("d_out", d_out)):
        check_at_least(name, value, 1)
    check_at_least("kernel_size", kernel_size, 1)
    check_at_least("stride", stride, 1)
    check_at_least("padding", padding, 0)


def as_image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width).

    Raises:
        ValueError: not three positive integers.
    """
    got = tuple(shape) if isinstance(shape, Iterable) else shape
    if not isinstance(got, tuple) or len(got) != 3 or not all(isinstance(n, Integral) and n >= 1 for n in got):
        raise ValueError(f"image_shape must be (channels, height, width), got {got!r}")
    channels, height, width = map(int, got)
    return channels, height, width
