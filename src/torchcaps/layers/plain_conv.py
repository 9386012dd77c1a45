"""The convolution of networks without capsules, and in front of capsules."""

from __future__ import annotations

import math

from torch import Tensor, nn

from torchcaps.checks import check_at_least
from torchcaps.layers.init import truncated_normal_
from torchcaps.layers.sizes import Two, windows
from torchcaps.ops import conv2d


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
