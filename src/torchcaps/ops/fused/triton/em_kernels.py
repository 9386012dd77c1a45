"""Kernels of EM routing between 4×4 matrix capsules; the algebra is in ``ops/fused/cpu/em.py``.

The 16 numbers of a pose are the last axis of every tile, [N, JB, 16]: N children or parents, JB types of parent.
A pass over the children walks over the parents that see each; a pass over the parents walks over each one's
receptive field; and both make the votes anew. What a program writes is its own: no atomics, the same numbers every
time. A geometry is T, H, W, KH, KW, HO, WO, SH, SW, J: the lower map, kernel, upper map, strides, types of parent.

States of the parents are tiles [B, P, J, 16], one behind the other: 0 the mean that the E-step saw, 1 its 1/σ²,
2 how far the M-step moved the mean, 3 and 4 the slopes g₁ and g₂; and numbers [B, P, J]: 0 the constant of their
logits, 1 the slope k.
"""

import triton
import triton.language as tl


@triton.jit
def up_to(SIZE: tl.constexpr):
    """0 … SIZE − 1, of 64 bits."""
    return tl.arange(0, SIZE).to(tl.int64)


@triton.jit
def pose_part(pose, child, there, k, dtype: tl.constexpr):
    """M[q, k] at all places (q, c) of a matrix: [N, 16]."""
    h = up_to(16)
    return tl.load(pose + child[:, None] * 16 + (h // 4 * 4 + k)[None, :], mask=there[:, None], other=0.0).to(dtype)


@triton.jit
def weight_part(weight, n, j, k, J: tl.constexpr, dtype: tl.constexpr):
    """W[k, c] of row n of the weights, at all places (q, c) of a matrix: [JB, 16]."""
    h = up_to(16)
    at = ((n * J + j) * 16)[:, None] + (4 * k + h % 4)[None, :]
    return tl.load(weight + at, mask=(j < J)[:, None], other=0.0).to(dtype)


@triton.jit
def differences(pose, weight, offset, mu, child, there, n, j, J: tl.constexpr):
    """V − μ [N, JB, 16] of children that see their parents through row n of the weights."""
    e = -mu
    if offset is not None:
        e += tl.load(offset + n * 16 + up_to(16))[None, None, :]
    for k in tl.static_range(4):
        m = pose_part(pose, child, there, k, mu.dtype)
        e += m[:, None, :] * weight_part(weight, n, j, k, J, mu.dtype)[None, :, :]
    return e


@triton.jit
def slope_of(e, tiles, numbers, parents, at, inside, tile_size, FIRST: tl.constexpr):
    """d = V − μ, g₁, g₂ and dr = k + Σ d (g₁ + g₂ d)."""
    d = e
    if not FIRST:
        d = e - tl.load(tiles + 2 * tile_size + at, mask=inside[:, :, None], other=0.0)
    g1 = tl.load(tiles + 3 * tile_size + at, mask=inside[:, :, None], other=0.0)
    g2 = tl.load(tiles + 4 * tile_size + at, mask=inside[:, :, None], other=0.0)
    k = tl.load(numbers + tile_size // 16 + parents, mask=inside, other=0.0)
    return d, g1, g2, k + tl.sum(d * (g1 + g2 * d), 2)


@triton.jit
def logits_of(e, tiles, numbers, parents, at, inside, tile_size):
    """1/σ² and log a + log p: [N, JB, 16], [N, JB]."""
    w = tl.load(tiles + tile_size + at, mask=inside[:, :, None], other=0.0)
    return w, tl.load(numbers + parents, mask=inside, other=0.0) - 0.5 * tl.sum(e * e * w, 2)


@triton.jit
def shares_of(logit, top, inverse, child, j, there, J: tl.constexpr, POSITIONS: tl.constexpr):
    """R [N, JB] from the logits and what the pass over the children found; 0 where nothing is."""
    inside = there[:, None] & (j < J)[None, :]
    logit = tl.where(inside, logit, float("-inf"))
    if POSITIONS:
        at = child[:, None] * J + j[None, :]
        highest = tl.load(top + at, mask=inside, other=0.0)
        r = tl.exp(logit - highest) * tl.load(inverse + at, mask=inside, other=0.0)
    else:
        highest = tl.load(top + child, mask=there, other=0.0)
        r = tl.exp(logit - highest[:, None]) * tl.load(inverse + child, mask=there, other=0.0)[:, None]
    return r


@triton.jit
def logit_slopes(slope, a, mean, d_coupling, to, child, j, there, J: tl.constexpr, POSITIONS: tl.constexpr):
    """dR less Σ R dR over those that the child is shared among: R times this is the gradient of the logits."""
    inside = there[:, None] & (j < J)[None, :]
    slope = slope * a
    if d_coupling is not None:
        slope += tl.load(d_coupling + to, mask=inside, other=0.0)
    if POSITIONS:
        slope -= tl.load(mean + child[:, None] * J + j[None, :], mask=inside, other=0.0)
    else:
        slope -= tl.load(mean + child, mask=there, other=0.0)[:, None]
    return slope


@triton.jit
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
    """The highest logit of a child and 1 over the sum of exponentials; backward its Σ R dR too, and d_activation.

    A program has one place of one type in the lower map, of N images: they share their weights.
    """
    t, y, x = tl.program_id(0) // (H * W), tl.program_id(0) // W % H, tl.program_id(0) % W
    b = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    there = b < n_images
    child = ((b * T + t) * H + y) * W + x
    tile_size = tl.full((), HO * WO * J * 16, tl.int64) * n_images
    dtype = tiles.dtype.element_ty
    y0, y1 = tl.maximum(0, (y - KH + SH) // SH), tl.minimum(y // SH, HO - 1)
    x0, x1 = tl.maximum(0, (x - KW + SW) // SW), tl.minimum(x // SW, WO - 1)
    if (y0 <= y1) & (x0 <= x1):  # some place sees it
        a = tl.load(activation + child, mask=there, other=0.0)
        highest = tl.full((N,), float("-inf"), dtype)  # of all parents, and Σ exp, Σ exp·dr, Σ exp·(dR from outside)
        total = tl.zeros((N,), dtype)
        slopes, outer = total, total
        for j0 in range(0, J, JB):
            j = j0 + up_to(JB)
            inside = there[:, None] & (j < J)[None, :]
            own_top = tl.full((N, JB), float("-inf"), dtype)  # the same of one type
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
                        own_total = own_total * shrink + part
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
                share = 1.0 / own_total
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
            share = 1.0 / total
            slopes *= share
            tl.store(top + child, highest, mask=there)
            tl.store(inverse + child, share, mask=there)
            if BACKWARD:
                tl.store(mean + child, a * slopes + outer * share, mask=there)
        if BACKWARD:
            before = tl.load(d_activation + child, mask=there, other=0.0)
            tl.store(d_activation + child, before + slopes, mask=there)


@triton.jit
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
        sum2 += rd * d
    part = tl.program_id(2).to(tl.int64) * tile_size
    tl.store(s0 + part // 16 + parents, sum0, mask=inside)
    tl.store(s1 + part + at, sum1, mask=inside[:, :, None])
    tl.store(s2 + part + at, sum2, mask=inside[:, :, None])


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
        d_votes = (a * start[:, None])[:, :, None] * (g1 + 2.0 * g2 * d)
    else:
        w, logit = logits_of(e, tiles, numbers, parents, at, inside, tile_size)
        r = shares_of(logit, top, inverse, child, j, there, J, POSITIONS)
        d_votes = (r * a)[:, :, None] * (g1 + 2.0 * g2 * d)
        if not STOP:
            to = (row[:, None] * ROWS + n) * J + j[None, :]
            r *= logit_slopes(slope, a, mean, d_coupling, to, child, j, there, J, POSITIONS)
            d_votes -= r[:, :, None] * e * w
    return d_votes


@triton.jit
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
    """d_pose += Σ over the parents of a child of dV Wᵀ; a program has what it has in :func:`child_pass`."""
    t, y, x = tl.program_id(0) // (H * W), tl.program_id(0) // W % H, tl.program_id(0) % W
    b = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    there = b < n_images
    child = ((b * T + t) * H + y) * W + x
    tile_size = tl.full((), HO * WO * J * 16, tl.int64) * n_images
    dtype = tiles.dtype.element_ty
    y0, y1 = tl.maximum(0, (y - KH + SH) // SH), tl.minimum(y // SH, HO - 1)
    x0, x1 = tl.maximum(0, (x - KW + SW) // SW), tl.minimum(x // SW, WO - 1)
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


@triton.jit
def add_to(to, x, there):
    """Add where no other program does."""
    tl.store(to, tl.load(to, mask=there[:, None], other=0.0) + x, mask=there[:, None])


@triton.jit
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


INTERPRETED = not isinstance(child_pass, triton.JITFunction)
