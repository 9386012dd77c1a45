"""The convolution of networks without capsules, and in front of capsules."""

from __future__ import annotations

import math

from torch import Tensor, nn

from torchcaps.checks import check_at_least
from torchcaps.layers.init import truncated_normal_
from torchcaps.ops import conv2d


class Conv2d(nn.Conv2d):
    """:class:`torch.nn.Conv2d`, trained faster on CPUs by :func:`torchcaps.ops.conv2d`.

    Args:
        in_channels: C.
        out_channels: C'.
        kernel_size: square.
        stride: in both directions.
        padding: zeros on every side.
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
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ) -> None:
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size, "stride": stride}
        for name, size in sizes.items():
            check_at_least(name, size, 1)
        check_at_least("padding", padding, 0)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        return conv2d(input, self.weight, self.bias, stride=self.stride[0], padding=int(self.padding[0]))


class FirstConv2d(nn.Conv2d):
    """What a capsule network sees an image with: torch's convolution, with weights for a ReLU after it.

    Source: He et al. 2015 (their scale).
    """

    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place."""
        super().reset_parameters()  # draws as well: a seed gives the network that it always gave
        truncated_normal_(self.weight, math.sqrt(2 / self.weight[0].numel()))
        if self.bias is not None:
            nn.init.zeros_(self.bias)
