"""Kernels of dynamic routing between its passes: squash of a sum and its gradient. Imported only where triton is.

Sums come in parts, which are added in their order: the same numbers every time.
"""

import triton
import triton.language as tl

from torchcaps.ops.backends.triton_exact import over, root


@triton.jit
def sum_parts(parts, n_parts, row, n_rows, E: tl.constexpr, R: tl.constexpr, PP: tl.constexpr, EP: tl.constexpr):
    """Σ over the parts [R, EP] of some rows (b, j), PP of them at a time, in their order."""
    e = tl.arange(0, EP)
    total = tl.zeros((R, EP), parts.dtype.element_ty)
    for first in range(0, n_parts, PP):
        part = first + tl.arange(0, PP).to(tl.int64)
        at = (part[None, :, None] * n_rows + row[:, None, None]) * E + e[None, None, :]
        known = (part < n_parts)[None, :, None] & (row < n_rows)[:, None, None] & (e < E)[None, None, :]
        total += tl.sum(tl.load(parts + at, mask=known, other=0.0), 1)
    return total


@triton.jit
def polar(s):
    """Direction of s (0 for the zero vector), q = min(‖s‖, 1/‖s‖) and whether ‖s‖ > 1; as ops/squash.py has them."""
    largest = tl.max(tl.abs(s), 1)  # which passes over NaN
    zero = tl.sum(tl.abs(s), 1) == 0  # which does not
    scale = tl.where(zero, 1.0, largest)
    direction = over(s, scale[:, None])
    squared = tl.sum(direction * direction, 1)
    length = root(tl.where(zero, 1.0, squared))
    direction = over(direction, length[:, None])
    norm = tl.where(zero, 0.0, length * scale)
    is_long = norm > 1
    return direction, tl.where(is_long, over(1.0, tl.where(is_long, norm, 1.0)), norm), is_long


@triton.jit(do_not_specialize=["n_parts", "n_rows"])
def squash_pass(
    parts,
    bias,
    before,
    sums,
    after,
    activation,
    n_parts,
    n_rows,
    J: tl.constexpr,
    E: tl.constexpr,
    R: tl.constexpr,
    PP: tl.constexpr,
    EP: tl.constexpr,
):
    """s and v of an iteration: V + v into ``after`` or, given ``activation``, v itself and its length."""
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    e = tl.arange(0, EP)
    inside = (row < n_rows)[:, None] & (e < E)[None, :]
    at = row[:, None] * E + e[None, :]
    s = sum_parts(parts, n_parts, row, n_rows, E, R, PP, EP)
    if bias is not None:
        s += tl.load(bias + (row % J)[:, None] * E + e[None, :], mask=inside, other=0.0)
    tl.store(sums + at, s, mask=inside)
    direction, q, is_long = polar(s)
    squashed = over(tl.where(is_long, 1.0, q * q), 1.0 + q * q)
    v = direction * squashed[:, None]
    if activation is None:
        v += tl.load(before + at, mask=inside, other=0.0)
    else:
        tl.store(activation + row, squashed, mask=row < n_rows)
    tl.store(after + at, v, mask=inside)


@triton.jit(do_not_specialize=["n_parts", "n_rows"])
def squash_backward_pass(
    parts,
    sums,
    dv,
    d_length,
    ds,
    n_parts,
    n_rows,
    E: tl.constexpr,
    R: tl.constexpr,
    PP: tl.constexpr,
    EP: tl.constexpr,
):
    """ds of an iteration from dv, to which the parts are added first, and the gradient of the length, if given."""
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    e = tl.arange(0, EP)
    inside = (row < n_rows)[:, None] & (e < E)[None, :]
    at = row[:, None] * E + e[None, :]
    g = tl.load(dv + at, mask=inside, other=0.0)
    if parts is not None:
        g += sum_parts(parts, n_parts, row, n_rows, E, R, PP, EP)
        tl.store(dv + at, g, mask=inside)
    direction, q, is_long = polar(tl.load(sums + at, mask=inside, other=0.0))
    across = over(q, 1.0 + q * q)  # ‖v‖/‖s‖
    along = tl.where(is_long, 2.0 * across * across * q, over(2.0 * across, 1.0 + q * q))  # d‖v‖/d‖s‖
    radial = tl.sum(direction * g, 1)
    outward = radial
    if d_length is not None:
        outward += tl.load(d_length + row, mask=row < n_rows, other=0.0)
    d = across[:, None] * (g - radial[:, None] * direction) + (along * outward)[:, None] * direction
    tl.store(ds + at, d, mask=inside)
