"""Passes of EM routing's E-step and M-step, forward and backward: over the children, and over the parents.

A pass over the children walks over the parents that see each; a pass over the parents walks over each one's
receptive field; and both make the votes anew. What a program writes is its own: no atomics, the same numbers every
time.
"""

import triton
import triton.language as tl

from torchcaps.ops.backends.triton_exact import over
from torchcaps.ops.em.triton_tiles import (
    all_of,
    differences,
    four,
    lanes,
    logit_of,
    seen_from,
    sixteen,
    slope_of,
    store_four,
    store_sixteen,
)

_SIZES = ["n_images", "T", "H", "W", "HO", "WO", "SH", "SW", "J"]


@triton.jit(do_not_specialize=[*_SIZES, "types"])
def begin_pass(
    activation, ours, begun, n_images, T, H, W, HO, WO, SH, SW, J, types, KH: tl.constexpr, KW: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Activations in the kernels' order, and these times R of the first M-step.

    That is 1 over the number of types where ``types`` is set, else 1 over the number of parents.
    """
    lane, there = lanes(n_images * T * H * W, tl.program_id(0), N)
    t, place = lane % T, lane // T
    y, x, b = place // W % H, place % W, place // (H * W)
    y0, y1 = seen_from(y, KH, SH, HO)
    x0, x1 = seen_from(x, KW, SW, WO)
    n_places = tl.maximum(1, (y1 - y0 + 1) * (x1 - x0 + 1))
    n = J * tl.where(types != 0, 1, n_places)
    a = tl.load(activation + ((b.to(tl.int64) * T + t) * H + y) * W + x)
    tl.store(ours + lane, a, mask=there)
    tl.store(begun + lane, a * over(1.0, tl.cast(n, a.dtype)), mask=there)


@triton.jit(do_not_specialize=_SIZES)
def child_pass(
    pose,
    activation,
    weight,
    offset,
    records,
    d_coupling,
    found,
    n_images,
    T,
    H,
    W,
    HO,
    WO,
    SH,
    SW,
    J,
    KH: tl.constexpr,
    KW: tl.constexpr,
    RECORD: tl.constexpr,
    N: tl.constexpr,
    POSITIONS: tl.constexpr,
    LINEAR: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """Find the highest logit of a child and 1 over the sum of exponentials; backward Σ R dR too.

    A program has children of all types and several images at one place of the lower map.
    """
    at = tl.program_id(0) % (H * W)
    y, x = at // W, at % W
    lane, there = lanes(n_images * T, tl.program_id(0) // (H * W), N)
    b, t = tl.cast(lane // T, tl.int64), lane % T
    dtype: tl.constexpr = records.dtype.element_ty
    pixel = b * (H * W) + at
    child = pixel * T + t
    m = sixteen(pose + (pixel * (4 * T) + t) * 4, 4 * T, N)
    a = tl.load(activation + child)
    y0, y1 = seen_from(y, KH, SH, HO)
    x0, x1 = seen_from(x, KW, SW, WO)
    of_image, of_type = records + b * (HO * WO) * J * RECORD, weight + 4 * t
    # Not −∞, which a logit may be: exp(−∞ − −∞) is NaN.
    highest = tl.full((N,), -3e38, dtype)
    total = tl.zeros((N,), dtype)
    slopes = tl.zeros((N,), dtype)
    for j in range(J):
        for py in range(y0, y1 + 1):
            for px in range(x0, x1 + 1):
                k = (y - py * SH) * KW + x - px * SW
                place = py * WO + px
                record = of_image + (place * J + j) * RECORD
                w = sixteen(of_type + tl.cast(k * J + j, tl.int64) * (16 * T), 4 * T, N)
                shift = None if offset is None else offset + (t * (KH * KW) + k) * 16
                e = differences(m, w, sixteen(record, 4, N), shift, N)
                _scaled, logit = logit_of(e, sixteen(record + 16, 4, N), tl.load(record + 32), LINEAR)
                higher = tl.maximum(highest, logit)
                shrink, part = tl.exp(highest - higher), tl.exp(logit - higher)
                highest = higher
                total = tl.fma(total, shrink, part)
                if BACKWARD:
                    g1, g2 = sixteen(record + 52, 4, N), sixteen(record + 68, 4, N)
                    slope, _slopes = slope_of(e, sixteen(record + 36, 4, N), g1, g2, tl.load(record + 33), False)
                    slope = slope * a
                    if d_coupling is not None:
                        row = (b * (HO * WO) + place) * (T * KH * KW) + t * (KH * KW) + k
                        slope = slope + tl.load(d_coupling + row * J + j)
                    slopes = tl.fma(part, slope, slopes * shrink)
        if POSITIONS:
            share = over(1.0, tl.where(total == 0.0, 1.0, total))  # 0 where no parent sees it
            store_four(found + (child * J + j) * 4, a, highest, share, slopes * share, there, N)
            highest = tl.full((N,), -3e38, dtype)
            total = tl.zeros((N,), dtype)
            slopes = tl.zeros((N,), dtype)
    if not POSITIONS:
        share = over(1.0, tl.where(total == 0.0, 1.0, total))
        store_four(found + child * 4, a, highest, share, slopes * share, there, N)


@triton.jit(do_not_specialize=[*_SIZES, "per_part"])
def parent_pass(
    pose,
    begun,
    weight,
    offset,
    records,
    d_coupling,
    found,
    again,
    coupling,
    s0,
    s1,
    s2,
    n_images,
    T,
    H,
    W,
    HO,
    WO,
    SH,
    SW,
    J,
    per_part,
    KH: tl.constexpr,
    KW: tl.constexpr,
    RECORD: tl.constexpr,
    N: tl.constexpr,
    POSITIONS: tl.constexpr,
    LINEAR: tl.constexpr,
    FIRST: tl.constexpr,
    AROUND: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """Σ r, Σ r (V − μ), Σ r (V − μ)² of every parent over a part of its receptive field.

    r is what was ``begun`` with, FIRST, and unless AROUND is set μ is 0, and there are no squares; activation times R;
    or, BACKWARD, the gradient of the logits. Given ``again``, μ is the new mean, and only parents of which it is not 0
    are summed. Writes R too where ``coupling`` is given.
    """
    n_parents = n_images * HO * WO * J
    parent, there = lanes(n_parents, tl.program_id(0), N)
    j, place = parent % J, tl.cast(parent // J, tl.int64)
    p, b = parent // J % (HO * WO), place // (HO * WO)
    first = tl.program_id(1) * per_part
    last = tl.minimum(first + per_part, T * KH * KW)
    if again is not None:
        there = there & (tl.load(again + parent) != 0)
        last = tl.where(tl.max(there.to(tl.int32), 0) > 0, last, first)
    dtype: tl.constexpr = records.dtype.element_ty
    record = records + tl.cast(parent, tl.int64) * RECORD
    zero = tl.zeros((N,), dtype)
    minus_mu = sixteen(record, 4, N) if AROUND else all_of(zero)
    if not FIRST:
        precision, constant = sixteen(record + 16, 4, N), tl.load(record + 32)
    if BACKWARD or again is not None:
        moved = sixteen(record + 36, 4, N)
    if BACKWARD:
        g1, g2, slope_k = sixteen(record + 52, 4, N), sixteen(record + 68, 4, N), tl.load(record + 33)
    corner = ((b * H + p // WO * SH) * W + p % WO * SW) * T  # the first child
    poses = pose + corner * 16
    childs = begun + corner
    found_of = found + (corner * J + j) * 4 if POSITIONS else found + corner * 4
    weights = weight + tl.cast(first, tl.int64) * (16 * J) + 4 * j
    sum0, sum1, sum2 = zero, all_of(zero), all_of(zero)
    t, k = first % tl.maximum(T, 1), first // tl.maximum(T, 1)
    for _row in range(first, last):
        spot = k // KW * W + k % KW
        m = sixteen(poses + (spot * (16 * T) + 4 * t), 4 * T, N)
        w = sixteen(weights, 4 * J, N)
        shift = None if offset is None else offset + (t * (KH * KW) + k) * 16 + parent * 0
        e = differences(m, w, minus_mu, shift, N)
        if FIRST:
            r = tl.load(childs + (spot * T + t))
        else:
            child = (spot * T + t) * J if POSITIONS else spot * T + t
            a, highest, inverse, mean = four(found_of + child * 4, N)
            _scaled, logit = logit_of(e, precision, constant, LINEAR)
            share = tl.exp(logit - highest) * inverse
            to = (place * (T * KH * KW) + (t * (KH * KW) + k)) * J + j
            if coupling is not None:
                tl.store(coupling + to, share, mask=there)
            if BACKWARD:
                slope, _slopes = slope_of(e, moved, g1, g2, slope_k, False)
                slope = slope * a
                if d_coupling is not None:
                    slope = slope + tl.load(d_coupling + to)
                r = share * (slope - mean)
            else:
                r = share * a
        sum0 += r
        next1, next2 = (), ()
        for h in tl.static_range(16):
            d = e[h]
            if again is not None:
                d = d - moved[h]
            next1 += (tl.fma(r, d, sum1[h]),)
            if AROUND:
                next2 += (tl.fma(r * d, d, sum2[h]),)
        sum1 = next1
        if AROUND:
            sum2 = next2
        weights += 16 * J
        t += 1
        k += (t == T).to(tl.int32)
        t = tl.where(t == T, 0, t)
    part = tl.program_id(1).to(tl.int64) * n_parents + parent
    tl.store(s0 + part, sum0, mask=there)
    store_sixteen(s1 + part * 16, 4, sum1, there, N)
    if AROUND:
        store_sixteen(s2 + part * 16, 4, sum2, there, N)
