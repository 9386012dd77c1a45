"""What EM routing computes of each parent, from sums over its votes: forward and backward.

Tiles are ``[N, 16]`` of N parents. What is one number of a parent, the logarithms and exponentials among them, is in
float64: it decides over all votes of the parent, and is little work. Settings are float64 too, handed over as their
bits in an integer, for a number would become float32.
"""

import triton
import triton.language as tl

from torchcaps.ops.backends.triton_exact import over

#: Parts that are read at once.
UNROLL: tl.constexpr = tl.constexpr(4)


@triton.jit
def exactly(bits):
    """Return the float64 with these bits."""
    return tl.cast(tl.cast(bits, tl.int64), tl.float64, bitcast=True)


@triton.jit
def own_parents(n, N: tl.constexpr):
    """Return a program's parents [N, 1], which are there, their 16 numbers' places [N, 16], and where these are."""
    row = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[:, None]
    there = row < n
    return row, there, row * 16 + tl.arange(0, 16)[None, :], there & (tl.arange(0, 16)[None, :] >= 0)


@triton.jit
def over_parts(sums, at, inside, n_parts, step):
    """Σ over the parts, in their order."""
    total = tl.load(sums + at, mask=inside, other=0.0)
    for first in range(1, n_parts, UNROLL):
        for i in tl.static_range(UNROLL):
            total += tl.load(sums + at + (first + i) * step, mask=inside & (first + i < n_parts), other=0.0)
    return total


@triton.jit
def log_volume(variance):
    """Σ_h log σ²_h, [N, 1] in float64."""
    return tl.sum(tl.log(variance.to(tl.float64)), 1)[:, None]


@triton.jit
def sigmoid(x):
    """Compute the sigmoid of float64."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit(do_not_specialize=["numbers", "n", "n_parts", "mass_floor", "variance_floor", "damping"])
def mean_pass(
    s0,
    s1,
    s2,
    records,
    state,
    numbers,
    again,
    n,
    n_parts,
    mass_floor,
    variance_floor,
    damping,
    RECORD: tl.constexpr,
    N: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Mass, and how far the mean moves: the FIRST time from 0.

    Later also Σ r (V − μ) and Σ r (V − μ)² around the new mean; where it moved so far that the variance cancels,
    ``again`` says that they are to be summed again.
    """
    n = tl.cast(n, tl.int64)
    row, there, at, inside = own_parents(n, N)
    dtype: tl.constexpr = records.dtype.element_ty
    record = records + row * RECORD + tl.arange(0, 16)[None, :]
    sum0 = over_parts(s0, row, there, n_parts, n)
    sum1 = over_parts(s1, at, inside, n_parts, n * 16)
    floor, kept = exactly(mass_floor).to(dtype), (1.0 - exactly(damping)).to(dtype)
    mass = sum0 + floor
    if FIRST:
        moved = kept * over(sum1, mass)
        tl.store(record, -moved, mask=inside)
    else:
        sum2 = over_parts(s2, at, inside, n_parts, n * 16)
        moved = kept * over(tl.fma(floor + sum1 * 0.0, tl.load(record, mask=inside, other=0.0), sum1), mass)
        squares = sum2 + moved * (moved * sum0 - 2.0 * sum1)
        lost = inside & (sum2 > 4.0 * (squares + exactly(variance_floor).to(dtype) * mass))
        tl.store(again + row, tl.max(lost.to(tl.int32), 1)[:, None], mask=there)
        tl.store(record + 36, moved, mask=inside)
        tl.store(state + n * 16 + at, sum1 - moved * sum0, mask=inside)
        tl.store(state + n * 32 + at, squares, mask=inside)
    tl.store(state + at, moved, mask=inside)
    tl.store(numbers + n + row, mass, mask=there)


_SETTINGS = ["inverse_temperature", "ratio", "scale_a", "scale_u", "scale_variance", "variance_floor"]


