"""A strided convolution whose backward pass is fast in bfloat16 on CPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Images whose gathered patches are worked on at once: few enough to stay in cache.
_BLOCK = 8


def conv2d(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Two-dimensional convolution without bias, as :func:`torch.nn.functional.conv2d`.

    In bfloat16 on a CPU (its own dtype or autocast's) with a stride above 1, the library's gradient
    is several times slower than the matrix products it amounts to; there the gradient is made of
    those products, a few images at a time. Everywhere else this is the library's function.

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
    if x.device.type == "cpu" and stride > 1 and bfloat16 and torch.is_grad_enabled():
        x = F.pad(x, (padding,) * 4) if padding else x
        return _StridedConv.apply(x.to(torch.bfloat16), weight.to(torch.bfloat16), stride)  # type: ignore[return-value]
    return F.conv2d(x, weight, stride=stride, padding=padding)


class _StridedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), stride=stride)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (grad,) = grads
        x, weight = ctx.saved_tensors
        step = ctx.stride
        n_out, n_in, height, width = weight.shape
        pixels = x.permute(0, 2, 3, 1)  # [B, H, W, C]
        grad = grad.permute(0, 2, 3, 1).contiguous()  # [B, H', W', C']
        matrix = weight.permute(0, 2, 3, 1).reshape(n_out, -1)  # [C', K·K·C]
        rows, columns = grad.shape[1:3]
        grad_matrix = torch.zeros(matrix.shape, dtype=torch.float32)
        grad_pixels = torch.zeros(pixels.shape, dtype=torch.float32)
        for start in range(0, len(x), _BLOCK):
            block = slice(start, start + _BLOCK)
            patches = pixels[block].unfold(1, height, step).unfold(2, width, step)  # [b, H', W', C, K, K]
            patches = patches.permute(0, 1, 2, 4, 5, 3).reshape(-1, matrix.shape[1])
            g = grad[block].reshape(-1, n_out)
            grad_matrix += g.t() @ patches
            grad_patches = (g @ matrix).view(-1, rows, columns, height, width, n_in)
            for i in range(height):
                for j in range(width):
                    here = grad_pixels[
                        block, i : i + step * (rows - 1) + 1 : step, j : j + step * (columns - 1) + 1 : step
                    ]
                    here += grad_patches[:, :, :, i, j]
        grad_weight = grad_matrix.view(n_out, height, width, n_in).permute(0, 3, 1, 2)
        return grad_pixels.permute(0, 3, 1, 2).to(x.dtype), grad_weight.to(weight.dtype), None
