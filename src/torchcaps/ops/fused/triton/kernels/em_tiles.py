"""Tiles that every kernel of EM routing is made of.

The 16 numbers of a pose are the last axis of every tile, [N, JB, 16]: N children or parents, JB types of parent.
A geometry is T, H, W, KH, KW, HO, WO, SH, SW, J: the lower map, kernel, upper map, strides, types of parent.

Two passes make the same logits, and R has sum 1 only if both round them alike: so what is to be one operation is
written as ``tl.fma``, and the compiler joins no others (see ``cuts.APART``).

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
def children_of(n_images, T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """A program's children: one place of one type in the lower map, of N images, for they share their weights.

    Type, row and column; numbers of the images, which of them are there, and numbers of the children, [N].
    """
    t, y, x = tl.program_id(0) // (H * W), tl.program_id(0) // W % H, tl.program_id(0) % W
    b = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    return t, y, x, b, b < n_images, ((b * T + t) * H + y) * W + x


@triton.jit
def seen_from(at, KERNEL: tl.constexpr, STEP: tl.constexpr, OUT: tl.constexpr):
    """First and last of the OUT rows, or columns, of places whose receptive fields a row, or column, lies in."""
    return tl.maximum(0, (at - KERNEL + STEP) // STEP), tl.minimum(at // STEP, OUT - 1)


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
        e = tl.fma(m[:, None, :], weight_part(weight, n, j, k, J, mu.dtype)[None, :, :], e)
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
    return d, g1, g2, k + tl.sum(d * tl.fma(g2, d, g1), 2)


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
