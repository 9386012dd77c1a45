"""Products of matrices, by the faster one of the libraries that torch has on a CPU."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.ops.backends.processor import is_amd
from torchcaps.ops.backends.tracing import constant_when_compiled, in_dispatch_mode, in_functorch
from torchcaps.ops.precision import autocasts

#: Multiplications in a product from which on oneDNN takes less time, though it is called from Python.
_ENOUGH = 2**20


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices as ``a @ b`` does.

    In float32 torch hands ``a @ b`` to MKL. On AMD's processors with AVX-512 that takes 1.2 to 2.3 times as long as
    oneDNN, which torch has as well (2.6 to 2.14; findings/torch-mkl-on-amd.sh): there oneDNN multiplies. Rounding
    differs, no more. Small products, and all that are compiled, exported, traced or counted, are torch's own; so are
    those of tensors of more axes.

    Args:
        a: ``[M, K]``, or as many of them, ``[P, M, K]``.
        b: ``[K, N]``, or ``[P, K, N]``.

    Returns:
        ``[M, N]``, or ``[P, M, N]``.
    """
    if not _is_for_onednn(a, b):
        return a @ b
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        made = _Product.apply(a, b)
        assert isinstance(made, Tensor)
        return made
    return _by_onednn(a, b)


class _Product(Function):
    """The product with its gradients, which are products too: of any order."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(a, b)
        return _by_onednn(a, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b = ctx.saved_tensors
        of_a, of_b = ctx.needs_input_grad
        return product(dy, b.mT) if of_a else None, product(a.mT, dy) if of_b else None


def _is_for_onednn(a: Tensor, b: Tensor) -> bool:
    here = a.device.type == b.device.type == "cpu" and a.dtype == b.dtype == torch.float32
    if not here or not _onednn_is_faster():
        return False
    if torch.compiler.is_compiling() or is_tracing() or in_dispatch_mode() or in_functorch() or autocasts("cpu"):
        return False
    if any(forward_ad.unpack_dual(x).tangent is not None for x in (a, b)):
        return False
    fits = a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
    return fits and a.numel() > 0 and a.shape[-2] * a.shape[-1] * b.shape[-1] >= _ENOUGH


@constant_when_compiled
def _onednn_is_faster() -> bool:
    return torch.backends.mkldnn.enabled and _is_amd_with_avx512()


@functools.cache
def _is_amd_with_avx512() -> bool:
    there = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return there and torch.backends.cpu.get_cpu_capability() == "AVX512" and is_amd()


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 2:
        return _one(a, b)
    y = a.new_empty((*a.shape[:2], b.shape[2]))
    for whole, of_a, of_b in zip(y, a, b, strict=True):
        whole.copy_(_one(of_a, of_b))
    return y


def _one(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices: what inductor makes of a linear layer, whose first factor has to be contiguous."""
    multiply = torch.ops.mkldnn._linear_pointwise
    if not a.is_contiguous() and b.mT.is_contiguous():
        return multiply(b.mT, a, None, "none", [], "").mT
    return multiply(a, b.mT, None, "none", [], "")
