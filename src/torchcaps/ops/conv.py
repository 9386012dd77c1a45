"""A strided convolution whose backward pass is fast in bfloat16 on CPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops.fused import cpu
from torchcaps.ops.fused.cpu.conv import strided_conv


def conv2d(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Two-dimensional convolution without bias, as :func:`torch.nn.functional.conv2d`.

    In bfloat16 on a CPU (its own dtype or autocast's) with a stride above 1, the library's gradient
    is several times slower than the matrix products it amounts to; there the gradient is made of
    those products, a row of the kernel at a time. Everywhere else, and where nothing can be compiled, this is the
    library's function.

    Args:
        x: ``[B, C, H, W]``.
        weight: ``[C', C, K_h, K_w]``.
        stride: in both directions.
        padding: zeros on every side.

    Returns:
        ``[B, C', H', W']``.
    """
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    bfloat16 = x.dtype == weight.dtype == torch.bfloat16 or (
        autocast and {x.dtype, weight.dtype} <= {torch.bfloat16, torch.float32}
    )
    strided = stride > 1 and torch.is_grad_enabled()
    if x.device.type == "cpu" and strided and bfloat16 and cpu.why_not("conv") is None:
        x = F.pad(x, (padding,) * 4) if padding else x
        return strided_conv(x.to(torch.bfloat16), weight.to(torch.bfloat16), stride)
    return F.conv2d(x, weight, stride=stride, padding=padding)
