"""The convolution in front of capsules, whose large kernels are what a CapsNet spends its time on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops.spectral import spectral_conv2d, worthwhile


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Two-dimensional convolution, as :func:`torch.nn.functional.conv2d`.

    Where gradients are wanted, on a CPU, in float32 or bfloat16 (autocast's or the tensors' own), large convolutions go
    by :func:`~torchcaps.ops.spectral.spectral_conv2d`, in less than half the time. All others are the library's.

    Args:
        x: ``[B, C, H, W]``.
        weight: ``[C', C, K_h, K_w]``.
        bias: ``[C']``.
        stride: in both directions.
        padding: zeros on every side.

    Returns:
        ``[B, C', H', W']``.
    """
    if x.device.type == "cpu" and torch.is_grad_enabled():
        autocast = torch.is_autocast_enabled("cpu") and torch.float64 not in (x.dtype, weight.dtype)
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        padded = F.pad(x, (padding,) * 4) if padding else x
        if dtype in (torch.float32, torch.bfloat16) and worthwhile(padded.shape, weight.shape, stride):
            with torch.autocast("cpu", enabled=False):
                y = spectral_conv2d(padded.to(dtype), weight.to(dtype), stride)
                return y if bias is None else y + bias.to(dtype)[:, None, None]
    return F.conv2d(x, weight, bias, stride=stride, padding=padding)
