"""Kernels of dynamic routing. The algebra is in ``ops/dynamic/operator.py``; imported only where triton is.

Votes û_ij = u_i W_ij are never made. As in attention, logits and sums are products of matrices, for each upper
capsule j, of N images and K = KI lower capsules × DP elements of their poses:

    b_ij = Σ_d u_id (W_ij V_j)_d        from V_j [N, EP] · W_jᵀ [EP, K], then summed over d
    s_j = Σ_(i, d) (c_ij u_id) W_ijd    [N, K] · [K, EP]

and all gradients likewise. DP and EP are the powers of two that D = d_in and E = d_out fit in, EP at least 16.
Logits b_ij and couplings c_ij go through memory, [J, B, I]: d_out times less than votes.

Sums are cut into parts by the sizes alone and added in their order, without atomics: the same numbers every time.
All tensors are contiguous; offsets that grow with a tensor are of 64 bits.
"""

import triton
import triton.language as tl

from torchcaps.ops.backends.triton_exact import INTERPRETED, over, product
from torchcaps.ops.dynamic.triton_squash import squash_backward_pass, squash_pass

__all__ = [
    "INTERPRETED",
    "logits_pass",
    "pose_gradient_pass",
    "squash_backward_pass",
    "squash_pass",
    "sums_pass",
    "weight_gradient_pass",
]

#: Below every finite logit, and not -inf, from which nothing can be subtracted that is.
LOWEST = tl.constexpr(-3e38)


@triton.jit
def there_of(block, n_images, N: tl.constexpr):
    """Return which images of a block are there [N]."""
    return block * N + tl.arange(0, N) < n_images


@triton.jit
def known_of(chunk, n_in, KI: tl.constexpr):
    """Return which lower capsules of a chunk are there [KI]."""
    return chunk * KI + tl.arange(0, KI) < n_in


@triton.jit
def pair_places(block, chunk, n_in, N: tl.constexpr, KI: tl.constexpr):
    """Return where a block of images and a chunk begin in [B, I], of 64 bits, and offsets from there [N, KI]."""
    n, i = tl.arange(0, N), tl.arange(0, KI)
    return tl.full((), N, tl.int64) * block * n_in + chunk * KI, n[:, None] * n_in + i[None, :]


