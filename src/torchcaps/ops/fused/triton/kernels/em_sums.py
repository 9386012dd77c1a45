"""Passes of EM routing's E-step and M-step, forward and backward: over the children, and over the parents.

A pass over the children walks over the parents that see each; a pass over the parents walks over each one's
receptive field; and both make the votes anew. What a program writes is its own: no atomics, the same numbers every
time.
"""

import triton
import triton.language as tl

from torchcaps.ops.fused.triton.kernels.em_tiles import (
    children_of,
    differences,
    logit_slopes,
    logits_of,
    seen_from,
    shares_of,
    slope_of,
    up_to,
)
from torchcaps.ops.fused.triton.kernels.exact import over


@triton.jit(do_not_specialize=["n_images"])
def child_pass(
    pose,
    activation,
    weight,
    offset,
    start,
    tiles,
    numbers,
    d_coupling,
    top,
    inverse,
    mean,
    d_activation,
    n_images,
    T: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    J: tl.constexpr,
    N: tl.constexpr,
    JB: tl.constexpr,
    POSITIONS: tl.constexpr,
    FIRST: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """The highest logit of a child and 1 over the sum of exponentials; backward its Σ R dR too, and d_activation."""
    t, y, x, b, there, child = children_of(n_images, T, H, W, N)
    tile_size = tl.full((), HO * WO * J * 16, tl.int64) * n_images
    dtype = tiles.dtype.element_ty
    y0, y1 = seen_from(y, KH, SH, HO)
    x0, x1 = seen_from(x, KW, SW, WO)
    if (y0 <= y1) & (x0 <= x1):  # some place sees it
        a = tl.load(activation + child, mask=there, other=0.0)
        # Not −∞, which a logit may be: exp(−∞ − −∞) is NaN.
        highest = tl.full((N,), -3e38, dtype)  # of all parents, and Σ exp, Σ exp·dr, Σ exp·(dR from outside)
        total = tl.zeros((N,), dtype)
        slopes, outer = total, total
        for j0 in range(0, J, JB):
            j = j0 + up_to(JB)
            inside = there[:, None] & (j < J)[None, :]
            own_top = tl.full((N, JB), -3e38, dtype)  # the same of one type
            own_total = tl.zeros((N, JB), dtype)
            own_slopes, own_outer = own_total, own_total
            for py in range(y0, y1 + 1):
                for px in range(x0, x1 + 1):
                    n = (t * KH + y - py * SH) * KW + x - px * SW
                    place = b * (HO * WO) + py * WO + px
                    parents = place[:, None] * J + j[None, :]
                    at = parents[:, :, None] * 16 + up_to(16)[None, None, :]
                    mu = tl.load(tiles + at, mask=inside[:, :, None], other=0.0)
                    e = differences(pose, weight, offset, mu, child, there, n, j, J)
                    if FIRST:
                        _, _, _, dr = slope_of(e, tiles, numbers, parents, at, inside, tile_size, FIRST)
                        own_slopes += tl.where(inside, dr, 0.0)
                    else:
                        _, logit = logits_of(e, tiles, numbers, parents, at, inside, tile_size)
                        higher = tl.maximum(own_top, logit)
                        shrink, part = tl.exp(own_top - higher), tl.exp(logit - higher)
                        own_top = higher
                        own_total = tl.fma(own_total, shrink, part)
                        if BACKWARD:
                            _, _, _, dr = slope_of(e, tiles, numbers, parents, at, inside, tile_size, FIRST)
                            own_slopes = own_slopes * shrink + part * dr
                            if d_coupling is not None:
                                to = d_coupling + (place[:, None] * (T * KH * KW) + n) * J + j[None, :]
                                own_outer = own_outer * shrink + part * tl.load(to, mask=inside, other=0.0)
            if FIRST:
                slopes += tl.sum(own_slopes, 1)
            elif POSITIONS:
                to = child[:, None] * J + j[None, :]
                share = over(1.0, own_total)
                tl.store(top + to, own_top, mask=inside)
                tl.store(inverse + to, share, mask=inside)
                if BACKWARD:
                    slopes += tl.sum(tl.where(inside, own_slopes * share, 0.0), 1)
                    tl.store(mean + to, (a[:, None] * own_slopes + own_outer) * share, mask=inside)
            else:
                own_top = tl.where((j < J)[None, :], own_top, float("-inf"))
                higher = tl.maximum(highest, tl.max(own_top, 1))
                shrink, part = tl.exp(highest - higher), tl.exp(own_top - higher[:, None])
                highest = higher
                total = total * shrink + tl.sum(part * own_total, 1)
                slopes = slopes * shrink + tl.sum(part * own_slopes, 1)
                outer = outer * shrink + tl.sum(part * own_outer, 1)
        if FIRST:
            slopes *= tl.load(start + y * W + x)
        elif not POSITIONS:
            share = over(1.0, total)
            slopes *= share
            tl.store(top + child, highest, mask=there)
            tl.store(inverse + child, share, mask=there)
            if BACKWARD:
                tl.store(mean + child, a * slopes + outer * share, mask=there)
        if BACKWARD:
            before = tl.load(d_activation + child, mask=there, other=0.0)
            tl.store(d_activation + child, before + slopes, mask=there)


@triton.jit(do_not_specialize=["n_images", "per_part"])
def parent_pass(
    pose,
    activation,
    weight,
    offset,
    tiles,
    numbers,
    d_coupling,
    top,
    inverse,
    mean,
    again,
    coupling,
    s0,
    s1,
    s2,
    n_images,
    per_part,
    T: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    J: tl.constexpr,
    N: tl.constexpr,
    JB: tl.constexpr,
    POSITIONS: tl.constexpr,
    FIRST: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """Σ r, Σ r (V − μ), Σ r (V − μ)² of every parent over a part of its receptive field.

    r is the activation given, FIRST; activation times R; or, BACKWARD, the gradient of the logits. Given ``again``,
    μ is the new mean, and only parents of which it is not 0 are summed. Writes R too where ``coupling`` is given.
    """
    row = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)  # (image, place)
    j = tl.program_id(1) * JB + up_to(JB)
    first = tl.program_id(2) * per_part
    last = tl.minimum(first + per_part, T * KH * KW)
    places = tl.full((), HO * WO, tl.int64) * n_images
    tile_size = places * J * 16
    there = row < places
    inside = there[:, None] & (j < J)[None, :]
    b, p = row // (HO * WO), row % (HO * WO)
    corner = (b * T * H + p // WO * SH) * W + p % WO * SW
    parents = row[:, None] * J + j[None, :]
    at = parents[:, :, None] * 16 + up_to(16)[None, None, :]
    mu = tl.load(tiles + at, mask=inside[:, :, None], other=0.0)
    if again is not None:
        wanted = tl.max(tl.max(tl.load(again + parents, mask=inside, other=0), 1), 0)
        last = tl.where(wanted > 0, last, first)
    sum0, sum1, sum2 = tl.zeros((N, JB), mu.dtype), mu * 0, mu * 0
    for n in range(first, last):
        child = corner + (n // (KH * KW) * H + n // KW % KH) * W + n % KW
        e = differences(pose, weight, offset, mu, child, there, n, j, J)
        a = tl.load(activation + child, mask=there, other=0.0)[:, None]
        d = e
        if FIRST:
            r = tl.where(inside, a, 0.0)
        else:
            _, logit = logits_of(e, tiles, numbers, parents, at, inside, tile_size)
            r = shares_of(logit, top, inverse, child, j, there, J, POSITIONS)
            to = (row[:, None] * (T * KH * KW) + n) * J + j[None, :]
            if coupling is not None:
                tl.store(coupling + to, r, mask=inside)
            if BACKWARD:
                _, _, _, slope = slope_of(e, tiles, numbers, parents, at, inside, tile_size, FIRST)
                r *= logit_slopes(slope, a, mean, d_coupling, to, child, j, there, J, POSITIONS)
            else:
                r *= a
            if again is not None:
                d = e - tl.load(tiles + 2 * tile_size + at, mask=inside[:, :, None], other=0.0)
        rd = r[:, :, None] * d
        sum0 += r
        sum1 += rd
        sum2 = tl.fma(rd, d, sum2)
    part = tl.program_id(2).to(tl.int64) * tile_size
    tl.store(s0 + part // 16 + parents, sum0, mask=inside)
    tl.store(s1 + part + at, sum1, mask=inside[:, :, None])
    tl.store(s2 + part + at, sum2, mask=inside[:, :, None])
