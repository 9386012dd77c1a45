"""From the class capsules of every pixel back to the image."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_beside, check_floating, check_list, check_shapes, check_tensor
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.shapes import check_like
from torchcaps.ops import Capsules
from torchcaps.ops.precision import at_least_float32
from torchcaps.types import as_pose


class PixelDecoder(nn.Module):
    """Reconstruct each pixel from the capsules of the classes that are there, by 1×1 convolutions.

    A pixel without a class has no capsule: the decoder gives the same number to all of background.

    Args:
        n_classes: class types J.
        d_in: their pose size D.
        channels: of the image to make.
        hidden: widths of the ReLU layers; 64 and 128 in the paper.

    Output of every call: values 0 … 1 (a sigmoid).

    Raises:
        ValueError: sizes below 1.

    Example:
        >>> import torch
        >>> decoder = PixelDecoder(1, 16, channels=1)
        >>> decoder(torch.rand(2, 1, 24, 32, 16), torch.ones(2, 1, 24, 32)).shape
        torch.Size([2, 1, 24, 32])
        >>> sum(p.numel() for p in decoder.parameters())
        9537

    Source: LaLonde, Bagci 2018, Capsules for Object Segmentation, arXiv 1804.04241, and its code.
    """

    def __init__(self, n_classes: int, d_in: int, channels: int, hidden: Sequence[int] = (64, 128)) -> None:
        super().__init__()
        for name, value in {"n_classes": n_classes, "d_in": d_in, "channels": channels}.items():
            check_at_least(name, value, 1)
        check_list("hidden", hidden)
        self.n_classes, self.d_in = n_classes, d_in
        widths = [n_classes * d_in, *hidden, channels]
        self.layers = nn.ModuleList(ReLUConv2d(a, b, 1) for a, b in itertools.pairwise(widths))

    def forward(self, capsules: Capsules | Tensor, mask: Tensor | None = None) -> Tensor:
        """Reconstruct images from their class capsules.

        Args:
            capsules: of the classes, or their poses ``[B, J, H, W, D]``.
            mask: where each class is, ``[B, J, H, W]`` of 0 … 1: the true masks in training. None leaves all capsules
                as they are, as the authors do in test.

        Returns:
            ``[B, C, H, W]``.

        Raises:
            ValueError: another number or size of capsules, or masks of another shape.
        """
        pose = as_pose(capsules)
        check_floating("capsules", pose)
        if pose.dim() != 5 or (pose.shape[1], pose.shape[4]) != (self.n_classes, self.d_in):
            raise ValueError(
                f"capsules must be [B, J={self.n_classes}, H, W, D={self.d_in}], got shape {list(pose.shape)}"
            )
        check_like("capsules", pose, self.layers[0].weight)
        if mask is not None:
            check_tensor("mask", mask)
            check_beside("mask", mask, "capsules", pose)
            check_shapes(capsules=(pose, "B J H W D"), mask=(mask, "B J H W"))
            pose = pose * mask.to(pose.dtype).unsqueeze(4)
        x = pose.movedim(4, 2).flatten(1, 2)  # [B, J·D, H, W]
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x).relu()
        return at_least_float32(last(x)).sigmoid()
