"""How a map lies in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """The same numbers ``[B, C, H, W]`` with a pixel's channels side by side, and so the maps that are made from them.

    On CPUs pooling and the convolutions of :func:`torchcaps.ops.spectral.spectral_conv2d` read such maps faster. Images
    of one channel are laid out too, which torch's ``memory_format`` leaves as they are; and vmap refuses that.
    """
    return x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