@triton.jit
def pose_places(block, chunk, n_images, n_in, D: tl.constexpr, N: tl.constexpr, KI: tl.constexpr, DP: tl.constexpr):
    """Return the same in [B, I, D] with offsets [N, K], and which are there."""
    n, k = tl.arange(0, N), tl.arange(0, KI * DP)
    known = (chunk * KI + k // DP < n_in) & (k % DP < D)
    first = (tl.full((), N, tl.int64) * block * n_in + chunk * KI) * D
    offsets = n[:, None] * (n_in * D) + (k // DP * D + k % DP)[None, :]
    return first, offsets, there_of(block, n_images, N)[:, None] & known[None, :]


@triton.jit
def load_poses(u, block, chunk, n_images, n_in, D: tl.constexpr, N: tl.constexpr, KI: tl.constexpr, DP: tl.constexpr):
    """Poses of a block and a chunk [N, K]; 0 where there is none."""
    first, offsets, inside = pose_places(block, chunk, n_images, n_in, D, N, KI, DP)
    return tl.load(u + first + offsets, mask=inside, other=0.0)


@triton.jit
def matrix_places(
    j,
    chunk,
    n_in,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    KI: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
):
    """Return the same in [I, J, D, E] for upper capsule j, with offsets [K, EP]."""
    k, e = tl.arange(0, KI * DP), tl.arange(0, EP)
    known = (chunk * KI + k // DP < n_in) & (k % DP < D)
    first = tl.full((), KI * J, tl.int64) * chunk * (D * E) + j * (D * E)
    offsets = (k // DP * (J * D * E) + k % DP * E)[:, None] + e[None, :]
    return first, offsets, known[:, None] & (e < E)[None, :]


@triton.jit
def load_matrices(
    weight,
    j,
    chunk,
    n_in,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    KI: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
):
    """Matrices of a chunk to upper capsule j, [K, EP]; 0 where there is none."""
    first, offsets, inside = matrix_places(j, chunk, n_in, D, J, E, KI, DP, EP)
    return tl.load(weight + first + offsets, mask=inside, other=0.0)


@triton.jit
def state_places(block, j, n_images, J: tl.constexpr, E: tl.constexpr, N: tl.constexpr, EP: tl.constexpr):
    """Return the same in [B, J, E], with offsets [N, EP]."""
    n, e = tl.arange(0, N), tl.arange(0, EP)
    first = tl.full((), N * J, tl.int64) * block * E + j * E
    return first, n[:, None] * (J * E) + e[None, :], there_of(block, n_images, N)[:, None] & (e < E)[None, :]


@triton.jit
def load_states(states, block, j, n_images, J: tl.constexpr, E: tl.constexpr, N: tl.constexpr, EP: tl.constexpr):
    """V or ds of upper capsule j [N, EP]; 0 where there is none."""
    first, offsets, inside = state_places(block, j, n_images, J, E, N, EP)
    return tl.load(states + first + offsets, mask=inside, other=0.0)


@triton.jit
def spread(c, N: tl.constexpr, KI: tl.constexpr, DP: tl.constexpr):
    """Give every element of a lower capsule its number: [N, KI] to [N, K]."""
    return tl.reshape(tl.broadcast_to(c[:, :, None], (N, KI, DP)), (N, KI * DP))


@triton.jit
def equal_share(x, J: tl.constexpr, LEAKY: tl.constexpr):
    """Divide x by the number of places that a lower capsule may route to."""
    return over(x, tl.full(x.shape, J + 1 if LEAKY else J, x.dtype))


@triton.jit
def agreements(x, state, matrices, N: tl.constexpr, KI: tl.constexpr, DP: tl.constexpr, PRECISION: tl.constexpr):
    """û_ij · state_j [N, KI] from poses [N, K], states [N, EP] and matrices [K, EP]."""
    seen = product(state, tl.trans(matrices), tl.zeros((N, KI * DP), state.dtype), PRECISION)
    return tl.sum(tl.reshape(x.to(state.dtype) * seen, (N, KI, DP)), 2)


@triton.jit
def add_exactly(total, lost, x):
    """Add x to a sum that lacks what rounding lost so far; returns both anew (Kahan 1965)."""
    x = x - lost
    larger = total + x
    return larger, (larger - total) - x


@triton.jit(do_not_specialize=["n_images", "n_blocks"])
def logits_pass(
    u,
    weight,
    b0,
    outputs,
    ds,
    d_coupling,
    logits,
    softmax,
    n_images,
    n_in,
    n_blocks,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    KI: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    LEAKY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Logits b [J, B, I] of one iteration; into ``softmax`` [3, B, I] max_j b and 1 / Σ_j exp(b - max).

    Given ds: dc behind the logits, and Σ_j c dc in ``softmax``. A program has a block of images and a chunk of lower
    capsules, and walks over upper ones.
    """
    kind: tl.constexpr = outputs.dtype.element_ty
    chunk = tl.program_id(0) // n_blocks
    block = tl.program_id(0) % n_blocks
    known = known_of(chunk, n_in, KI)
    inside = there_of(block, n_images, N)[:, None] & known[None, :]
    first, pairs = pair_places(block, chunk, n_in, N, KI)
    size = tl.full((), 1, tl.int64) * n_in * n_images
    x = load_poses(u, block, chunk, n_images, n_in, D, N, KI, DP)
    # The place of no upper capsule has logit 0.
    top = tl.full((N, KI), 0.0 if LEAKY else LOWEST, kind)
    total = tl.full((N, KI), 1.0 if LEAKY else 0.0, kind)
    mean = tl.zeros((N, KI), kind)
    # Of hundreds of capsules, added one after the other, rounding would lose more than torch's softmax does.
    lost, lost_mean = mean, mean
    for j in range(J):
        matrices = load_matrices(weight, j, chunk, n_in, D, J, E, KI, DP, EP)
        v = load_states(outputs, block, j, n_images, J, E, N, EP)
        logit = agreements(x, v, matrices, N, KI, DP, PRECISION)
        if b0 is not None:
            logit += tl.load(b0 + (chunk * KI + tl.arange(0, KI)) * J + j, mask=known, other=0.0)[None, :]
        tl.store(logits + (j * size + first) + pairs, logit, mask=inside)
        # One of the two exponentials is that of 0.
        rise = logit - top
        small = tl.exp(-tl.abs(rise))
        shrink, share = tl.where(rise > 0, small, 1.0), tl.where(rise > 0, 1.0, small)
        total, lost = add_exactly(total * shrink, lost * shrink, share)
        if ds is not None:
            g = load_states(ds, block, j, n_images, J, E, N, EP)
            dc = agreements(x, g, matrices, N, KI, DP, PRECISION)
            if d_coupling is not None:
                dc += tl.load(d_coupling + (first * J + j) + pairs * J, mask=inside, other=0.0)
            tl.store(logits + ((J + j) * size + first) + pairs, dc, mask=inside)
            mean, lost_mean = add_exactly(mean * shrink, lost_mean * shrink, share * dc)
        top = tl.where(rise > 0, logit, top)
    tl.store(softmax + first + pairs, top, mask=inside)
    tl.store(softmax + (size + first) + pairs, over(tl.full(total.shape, 1.0, kind), total), mask=inside)
    if ds is not None:
        tl.store(softmax + (2 * size + first) + pairs, over(mean, total), mask=inside)


@triton.jit(do_not_specialize=["n_images", "per_part"])
def sums_pass(
    u,
    weight,
    logits,
    softmax,
    coupling,
    parts,
    n_images,
    n_in,
    per_part,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    KI: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    LEAKY: tl.constexpr,
    BACKWARD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Σ c_ij û_ij over the lower capsules of a part, for one upper capsule and a block of images.

    Without logits all couplings are equal. ``coupling`` [B, I, J] is filled where it is given. Backward, the sum is of
    db_ij û_ij, and c and db take the places of b and dc.
    """
    kind: tl.constexpr = parts.dtype.element_ty
    part, j = tl.program_id(1), tl.program_id(2)
    block = tl.program_id(0)
    size = tl.full((), 1, tl.int64) * n_in * n_images
    total = tl.zeros((N, EP), kind)
    for chunk in range(part * per_part, tl.minimum(tl.cdiv(n_in, KI), (part + 1) * per_part)):
        x = load_poses(u, block, chunk, n_images, n_in, D, N, KI, DP)
        matrices = load_matrices(weight, j, chunk, n_in, D, J, E, KI, DP, EP)
        if logits is not None:
            inside = there_of(block, n_images, N)[:, None] & known_of(chunk, n_in, KI)[None, :]
            first, pairs = pair_places(block, chunk, n_in, N, KI)
            shift = tl.load(softmax + first + pairs, mask=inside, other=0.0)
            scale = tl.load(softmax + (size + first) + pairs, mask=inside, other=0.0)
            c = tl.exp(tl.load(logits + (j * size + first) + pairs, mask=inside, other=0.0) - shift) * scale
            if coupling is not None:
                tl.store(coupling + (first * J + j) + pairs * J, c, mask=inside)
            if BACKWARD:
                dc = tl.load(logits + ((J + j) * size + first) + pairs, mask=inside, other=0.0)
                db = c * (dc - tl.load(softmax + (2 * size + first) + pairs, mask=inside, other=0.0))
                tl.store(logits + (j * size + first) + pairs, c, mask=inside)
                tl.store(logits + ((J + j) * size + first) + pairs, db, mask=inside)
                c = db
            total = product(spread(c, N, KI, DP) * x.to(kind), matrices, total, PRECISION)
        else:
            total = product(x, matrices, total, PRECISION)
    if logits is None:
        total = equal_share(total, J, LEAKY)
    start, offsets, stored = state_places(block, j, n_images, J, E, N, EP)
    tl.store(parts + (part.to(tl.int64) * n_images * (J * E) + start) + offsets, total, mask=stored)


@triton.jit(do_not_specialize=["n_images", "n_blocks"])
def pose_gradient_pass(
    weight,
    outputs,
    ds,
    couplings,
    du,
    n_images,
    n_in,
    n_blocks,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    KI: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    FIRST: tl.constexpr,
    COUPLED: tl.constexpr,
    N_ITERS: tl.constexpr,
    FULL: tl.constexpr,
    LEAKY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """du = Σ_t Σ_j c (W ds) + db (W V) of a block of images and a chunk of lower capsules.

    t runs from FIRST to N_ITERS; ``couplings`` [., 2, J, B, I] has c and db of those from COUPLED on, before which
    couplings are equal.
    """
    kind: tl.constexpr = ds.dtype.element_ty
    chunk = tl.program_id(0) // n_blocks
    block = tl.program_id(0) % n_blocks
    known = known_of(chunk, n_in, KI)
    inside = there_of(block, n_images, N)[:, None] & known[None, :]
    first, pairs = pair_places(block, chunk, n_in, N, KI)
    size = tl.full((), 1, tl.int64) * n_in * n_images
    step = tl.full((), J * E, tl.int64) * n_images
    total = tl.zeros((N, KI * DP), kind)
    zero, lost = total, total
    for j in range(J):
        own = zero
        turned = tl.trans(load_matrices(weight, j, chunk, n_in, D, J, E, KI, DP, EP))
        for t in tl.static_range(FIRST, N_ITERS):
            g = load_states(ds + t * step, block, j, n_images, J, E, N, EP)
            if t < COUPLED:
                own = product(equal_share(g, J, LEAKY), turned, own, PRECISION)
            else:
                here = couplings + (((t - COUPLED) * 2 * J + j) * size + first) + pairs
                c = tl.load(here, mask=inside, other=0.0)
                own += spread(c, N, KI, DP) * product(g, turned, zero, PRECISION)
                if FULL and t > 0:
                    v = load_states(outputs + t * step, block, j, n_images, J, E, N, EP)
                    db = tl.load(here + J * size, mask=inside, other=0.0)
                    own += spread(db, N, KI, DP) * product(v, turned, zero, PRECISION)
        total, lost = add_exactly(total, lost, own)
    start, offsets, stored = pose_places(block, chunk, n_images, n_in, D, N, KI, DP)
    tl.store(du + start + offsets, total.to(du.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["n_images", "per_part"])
def weight_gradient_pass(
    u,
    outputs,
    ds,
    couplings,
    d_weight,
    d_b0,
    d_bias,
    n_images,
    n_in,
    per_part,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    KI: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    FIRST: tl.constexpr,
    COUPLED: tl.constexpr,
    N_ITERS: tl.constexpr,
    FULL: tl.constexpr,
    LEAKY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dW = Σ_t (c u)ᵀ ds + (db u)ᵀ V, db⁰ and Σ ds over the images of a part, for one upper capsule.

    t as in :func:`pose_gradient_pass`; ``d_b0`` may be None. A program has a chunk of lower capsules.
    """
    kind: tl.constexpr = ds.dtype.element_ty
    chunk, j, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    known = known_of(chunk, n_in, KI)
    size = tl.full((), 1, tl.int64) * n_in * n_images
    step = tl.full((), J * E, tl.int64) * n_images
    total = tl.zeros((EP, KI * DP), kind)  # with few rows: every warp has some columns, and no operand is turned but g
    total_prior = tl.zeros((N, KI), kind)
    for block in range(part * per_part, tl.minimum(tl.cdiv(n_images, N), (part + 1) * per_part)):
        inside = there_of(block, n_images, N)[:, None] & known[None, :]
        first, pairs = pair_places(block, chunk, n_in, N, KI)
        x = load_poses(u, block, chunk, n_images, n_in, D, N, KI, DP)
        for t in tl.static_range(FIRST, N_ITERS):
            g = load_states(ds + t * step, block, j, n_images, J, E, N, EP)
            if t < COUPLED:
                total = product(tl.trans(equal_share(g, J, LEAKY)), x, total, PRECISION)
            else:
                here = couplings + (((t - COUPLED) * 2 * J + j) * size + first) + pairs
                c = spread(tl.load(here, mask=inside, other=0.0), N, KI, DP)
                total = product(tl.trans(g), c * x.to(kind), total, PRECISION)
                if (FULL and t > 0) or d_b0 is not None:
                    db = tl.load(here + J * size, mask=inside, other=0.0)
                    if d_b0 is not None:
                        total_prior += db
                    if FULL and t > 0:
                        v = load_states(outputs + t * step, block, j, n_images, J, E, N, EP)
                        total = product(tl.trans(v), spread(db, N, KI, DP) * x.to(kind), total, PRECISION)
    start, offsets, stored = matrix_places(j, chunk, n_in, D, J, E, KI, DP, EP)
    to = d_weight + (part.to(tl.int64) * n_in * (J * D * E) + start) + offsets
    tl.store(to, tl.trans(total).to(d_weight.dtype.element_ty), mask=stored)
    if d_b0 is not None:
        i = chunk * KI + tl.arange(0, KI)
        tl.store(d_b0 + (part.to(tl.int64) * n_in + i) * J + j, tl.sum(total_prior, 0), mask=known)
    if chunk == 0:
        total_bias = tl.zeros((N, EP), kind)
        for bias_block in range(part * per_part, tl.minimum(tl.cdiv(n_images, N), (part + 1) * per_part)):
            for t in tl.static_range(FIRST, N_ITERS):
                total_bias += load_states(ds + t * step, bias_block, j, n_images, J, E, N, EP)
        e = tl.arange(0, EP)
        tl.store(d_bias + (part * J + j) * E + e, tl.sum(total_bias, 0), mask=e < E)
