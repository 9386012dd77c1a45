"""Convolutions on images and feature maps, and what comes before them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_floating, check_shapes
from torchcaps.layers.init import truncated_normal_
from torchcaps.layers.shapes import Two, windows
from torchcaps.ops import conv2d
from torchcaps.ops.precision import at_least_float32


def channels_last(x: Tensor) -> Tensor:
    """Lay a pixel's channels side by side in memory ``[B, C, H, W]``, and so in the maps that are made from them.

    On CPUs pooling and the convolutions of :func:`torchcaps.ops.spectral.spectral_conv2d` read such maps faster. Images
    of one channel are laid out too, which torch's ``memory_format`` leaves as they are; and vmap refuses that.
    """
    return x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)


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

    Example:
        >>> import torch
        >>> x = Standardize()(torch.rand(2, 1, 8, 8))
        >>> bool(x.mean().abs() < 1e-5)
        True

    Source: Hinton, Sabour, Frosst 2018, section 5 (data).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Bring each image ``[B, C, H, W]`` to mean 0 and variance 1."""
        check_shapes(x=(x, "B C H W"))
        check_floating("x", x)
        wide = at_least_float32(x)  # the least deviation is 0 in float16
        centred = wide - wide.mean(dim=(1, 2, 3), keepdim=True)
        centred = centred - centred.mean(dim=(1, 2, 3), keepdim=True)  # of what rounding left, which the floor enlarges
        variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
        least = 1 / (255**2 * max(1, math.prod(x.shape[1:])))
        return (centred * variance.clamp_min(least).rsqrt()).to(x.dtype)


class Conv2d(nn.Conv2d):
    """:class:`torch.nn.Conv2d`, trained faster on CPUs by :func:`torchcaps.ops.conv2d`.

    Args:
        in_channels: C.
        out_channels: C'.
        kernel_size: of the convolution, or (rows, columns).
        stride: in both directions, or (rows, columns).
        padding: zeros on every side, or (above and below, left and right).
        bias: whether a number is added to each channel.

    Input:
        x: ``[B, C, H, W]``.

    Output:
        ``[B, C', H', W']``.

    Raises:
        ValueError: sizes that are no integers, or too small.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Two,
        stride: Two = 1,
        padding: Two = 0,
        bias: bool = True,
    ) -> None:
        for name, size in {"in_channels": in_channels, "out_channels": out_channels}.items():
            check_at_least(name, size, 1)
        super().__init__(in_channels, out_channels, *windows(kernel_size, stride, padding), bias=bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Convolve images ``[B, C, H, W]`` into ``[B, C', H', W']``."""
        assert not isinstance(self.padding, str)
        (down, right), (rows, columns) = self.stride, self.padding
        return conv2d(input, self.weight, self.bias, stride=(down, right), padding=(rows, columns))


class ReLUConv2d(Conv2d):
    """What capsule networks have before their capsules: a convolution with weights for a ReLU after it.

    Source: He et al. 2015 (their scale).
    """

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place."""
        super().reset_parameters()  # draws as well: a seed gives the network that it always gave
        truncated_normal_(self.weight, math.sqrt(2 / self.weight[0].numel()))
        if self.bias is not None:
            nn.init.zeros_(self.bias)
