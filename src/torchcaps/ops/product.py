"""Products of matrices on a CPU: by the faster one of the libraries that torch has, into large pages."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torchcaps.ops.backends import large_pages
from torchcaps.ops.backends.processor import amd_family
from torchcaps.ops.backends.tracing import constant_when_compiled, have_tangents, is_plain, of_many_outputs
from torchcaps.ops.precision import autocasts, without_autocast

#: Multiplications in a product from which on oneDNN takes less time, though it is called from Python. And those for
#: each number of the result, which oneDNN writes to memory of its own first: on small pages, where it is large.
_ENOUGH, _FOR_EACH, _FOR_EACH_OF_MANY = 2**20, 64, 256
#: AMD's family of processors whose units of AVX-512 are whole.
_ZEN_5 = 26


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices as ``a @ b`` does.

    In float32 torch hands ``a @ b`` to MKL, which uses no AVX-512 on AMD's processors. From Zen 5 on that takes 1.2 to
    2.3 times as long as oneDNN, which torch has as well (2.6 to 2.14; findings/torch-mkl-on-amd.sh): there oneDNN
    multiplies. Zen 4 is as fast by AVX2. Rounding differs, no more. Large results lie on large pages, see
    :mod:`torchcaps.ops.backends.large_pages`. Small products, and all that are compiled, exported, traced or counted,
    are torch's own; so are those of tensors of more axes.

    Args:
        a: ``[M, K]``, or as many of them, ``[P, M, K]``.
        b: ``[K, N]``, or ``[P, K, N]``.

    Returns:
        ``[M, N]``, or ``[P, M, N]``.
    """
    if not _is_ours(a, b):
        return a @ b
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        made = _Product.apply(a, b)
        assert isinstance(made, Tensor)
        return made
    return _multiply(a, b)


def add_product(y: Tensor, a: Tensor, b: Tensor) -> None:
    """Add :func:`product` to y in place; y may be of a wider dtype. Autograd does not see it."""
    if _is_ours(a, b) and _is_for_onednn(a, b):
        for whole, of_a, of_b in zip(y, a, b, strict=True):
            whole.add_(_by_onednn(of_a, of_b))
    elif y.dtype == a.dtype:
        y.baddbmm_(a, b)
    else:
        y.add_(product(a, b))


def put_product(y: Tensor, a: Tensor, b: Tensor) -> None:
    """Write :func:`product` of many matrices into y. Autograd does not see it."""
    if _is_ours(a, b) and _is_for_onednn(a, b):
        for whole, of_a, of_b in zip(y, a, b, strict=True):
            whole.copy_(_by_onednn(of_a, of_b))
    else:
        torch.matmul(a, b, out=y)


class _Product(Function):
    """The product with its gradients, which are products too: of any order."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        of_a, of_b = ctx.needs_input_grad
        ctx.save_for_backward(a if of_b else None, b if of_a else None)
        return _multiply(a, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b = ctx.saved_tensors
        of_a, of_b = ctx.needs_input_grad
        with without_autocast(dy):
            return product(dy, b.mT) if of_a else None, product(a.mT, dy) if of_b else None


def _is_ours(a: Tensor, b: Tensor) -> bool:
    """Tell whether anything is gained, and nobody watches what is called."""
    if not a.device.type == b.device.type == "cpu" or a.dtype != b.dtype or a.dim() != b.dim() or a.dim() not in (2, 3):
        return False
    if not is_plain() or autocasts("cpu"):
        return False
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2] or a.numel() == 0:
        return False
    if of_many_outputs(a, b) or have_tangents(a, b):
        return False
    return _is_for_onednn(a, b) or large_pages.is_large((*a.shape[:-1], b.shape[-1]), a.dtype)


def _is_for_onednn(a: Tensor, b: Tensor) -> bool:
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    least = _FOR_EACH_OF_MANY if large_pages.is_large((rows, columns), a.dtype) else _FOR_EACH
    enough = rows * inner * columns >= _ENOUGH and inner >= least
    return enough and a.dtype == torch.float32 and torch.backends.mkldnn.enabled and _is_zen_5()


@constant_when_compiled
@functools.cache
def _is_zen_5() -> bool:
    there = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return there and torch.backends.cpu.get_cpu_capability() == "AVX512" and amd_family() >= _ZEN_5


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    by_onednn = _is_for_onednn(a, b)
    if by_onednn and a.dim() == 2:
        return _by_onednn(a, b)
    y = large_pages.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    if by_onednn:
        put_product(y, a, b)
    else:
        torch.matmul(a, b, out=y)
    return y


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices: what inductor makes of a linear layer, whose first factor has to be contiguous."""
    multiply = torch.ops.mkldnn._linear_pointwise
    if not a.is_contiguous() and b.mT.is_contiguous():
        return multiply(b.mT, a, None, "none", [], "").mT
    return multiply(a, b.mT, None, "none", [], "")
