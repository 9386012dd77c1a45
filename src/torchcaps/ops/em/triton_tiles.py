"""What every kernel of EM routing is made of: one thread has one vote, and all of its 16 numbers.

The numbers of a pose are 16 tensors ``[N]`` in a tuple, so that products and sums over them stay within a thread: no
barrier, no shared memory. A thread's own index walks over types of capsule, which lie side by side in memory; what
its neighbours share is read once for all.

Layouts: poses ``[B, H, W, 4, T, 4]``; weights for the lanes of children ``[K, J, 4, T, 4]``, and for those of parents
``[K, T, 4, J, 4]``, with K = K_h·K_w. What is found of a child ``[B, H, W, T, 4]``, or of a child and type
``[B, H, W, T, J, 4]``: activation, highest logit, 1 over the sum of exponentials, mean slope. Records of the parents
``[B, P, J, RECORD]``: at 0 minus the mean that the E-step saw, 16 its 1/σ², 32 the constant of the logits, 33 the
slope k, 36 how far the M-step moved the mean, 52 and 68 the slopes g₁ and g₂ (forward there are none).

Two passes make the same logits, and R has sum 1 only if both round them alike: so what is to be one operation is
written as ``tl.fma``, and the compiler joins no others (see ``cuts.APART``).
"""

import triton
import triton.language as tl


@triton.jit
def lanes(n, block, N: tl.constexpr):
    """Numbers of a program's n lanes, the last one's again where there are no more, and which are there."""
    lane = block * N + tl.arange(0, N)
    return tl.minimum(lane, n - 1), lane < n


@triton.jit
def seen_from(at, kernel, step, out):
    """First and last of the rows, or columns, of places whose receptive fields a row, or column, lies in."""
    return tl.maximum(0, (at - kernel + step) // step), tl.minimum(at // step, out - 1)


@triton.jit
def four(at, N: tl.constexpr):
    """Four numbers in a row, read at once."""
    pairs = tl.reshape(tl.load(at[:, None] + tl.arange(0, 4)[None, :]), (N, 2, 2))
    even, odd = tl.split(pairs)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def sixteen(at, step, N: tl.constexpr):
    """Load a matrix whose rows are ``step`` apart."""
    numbers = ()
    for row in tl.static_range(4):
        numbers += four(at + row * step, N)
    return numbers


@triton.jit
def store_four(to, first, second, third, fourth, inside, N: tl.constexpr):
    """Write four numbers in a row."""
    x = tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), (N, 4))
    tl.store(to[:, None] + tl.arange(0, 4)[None, :], x, mask=inside[:, None])


@triton.jit
def store_sixteen(to, step, numbers, inside, N: tl.constexpr):
    """Write a matrix whose rows are ``step`` apart."""
    for q in tl.static_range(4):
        row = numbers[4 * q], numbers[4 * q + 1], numbers[4 * q + 2], numbers[4 * q + 3]
        store_four(to + q * step, row[0], row[1], row[2], row[3], inside, N)


@triton.jit
def all_of(x):
    """Return the same tensor sixteen times."""
    numbers = ()
    for _h in tl.static_range(16):
        numbers += (x,)
    return numbers


@triton.jit
def differences(m, w, minus_mu, offset, N: tl.constexpr):
    """V − μ, of V = M W, and the vote's offset at ``offset`` where there is one."""
    if offset is not None:
        added = sixteen(offset, 4, N)
    e = ()
    for h in tl.static_range(16):
        x = minus_mu[h]
        if offset is not None:
            x = x + added[h]
        for k in tl.static_range(4):
            x = tl.fma(m[h // 4 * 4 + k], w[4 * k + h % 4], x)
        e += (x,)
    return e


@triton.jit
def logit_of(e, precision, constant, LINEAR: tl.constexpr):
    """Return a logit, and minus its gradient of V: log a + log p and (V − μ)/σ².

    Where logits are LINEAR in the votes, they are the constant and Σ (V − μ)/σ².
    """
    scaled = ()
    rows = ()
    for q in tl.static_range(4):
        v = -precision[4 * q] if LINEAR else e[4 * q] * precision[4 * q]
        scaled += (v,)
        row = e[4 * q] * v
        for c in tl.static_range(1, 4):
            v = -precision[4 * q + c] if LINEAR else e[4 * q + c] * precision[4 * q + c]
            scaled += (v,)
            row = tl.fma(e[4 * q + c], v, row)
        rows += (row,)
    return scaled, tl.fma((rows[0] + rows[1]) + (rows[2] + rows[3]), -1.0 if LINEAR else -0.5, constant)


@triton.jit
def slope_of(e, moved, g1, g2, k, FIRST: tl.constexpr):
    """dr = k + Σ d (g₁ + g₂ d) and, of each number, g₁ + 2 g₂ d, where d is V less the new mean."""
    d = e
    if not FIRST:
        d = ()
        for h in tl.static_range(16):
            d += (e[h] - moved[h],)
    single = ()
    for h in tl.static_range(16):
        single += (tl.fma(g2[h], d[h], g1[h]),)
    rows = ()
    for q in tl.static_range(4):
        row = d[4 * q] * single[4 * q]
        for c in tl.static_range(1, 4):
            row = tl.fma(d[4 * q + c], single[4 * q + c], row)
        rows += (row,)
    slopes = ()
    for h in tl.static_range(16):
        slopes += (tl.fma(g2[h], d[h], single[h]),)
    return k + ((rows[0] + rows[1]) + (rows[2] + rows[3])), slopes


@triton.jit
def vote_gradient(
    e,
    record,
    a,
    highest,
    inverse,
    mean,
    d_coupling,
    N: tl.constexpr,
    FIRST: tl.constexpr,
    STOP: tl.constexpr,
    LINEAR: tl.constexpr,
):
    """dV, and R dr: of children with activations ``a``, times R of the first M-step where it is that.

    ``d_coupling`` is None, or where the gradient of R from outside stands.
    """
    moved = e if FIRST else sixteen(record + 36, 4, N)
    g1, g2 = sixteen(record + 52, 4, N), sixteen(record + 68, 4, N)
    slope, twice = slope_of(e, moved, g1, g2, tl.load(record + 33), FIRST)
    d_votes = ()
    if FIRST:
        for h in tl.static_range(16):
            d_votes += (a * twice[h],)
        weighted = slope
    else:
        scaled, logit = logit_of(e, sixteen(record + 16, 4, N), tl.load(record + 32), LINEAR)
        r = tl.exp(logit - highest) * inverse
        weighted = r * slope
        ra = r * a
        if not STOP:
            slope = slope * a
            if d_coupling is not None:
                slope = slope + tl.load(d_coupling)
            x = r * (mean - slope)
        for h in tl.static_range(16):
            d = ra * twice[h]
            if not STOP:
                d = tl.fma(x, scaled[h], d)
            d_votes += (d,)
    return d_votes, weighted
