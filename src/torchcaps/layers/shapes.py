"""Sizes of maps, and the check that a map has the right one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral

from torch import Tensor, nn

from torchcaps.checks import as_two, check_at_least, check_beside, check_tensor
from torchcaps.ops.precision import autocasts

#: For rows and columns alike, or (rows, columns).
Two = int | tuple[int, int]
#: What describes the windows of a layer.
WINDOW = ("kernel_size", "stride", "padding")


def conv_size(size: tuple[int, int], kernel_size: Two, stride: Two = 1, padding: Two = 0) -> tuple[int, int]:
    """Height and width after a convolution.

    Raises:
        ValueError: the kernel is larger than the padded map.
    """
    kernel, step, around = windows(kernel_size, stride, padding)
    room = [extent + 2 * edge for extent, edge in zip(size, around, strict=True)]
    if any(extent < side for extent, side in zip(room, kernel, strict=True)):
        raise ValueError(
            f"a {kernel[0]}×{kernel[1]} kernel does not fit into a map of {size[0]}×{size[1]} "
            f"(padding {around[0] if around[0] == around[1] else around})"
        )
    height, width = ((extent - side) // by + 1 for extent, side, by in zip(room, kernel, step, strict=True))
    return height, width


def same_padding(extent: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and behind an axis with which a convolution makes ⌈extent / stride⌉ places of it.

    Of an odd number one more stands behind, as Keras and TensorFlow have it: torch's convolutions pad both ends alike.
    """
    places = -(-extent // stride)
    total = max(0, (places - 1) * stride + kernel - extent)
    return total // 2, total - total // 2


def receptive_field(axis: int, layers: Iterable[nn.Module]) -> tuple[float, int, int]:
    """Return where the first place looks after layers with windows, along rows (0) or columns (1), in pixels.

    Returns:
        Centre of its field (pixel 0 has its centre at 0), the step from one field to the next, and their extent.
    """
    first, step, extent = 0.0, 1, 1
    for layer in layers:
        kernel, stride, padding = (as_two(name, getattr(layer, name), 0)[axis] for name in WINDOW)
        first += ((kernel - 1) / 2 - padding) * step
        extent += (kernel - 1) * step
        step *= stride
    return first, step, extent


@contextmanager
def image_too_small(image_shape: tuple[int, int, int]) -> Iterator[None]:
    """Let what does not fit into an inner map say that the images are too small for the network."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"image_shape (channels, height, width) must be larger, got {image_shape}: {error}") from None


def check_feature_map(x: Tensor, channels: int, kernel_size: Two = 1, padding: Two = 0) -> None:
    """Refuse anything but floats ``[B, channels, H, W]`` of at least the kernel's size.

    Raises:
        ValueError: saying what was got.
    """
    check_tensor("x", x)
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point, got {x.dtype}: torchcaps.data.to_float makes pixels 0 … 1")
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(f"x must be [B, C={channels}, H, W], got shape {list(x.shape)}")
    try:
        conv_size((x.shape[2], x.shape[3]), kernel_size, 1, padding)
    except ValueError as error:
        raise ValueError(f"x must hold larger maps, got shape {list(x.shape)}: {error}") from None


def check_like(name: str, x: Tensor, parameter: object) -> None:
    """Refuse another device or dtype than the parameter's that it meets first, unless autocast chooses.

    Raises:
        ValueError: saying what was got.
    """
    if type(parameter) is not nn.Parameter:  # sharded or quantized ones, which know better what they take
        return
    check_beside(name, x, "the parameters", parameter)
    if x.dtype != parameter.dtype and not autocasts(x.device.type):
        raise ValueError(f"{name} must be {parameter.dtype} as the parameters are, got {x.dtype}")


def require_images(x: Tensor, image_shape: tuple[int, int, int]) -> None:
    """Refuse anything but images of the shape that a model was made for.

    Raises:
        ValueError: saying what was got.
    """
    check_feature_map(x, image_shape[0])
    if tuple(x.shape[1:]) != image_shape:
        raise ValueError(f"x must be images of {list(image_shape)}, got {list(x.shape[1:])}")


def check_capsules(in_channels: int, n_types: int, d_out: int) -> None:
    """Refuse sizes that no convolution into capsules has.

    Raises:
        ValueError: naming the one that is too small.
    """
    for name, value in (("in_channels", in_channels), ("n_types", n_types), ("d_out", d_out)):
        check_at_least(name, value, 1)


def windows(kernel_size: Two, stride: Two, padding: Two) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Kernel, stride and padding of a convolution, each of rows and columns.

    Raises:
        ValueError: naming the one that is no such size.
    """
    return as_two("kernel_size", kernel_size, 1), as_two("stride", stride, 1), as_two("padding", padding, 0)


def as_image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width).

    Raises:
        ValueError: not three positive integers.
    """
    try:
        got = tuple(shape)
    except TypeError:
        got = shape
    if not isinstance(got, tuple) or len(got) != 3 or not all(isinstance(n, Integral) and 1 <= n < 2**31 for n in got):
        raise ValueError(f"image_shape must be (channels, height, width), got {got!r}")
    channels, height, width = map(int, got)
    return channels, height, width