@triton.jit(do_not_specialize=["numbers", "n", "n_parts", "n_places", "J", "last", *_SETTINGS])
def fit_pass(
    s1,
    s2,
    again,
    records,
    state,
    numbers,
    log_ap,
    beta_u,
    beta_a,
    out_pose,
    out_activation,
    n,
    n_parts,
    n_places,
    J,
    last,
    inverse_temperature,
    ratio,
    scale_a,
    scale_u,
    scale_variance,
    variance_floor,
    RECORD: tl.constexpr,
    N: tl.constexpr,
    FIRST: tl.constexpr,
):
    """End the M-step, from Σ r (V − μ) and Σ r (V − μ)² around the new mean: variance, logit, log a + log p.

    The FIRST time the mean moved from 0, and the sums are those of the parts. The ``last`` time the mean and activation
    are the results.
    """
    n = tl.cast(n, tl.int64)
    row, there, at, inside = own_parents(n, N)
    dtype: tl.constexpr = records.dtype.element_ty
    j, place = row % J, row // J
    record = records + row * RECORD + tl.arange(0, 16)[None, :]
    moved = tl.load(state + at, mask=inside, other=0.0)
    if FIRST:
        mu = moved
        left = over_parts(s1, at, inside, n_parts, n * 16)
        squares = over_parts(s2, at, inside, n_parts, n * 16)
    else:
        mu = moved - tl.load(record, mask=inside, other=0.0)
        redone = inside & (tl.load(again + row, mask=there, other=0) != 0)
        left = tl.load(state + n * 16 + at, mask=inside, other=0.0)
        left = tl.where(redone, over_parts(s1, at, redone, n_parts, n * 16), left)
        squares = tl.load(state + n * 32 + at, mask=inside, other=0.0)
        squares = tl.where(redone, over_parts(s2, at, redone, n_parts, n * 16), squares)
    mass = tl.load(numbers + n + row, mask=there, other=1.0)
    variance = over(squares, mass) + exactly(variance_floor).to(dtype)
    logs = log_volume(variance)
    cost = exactly(scale_u) * 16.0 * tl.load(beta_u + j).to(tl.float64) + exactly(scale_variance) / 2.0 * logs
    logit = exactly(scale_a) * tl.load(beta_a + j).to(tl.float64) - cost * exactly(ratio) * mass.to(tl.float64)
    logit *= exactly(inverse_temperature)
    tl.store(state + n * 16 + at, over(left, mass), mask=inside)
    tl.store(state + n * 32 + at, variance, mask=inside)
    tl.store(numbers + row, logit.to(dtype), mask=there)
    tl.store(numbers + 2 * n + row, mass * 0.0, mask=there)  # until it is known
    tl.store(record, -mu, mask=inside)
    tl.store(record + 16, over(1.0, variance), mask=inside)
    log_a = tl.minimum(logit, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(logit)))
    tl.store(log_ap + row, log_a - logs / 2.0, mask=there)
    to = (place // n_places * J + j) * n_places + place % n_places
    tl.store(out_pose + to * 16 + tl.arange(0, 16)[None, :], mu, mask=inside & (last != 0))
    tl.store(out_activation + to, sigmoid(logit).to(dtype), mask=there & (last != 0))


@triton.jit(do_not_specialize=["constants", "n"])
def level_pass(log_ap, records, constants, n, RECORD: tl.constexpr, N: tl.constexpr):
    """log a + log p of an image's n parents, less the greatest.

    What is the same for all parents changes no share: without it, less is lost to rounding.
    """
    own = tl.program_id(0).to(tl.int64) * n
    highest = tl.full((N,), float("-inf"), tl.float64)
    for first in range(0, n, N):
        i = first + tl.arange(0, N)
        highest = tl.maximum(highest, tl.load(log_ap + own + i, mask=i < n, other=float("-inf")))
    greatest = tl.max(highest, 0)
    for first in range(0, n, N):
        i = first + tl.arange(0, N)
        constant = (tl.load(log_ap + own + i, mask=i < n, other=0.0) - greatest).to(records.dtype.element_ty)
        tl.store(records + (own + i) * RECORD + 32, constant, mask=i < n)
        tl.store(constants + own + i, constant, mask=i < n)


@triton.jit(do_not_specialize=["n", "n_parts", "n_places", "J", "t", "mass_floor", "damping", *_SETTINGS])
def slopes_pass(
    s0,
    s1,
    s2,
    d_pose,
    d_activation,
    records,
    states,
    numbers,
    carried,
    betas,
    beta_u,
    n,
    n_parts,
    n_places,
    J,
    t,
    mass_floor,
    damping,
    inverse_temperature,
    ratio,
    scale_a,
    scale_u,
    scale_variance,
    variance_floor,
    RECORD: tl.constexpr,
    N: tl.constexpr,
    LAST: tl.constexpr,
):
    """Compute the gradients of an M-step's sums, and the states of the E-step before it.

    Made from the results' gradients for the LAST iteration t, else from sums over the votes of the E-step that
    followed. ``carried`` is the gradient of the mean, from iteration to iteration; ``betas`` those of β_u and β_a so
    far, of every parent.
    """
    n = tl.cast(n, tl.int64)
    row, there, at, inside = own_parents(n, N)
    dtype: tl.constexpr = records.dtype.element_ty
    j, place = row % J, row // J
    record = records + row * RECORD + tl.arange(0, 16)[None, :]
    state, number = states + tl.cast(t, tl.int64) * 3 * n * 16 + at, numbers + tl.cast(t, tl.int64) * 3 * n + row
    logit = tl.load(number, mask=there, other=0.0).to(tl.float64)
    mass = tl.load(number + n, mask=there, other=1.0)
    moved = tl.load(state, mask=inside, other=0.0)
    left = tl.load(state + n * 16, mask=inside, other=0.0)
    variance = tl.load(state + n * 32, mask=inside, other=1.0)
    if LAST:
        of = (place // n_places * J + j) * n_places + place % n_places
        d_mu = tl.load(d_pose + of * 16 + tl.arange(0, 16)[None, :], mask=inside, other=0.0)
        d_logit = tl.load(d_activation + of, mask=there, other=0.0).to(tl.float64) * sigmoid(logit) * sigmoid(-logit)
        d_variance = d_mu * 0.0
    else:
        sum0 = over_parts(s0, row, there, n_parts, n)
        d_logit = sum0.to(tl.float64) * sigmoid(-logit)
        d_mu = exactly(damping).to(dtype) * tl.load(carried + at, mask=inside, other=0.0)
        d_mu += over(over_parts(s1, at, inside, n_parts, n * 16), variance)
        d_variance = over(over_parts(s2, at, inside, n_parts, n * 16), variance) - sum0
        d_variance = over(d_variance, 2.0 * variance)
    before = d_mu * 0.0
    for i in range(t):
        before += tl.load(states + i * 3 * n * 16 + at, mask=inside, other=0.0)

    scale, wide = exactly(inverse_temperature) * exactly(ratio), mass.to(tl.float64)
    cost = exactly(scale_u) * 16.0 * tl.load(beta_u + j).to(tl.float64)
    cost += exactly(scale_variance) / 2.0 * log_volume(variance)
    later = there & (LAST == 0)
    d_u = tl.load(betas + row, mask=later, other=0.0)
    d_a = tl.load(betas + n + row, mask=later, other=0.0)
    tl.store(betas + row, d_u - (scale * exactly(scale_u) * 16.0 * d_logit * wide).to(dtype), mask=there)
    tl.store(betas + n + row, d_a + (exactly(inverse_temperature) * exactly(scale_a) * d_logit).to(dtype), mask=there)

    apart = left - over(exactly(mass_floor).to(dtype) * (before + moved), mass)  # mean − μ
    d_variance -= over((scale * exactly(scale_variance) / 2.0 * wide * d_logit).to(dtype) + variance * 0.0, variance)
    g2 = over(d_variance, mass)
    d_mu -= 2.0 * g2 * mass * left
    g1 = over((1.0 - exactly(damping)).to(dtype) * d_mu, mass)
    k = tl.sum(g2 * (variance - exactly(variance_floor).to(dtype)) + g1 * apart, 1)[:, None]
    k = (-scale * cost * d_logit).to(dtype) - k
    tl.store(carried + at, d_mu, mask=inside)
    # Around the mean of the E-step before, or, where there is none, the new one.
    tl.store(record, tl.where(t > 0, -before, -moved), mask=inside)
    tl.store(records + row * RECORD + 33, k, mask=there)
    tl.store(record + 36, moved, mask=inside)
    tl.store(record + 52, g1, mask=inside)
    tl.store(record + 68, g2, mask=inside)
    earlier = tl.load(state - n * 16, mask=inside & (t > 0), other=1.0)
    tl.store(record + 16, over(1.0, earlier), mask=inside)
    constant = tl.load(number - n, mask=there & (t > 0), other=0.0)
    tl.store(records + row * RECORD + 32, constant, mask=there)
