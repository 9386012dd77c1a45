"""Residual blocks that stand before the capsules of some networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.layers.convolution import ReLUConv2d

SHORTCUTS = ("pad", "projection")


class BasicBlock(nn.Module):
    """Two convolutions of 3×3, each with batch normalization, beside a shortcut.

    Args:
        below: channels that come in.
        channels: channels that go out.
        stride: of the first convolution.
        shortcut: where the map changes its shape, "projection" is a convolution of 1×1 with batch normalization, and
            "pad" takes every ``stride``-th place and adds channels of zeros on both sides (He et al.'s option A).

    Source: He, Zhang, Ren, Sun 2016, Deep Residual Learning for Image Recognition, section 3.3.
    """

    def __init__(self, below: int, channels: int, stride: int = 1, *, shortcut: str = "projection") -> None:
        super().__init__()
        self.conv1 = ReLUConv2d(below, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = ReLUConv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride, self.added = stride, channels - below
        self.shortcut: nn.Module | None = None
        if shortcut == "projection" and (stride > 1 or self.added):
            conv = ReLUConv2d(below, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, channels, H', W']`` of ``[B, below, H, W]``."""
        s = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride > 1 or self.added:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.added // 2, (self.added + 1) // 2))
        return F.relu(s + x)


def residual_trunk(
    channels: int, widths: Sequence[int], depths: Sequence[int], strides: Sequence[int], *, shortcut: str
) -> nn.Sequential:
    """Build a convolution of 3×3 and groups of residual blocks, the first block of a group with its stride.

    Args:
        channels: of the images.
        widths: channels of each group; the convolution has those of the first.
        depths: blocks of each group.
        strides: of the first block of each group.
        shortcut: see :class:`BasicBlock`.
    """
    below = widths[0]
    layers: list[nn.Module] = [ReLUConv2d(channels, below, 3, 1, 1, bias=False), nn.BatchNorm2d(below), nn.ReLU()]
    for width, depth, stride in zip(widths, depths, strides, strict=True):
        for k in range(depth):
            layers.append(BasicBlock(below, width, 1 if k else stride, shortcut=shortcut))
            below = width
    return nn.Sequential(*layers)
