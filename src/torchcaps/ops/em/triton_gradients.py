"""Passes of EM routing backward that make the gradients of poses and weights from that of each vote.

The votes are made anew, as in ``em_sums``; what a program writes is its own here too.
"""

import triton
import triton.language as tl

from torchcaps.ops.backends.triton_exact import over
from torchcaps.ops.em.triton_tiles import (
    all_of,
    differences,
    four,
    lanes,
    seen_from,
    sixteen,
    store_sixteen,
    vote_gradient,
)

_SIZES = ["n_images", "T", "H", "W", "HO", "WO", "SH", "SW", "J"]


@triton.jit(do_not_specialize=[*_SIZES, "types", "more"])
def pose_pass(
    pose,
    activation,
    weight,
    offset,
    records,
    d_coupling,
    found,
    d_pose,
    d_activation,
    n_images,
    T,
    H,
    W,
    HO,
    WO,
    SH,
    SW,
    J,
    types,
    more,
    KH: tl.constexpr,
    KW: tl.constexpr,
    RECORD: tl.constexpr,
    N: tl.constexpr,
    POSITIONS: tl.constexpr,
    LINEAR: tl.constexpr,
    FIRST: tl.constexpr,
    STOP: tl.constexpr,
):
    """d_pose = Σ over the parents of a child of dV Wᵀ, and d_activation = Σ R dr, added where ``more`` is set.

    A program has children of all types and several images at one place of the lower map.
    """
    at = tl.program_id(0) % (H * W)
    y, x = at // W, at % W
    lane, there = lanes(n_images * T, tl.program_id(0) // (H * W), N)
    b, t = tl.cast(lane // T, tl.int64), lane % T
    dtype: tl.constexpr = records.dtype.element_ty
    pixel = b * (H * W) + at
    child = pixel * T + t
    own = (pixel * (4 * T) + t) * 4
    m = sixteen(pose + own, 4 * T, N)
    a = tl.load(activation + child)
    y0, y1 = seen_from(y, KH, SH, HO)
    x0, x1 = seen_from(x, KW, SW, WO)
    of_image, of_type = records + b * (HO * WO) * J * RECORD, weight + 4 * t
    zero = tl.zeros((N,), dtype)
    highest, inverse, level = zero, zero, zero
    if not FIRST and not POSITIONS:
        _a, highest, inverse, level = four(found + child * 4, N)
    d_a, sums = zero, all_of(zero)
    for j in range(J):
        if not FIRST and POSITIONS:
            _a, highest, inverse, level = four(found + (child * J + j) * 4, N)
        for py in range(y0, y1 + 1):
            for px in range(x0, x1 + 1):
                k = (y - py * SH) * KW + x - px * SW
                place = py * WO + px
                record = of_image + (place * J + j) * RECORD
                w = sixteen(of_type + tl.cast(k * J + j, tl.int64) * (16 * T), 4 * T, N)
                shift = None if offset is None else offset + (t * (KH * KW) + k) * 16
                to = None
                if d_coupling is not None:
                    to = d_coupling + ((b * (HO * WO) + place) * (T * KH * KW) + (t * (KH * KW) + k)) * J + j
                e = differences(m, w, sixteen(record, 4, N), shift, N)
                d_votes, weighted = vote_gradient(e, record, a, highest, inverse, level, to, N, FIRST, STOP, LINEAR)
                d_a += weighted
                after = ()
                for h in tl.static_range(16):
                    x_h = sums[h]
                    for c in tl.static_range(4):
                        x_h = tl.fma(d_votes[h // 4 * 4 + c], w[h % 4 * 4 + c], x_h)
                    after += (x_h,)
                sums = after
    if FIRST:
        n = J * tl.where(types != 0, 1, tl.maximum(1, (y1 - y0 + 1) * (x1 - x0 + 1)))
        d_a *= over(1.0, (n + lane * 0).to(dtype))
    before = there & (more != 0)
    tl.store(d_activation + child, d_a + tl.load(d_activation + child, mask=before, other=0.0), mask=there)
    _add(d_pose + own, 4 * T, sums, there, before, N)


@triton.jit(do_not_specialize=[*_SIZES, "per_part", "more"])
def weight_pass(
    pose,
    begun,
    weight,
    offset,
    records,
    d_coupling,
    found,
    d_weight,
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
    more,
    KH: tl.constexpr,
    KW: tl.constexpr,
    RECORD: tl.constexpr,
    N: tl.constexpr,
    POSITIONS: tl.constexpr,
    LINEAR: tl.constexpr,
    FIRST: tl.constexpr,
    STOP: tl.constexpr,
):
    """d_weight = Σ Mᵀ dV over a part of all places of all images, added to what is there where ``more`` is set.

    A program has weights of one place of the kernel.
    """
    k = tl.program_id(1)
    lane, there = lanes(J * T, tl.program_id(0), N)
    j, t = lane // T, lane % T
    dtype: tl.constexpr = records.dtype.element_ty
    own = tl.cast(k * J + j, tl.int64) * (16 * T) + 4 * t
    w = sixteen(weight + own, 4 * T, N)
    shift = None if offset is None else offset + (t * (KH * KW) + k) * 16
    zero = tl.zeros((N,), dtype)
    highest, inverse, level = zero, zero, zero
    sums = all_of(zero)
    first = tl.program_id(2) * per_part
    b, py, px = first // (HO * WO), first // WO % HO, first % WO
    record = records + (tl.cast(first, tl.int64) * J + j) * RECORD
    for place in range(first, tl.minimum(first + per_part, n_images * HO * WO)):
        spot = ((tl.cast(b, tl.int64) * H + py * SH + k // KW) * W + px * SW + k % KW) * T
        m = sixteen(pose + spot * 16 + 4 * t, 4 * T, N)
        if FIRST:
            a = tl.load(begun + spot + t)
        else:
            child = (spot + t) * J + j if POSITIONS else spot + t
            a, highest, inverse, level = four(found + child * 4, N)
        to = None
        if d_coupling is not None:
            to = d_coupling + (tl.cast(place, tl.int64) * (T * KH * KW) + (t * (KH * KW) + k)) * J + j
        e = differences(m, w, sixteen(record, 4, N), shift, N)
        d_votes, _weighted = vote_gradient(e, record, a, highest, inverse, level, to, N, FIRST, STOP, LINEAR)
        after = ()
        for h in tl.static_range(16):
            x_h = sums[h]
            for q in tl.static_range(4):
                x_h = tl.fma(m[4 * q + h // 4], d_votes[4 * q + h % 4], x_h)
            after += (x_h,)
        sums = after
        record += J * RECORD
        px += 1
        py += (px == WO).to(tl.int32)
        px = tl.where(px == WO, 0, px)
        b += (py == HO).to(tl.int32)
        py = tl.where(py == HO, 0, py)
    part = tl.program_id(2).to(tl.int64) * (KH * KW * T * J * 16)
    _add(d_weight + part + own, 4 * T, sums, there, there & (more != 0), N)


@triton.jit
def _add(to, step, numbers, inside, before, N: tl.constexpr):
    """Write a matrix, or add it to the one that is there ``before``; no other program does."""
    total = ()
    for h in tl.static_range(16):
        total += (numbers[h] + tl.load(to + (h // 4 * step + h % 4), mask=before, other=0.0),)
    store_sixteen(to, step, total, inside, N)
