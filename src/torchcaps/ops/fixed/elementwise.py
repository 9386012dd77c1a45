"""Sums of votes that are products number by number, in compiled code on CPUs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torchcaps.checks import check_floating, check_shapes
from torchcaps.ops.backends.native import SUFFIXES, load, takes
from torchcaps.ops.backends.tracing import of_many_outputs
from torchcaps.ops.precision import at_least_float32, without_autocast

_LIBRARY = "elementwise"


def elementwise_sum(u: Tensor, weight: Tensor) -> Tensor:
    """Sum votes that are products number by number: s_j = Σ_i w_ij ⊙ u_i.

    A vote's matrix is diagonal: I·J·D weights instead of I·J·D². The votes are never stored. Computed in float32 at
    least, whatever autocast is in force; the result has the common dtype of ``u`` and ``weight``.

    Args:
        u: poses of the lower capsules, ``[B, I, D]``.
        weight: factors, ``[I, J, D]``.

    Returns:
        ``[B, J, D]``.

    Raises:
        ValueError: shapes that do not fit, or numbers that are not floating point.

    Example:
        >>> import torch
        >>> u = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]])
        >>> elementwise_sum(u, torch.ones(2, 1, 2))
        tensor([[[4., 1.]]])

    Source: Byerly, Kalganova, Dear 2021, No Routing Needed Between Capsules, arXiv 2001.09136.
    """
    check_floating("u", u)
    check_floating("weight", weight)
    check_shapes(u=(u, "B I D"), weight=(weight, "I J D"))
    dtype = torch.promote_types(u.dtype, weight.dtype)
    with without_autocast(u):
        u, weight = at_least_float32(u.to(dtype)), at_least_float32(weight.to(dtype))
        return _product(u, weight, "bid", "ijd", "bjd").to(dtype)


def _product(a: Tensor, b: Tensor, of_a: str, of_b: str, of_y: str) -> Tensor:
    """Compute what :func:`torch.einsum` does, of axes so named: two, and then that of the numbers, d."""
    m, n = of_y[:2]
    if m not in of_a:
        a, b, of_a, of_b = b, a, of_b, of_a
    (k,) = set(of_a) - set(of_y)
    if not takes(_LIBRARY, a, b) or of_many_outputs(a, b):
        by_number = (x.permute(*map(of.index, axes)) for x, of, axes in ((a, of_a, f"d{m}{k}"), (b, of_b, f"d{k}{n}")))
        return torch.matmul(*by_number).permute(1, 2, 0)
    made = _Product.apply(a, b, of_a, of_b, of_y, k)
    assert isinstance(made, Tensor)
    return made


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, of_a: str, of_b: str, of_y: str, k: str) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(a, b)
        ctx.axes = of_a, of_b, of_y
        m, n = of_y[:2]
        a, b = a.contiguous(), b.contiguous()
        size = dict(zip(of_a + of_b, (*a.shape, *b.shape), strict=True))
        y = a.new_empty([size[axis] for axis in of_y])
        matrices = (a, of_a, m, k), (b, of_b, k, n), (y, of_y, m, n)
        steps = [_step(x, of, axis) for x, of, *axes in matrices for axis in axes]
        sizes = size[m], size[n], size[k], size["d"], torch.get_num_threads(), *steps
        function = getattr(load(_LIBRARY), f"elementwise_{SUFFIXES[a.dtype]}")
        if function(*map(ctypes.c_int64, sizes), *(ctypes.c_void_p(x.data_ptr()) for x in (a, b, y))):
            raise MemoryError(f"products of sizes {sizes} ran out of memory")
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (a, b), (of_a, of_b, of_y) = ctx.saved_tensors, ctx.axes
        with without_autocast(dy):  # each is such a product, and has derivatives of its own
            da = _product(dy, b, of_y, of_b, of_a) if ctx.needs_input_grad[0] else None
            db = _product(a, dy, of_a, of_y, of_b) if ctx.needs_input_grad[1] else None
        return da, db, None, None, None, None


def _step(x: Tensor, of: str, axis: str) -> int:
    """Return how many vectors lie between neighbours along an axis of a contiguous tensor."""
    return x.stride(of.index(axis)) // x.shape[2]
