"""Passes of EM routing backward that make the gradients of poses and weights from that of each vote.

The votes are made anew, as in ``em_sums``; what a program writes is its own here too.
"""

import triton
import triton.language as tl

from torchcaps.ops.fused.triton.kernels.em_tiles import (
    children_of,
    differences,
    logit_slopes,
    logits_of,
    pose_part,
    seen_from,
    shares_of,
    slope_of,
    up_to,
    weight_part,
)


@triton.jit
def vote_gradient(
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
    tile_size,
    child,
    row,
    n,
    j,
    there,
    ROWS: tl.constexpr,
    J: tl.constexpr,
    POSITIONS: tl.constexpr,
    FIRST: tl.constexpr,
    STOP: tl.constexpr,
):
    """dV [N, JB, 16] of children [N] and parents at the places [N]; ``start`` [N] is R of the first M-step."""
    inside = there[:, None] & (j < J)[None, :]
    parents = row[:, None] * J + j[None, :]
    at = parents[:, :, None] * 16 + up_to(16)[None, None, :]
    mu = tl.load(tiles + at, mask=inside[:, :, None], other=0.0)
    e = differences(pose, weight, offset, mu, child, there, n, j, J)
    a = tl.load(activation + child, mask=there, other=0.0)[:, None]
    d, g1, g2, slope = slope_of(e, tiles, numbers, parents, at, inside, tile_size, FIRST)
    if FIRST:
        d_votes = (a * start[:, None])[:, :, None] * tl.fma(2.0 * g2, d, g1)
    else:
        w, logit = logits_of(e, tiles, numbers, parents, at, inside, tile_size)
        r = shares_of(logit, top, inverse, child, j, there, J, POSITIONS)
        d_votes = (r * a)[:, :, None] * tl.fma(2.0 * g2, d, g1)
        if not STOP:
            to = (row[:, None] * ROWS + n) * J + j[None, :]
            r *= logit_slopes(slope, a, mean, d_coupling, to, child, j, there, J, POSITIONS)
            d_votes = tl.fma(-r[:, :, None] * e, w, d_votes)
    return d_votes


@triton.jit
def add_to(to, x, there):
    """Add where no other program does."""
    tl.store(to, tl.load(to, mask=there[:, None], other=0.0) + x, mask=there[:, None])


@triton.jit(do_not_specialize=["n_images"])
def pose_pass(
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
    d_pose,
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
    STOP: tl.constexpr,
):
    """d_pose += Σ over the parents of a child of dV Wᵀ; a program has its own children."""
    t, y, x, b, there, child = children_of(n_images, T, H, W, N)
    tile_size = tl.full((), HO * WO * J * 16, tl.int64) * n_images
    dtype = tiles.dtype.element_ty
    y0, y1 = seen_from(y, KH, SH, HO)
    x0, x1 = seen_from(x, KW, SW, WO)
    if (y0 <= y1) & (x0 <= x1):
        share = tl.zeros((N,), dtype) + tl.load(start + y * W + x)
        g0 = tl.zeros((N, 16), dtype)
        g1, g2, g3 = g0, g0, g0
        for j0 in range(0, J, JB):
            j = j0 + up_to(JB)
            for py in range(y0, y1 + 1):
                for px in range(x0, x1 + 1):
                    n = (t * KH + y - py * SH) * KW + x - px * SW
                    row = b * (HO * WO) + py * WO + px
                    d_votes = vote_gradient(
                        pose, activation, weight, offset, share, tiles, numbers, d_coupling, top, inverse, mean,
                        tile_size, child, row, n, j, there, T * KH * KW, J, POSITIONS, FIRST, STOP,
                    )  # fmt: skip
                    g0 += tl.sum(d_votes * weight_part(weight, n, j, 0, J, dtype)[None, :, :], 1)
                    g1 += tl.sum(d_votes * weight_part(weight, n, j, 1, J, dtype)[None, :, :], 1)
                    g2 += tl.sum(d_votes * weight_part(weight, n, j, 2, J, dtype)[None, :, :], 1)
                    g3 += tl.sum(d_votes * weight_part(weight, n, j, 3, J, dtype)[None, :, :], 1)
        to = d_pose + child[:, None] * 16 + 4 * tl.arange(0, 4)[None, :]  # [N, 4], the rows q of column 0
        add_to(to, tl.sum(tl.reshape(g0, (N, 4, 4)), 2), there)
        add_to(to + 1, tl.sum(tl.reshape(g1, (N, 4, 4)), 2), there)
        add_to(to + 2, tl.sum(tl.reshape(g2, (N, 4, 4)), 2), there)
        add_to(to + 3, tl.sum(tl.reshape(g3, (N, 4, 4)), 2), there)


@triton.jit(do_not_specialize=["n_images", "per_part"])
def weight_pass(
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
    d_weight,
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
    STOP: tl.constexpr,
):
    """d_weight += Σ Mᵀ dV over a part of all places of all images; a program has one row of the weights."""
    n = tl.program_id(0)
    j = tl.program_id(1) * JB + up_to(JB)
    places = tl.full((), HO * WO, tl.int64) * n_images
    tile_size = places * J * 16
    dtype = tiles.dtype.element_ty
    y, x = n // KW % KH, n % KW
    g0 = tl.zeros((JB, 16), dtype)
    g1, g2, g3 = g0, g0, g0
    for block in range(tl.program_id(2) * per_part, tl.program_id(2) * per_part + per_part):
        row = block * N + up_to(N)
        there = row < places
        b, py, px = row // (HO * WO), row // WO % HO, row % WO
        at = (py * SH + y) * W + px * SW + x
        child = (b * T + n // (KH * KW)) * (H * W) + at
        share = tl.load(start + at, mask=there, other=0.0)
        d_votes = vote_gradient(
            pose, activation, weight, offset, share, tiles, numbers, d_coupling, top, inverse, mean,
            tile_size, child, row, n, j, there, T * KH * KW, J, POSITIONS, FIRST, STOP,
        )  # fmt: skip
        g0 += tl.sum(d_votes * pose_part(pose, child, there, 0, dtype)[:, None, :], 0)
        g1 += tl.sum(d_votes * pose_part(pose, child, there, 1, dtype)[:, None, :], 0)
        g2 += tl.sum(d_votes * pose_part(pose, child, there, 2, dtype)[:, None, :], 0)
        g3 += tl.sum(d_votes * pose_part(pose, child, there, 3, dtype)[:, None, :], 0)
    part = tl.program_id(2).to(tl.int64) * (T * KH * KW * J * 16)
    to = d_weight + part + ((n * J + j) * 16)[:, None] + tl.arange(0, 4)[None, :]  # [JB, 4], the columns c of row 0
    add_to(to, tl.sum(tl.reshape(g0, (JB, 4, 4)), 1), j < J)
    add_to(to + 4, tl.sum(tl.reshape(g1, (JB, 4, 4)), 1), j < J)
    add_to(to + 8, tl.sum(tl.reshape(g2, (JB, 4, 4)), 1), j < J)
    add_to(to + 12, tl.sum(tl.reshape(g3, (JB, 4, 4)), 1), j < J)
