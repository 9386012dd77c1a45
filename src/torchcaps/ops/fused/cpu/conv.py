"""A strided convolution in bfloat16 whose gradient is made of matrix products, as operators that torch knows."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops.fused.cpu.library import load


@torch.library.custom_op("torchcaps::strided_conv", mutates_args=(), device_types="cpu")
def strided_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolution without bias or padding.

    Args:
        x: bfloat16, ``[B, C, H, W]``.
        weight: bfloat16, ``[C', C, K_h, K_w]``.
        stride: in both directions.

    Returns:
        ``[B, C', H', W']``, channels last.
    """
    return _channels_last(F.conv2d(_channels_last(x), _channels_last(weight), stride=stride))


@strided_conv.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return _channels_last(F.conv2d(x, weight, stride=stride))


@torch.library.custom_op("torchcaps::strided_conv_backward", mutates_args=(), device_types="cpu")
def strided_conv_backward(grad: Tensor, x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`strided_conv`: x and weight."""
    n_out, n_in, *kernel = weight.shape
    pixels = x.permute(0, 2, 3, 1).contiguous()  # [B, H, W, C]
    grad = grad.permute(0, 2, 3, 1).reshape(-1, n_out)  # [B·H'·W', C']
    rows = weight.permute(2, 0, 3, 1).flatten(2)  # [K_h, C', K_w·C]
    grad_rows = torch.empty_like(rows)
    grad_pixels = torch.zeros(pixels.shape, dtype=torch.float32)
    patches = torch.empty(len(grad), rows.shape[2], dtype=x.dtype)
    for k in range(kernel[0]):  # a row of the patches at a time: all of them would take K_h times the memory
        sizes = _Sizes(*pixels.shape, *kernel, stride, k, torch.get_num_threads())
        _call("gather", sizes, pixels, patches)
        torch.mm(grad.t(), patches, out=grad_rows[k])
        torch.mm(grad, rows[k], out=patches)
        _call("scatter", sizes, patches, grad_pixels)
    grad_weight = grad_rows.unflatten(2, (kernel[1], n_in)).permute(1, 3, 0, 2)
    return _channels_last(grad_pixels.permute(0, 3, 1, 2).to(x.dtype)), _channels_last(grad_weight)


@strided_conv_backward.register_fake
def _(_grad: Tensor, x: Tensor, weight: Tensor, _stride: int) -> tuple[Tensor, Tensor]:
    return _channels_last(torch.empty_like(x)), _channels_last(torch.empty_like(weight))


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    return *strided_conv_backward(grad, *ctx.saved_tensors, ctx.stride), None


def _no_second_derivative(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    raise NotImplementedError(
        "a strided convolution in bfloat16 has no second derivative: take float32 where one is needed"
    )


strided_conv.register_autograd(_backward, setup_context=_setup_context)
strided_conv_backward.register_autograd(_no_second_derivative)


class _Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("B", "H", "W", "C", "K_h", "K_w", "step", "k", "threads")]


def _call(name: str, sizes: _Sizes, source: Tensor, target: Tensor) -> None:
    if getattr(load("conv"), name)(sizes, ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr())):
        raise MemoryError(f"a convolution's gradient, {name} of {list(source.shape)}, ran out of memory")
