"""Kernels of dynamic routing. The algebra is in ``ops/fused/dynamic.py``; imported only where triton is.

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

from torchcaps.ops.fused.triton.kernels.exact import INTERPRETED, over, product, root

__all__ = [
    "INTERPRETED",
    "logits_pass",
    "pose_gradient_pass",
    "squash_backward_pass",
    "squash_pass",
    "sums_pass",
    "weight_gradient_pass",
]


@triton.jit
def images_of(block, n_images, N: tl.constexpr):
    """Numbers of a block's images [N], of 64 bits, and which are there."""
    b = (block * N + tl.arange(0, N)).to(tl.int64)
    return b, b < n_images


@triton.jit
def capsules_of(chunk, n_in, KI: tl.constexpr):
    """Numbers of a chunk's lower capsules [KI], of 64 bits, and which are there."""
    i = (chunk * KI + tl.arange(0, KI)).to(tl.int64)
    return i, i < n_in


@triton.jit
def elements_of(chunk, n_in, D: tl.constexpr, KI: tl.constexpr, DP: tl.constexpr):
    """Lower capsule of each of a chunk's elements [K], of 64 bits, its place in the pose, and which are there."""
    k = tl.arange(0, KI * DP)
    i = (chunk * KI + k // DP).to(tl.int64)
    return i, k % DP, (i < n_in) & (k % DP < D)


@triton.jit
def load_poses(u, b, there, chunk, n_in, D: tl.constexpr, KI: tl.constexpr, DP: tl.constexpr):
    """Poses of a chunk [N, K]; 0 where there is none."""
    i, d, known = elements_of(chunk, n_in, D, KI, DP)
    return tl.load(u + (b * n_in * D)[:, None] + (i * D + d)[None, :], mask=there[:, None] & known[None, :], other=0.0)


@triton.jit
def places_of_matrices(
    j, chunk, n_in, D: tl.constexpr, J: tl.constexpr, E: tl.constexpr, KI: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr
):
    """Offsets [K, EP] of a chunk's matrices to upper capsule j, and which are there."""
    i, d, known = elements_of(chunk, n_in, D, KI, DP)
    e = tl.arange(0, EP)
    return (((i * J + j) * D + d) * E)[:, None] + e[None, :], known[:, None] & (e < E)[None, :]


@triton.jit
def load_states(states, b, there, j, J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr):
    """V or ds [N, EP] of upper capsule j in some images; 0 where there is none."""
    e = tl.arange(0, EP)
    return tl.load(
        states + ((b * J + j) * E)[:, None] + e[None, :], mask=there[:, None] & (e < E)[None, :], other=0.0
    )


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


@triton.jit(do_not_specialize=["n_images", "n_blocks"])
def logits_pass(
    u,
    weight,
    prior,
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
    b, there = images_of(tl.program_id(0) % n_blocks, n_images, N)
    i, known = capsules_of(chunk, n_in, KI)
    inside = there[:, None] & known[None, :]
    at = (b * n_in)[:, None] + i[None, :]
    size = n_in.to(tl.int64) * n_images
    x = load_poses(u, b, there, chunk, n_in, D, KI, DP)
    # The place of no upper capsule has logit 0.
    top = tl.full((N, KI), 0.0 if LEAKY else float("-inf"), kind)
    total = tl.full((N, KI), 1.0 if LEAKY else 0.0, kind)
    mean = tl.zeros((N, KI), kind)
    for j in range(J):
        place, stored = places_of_matrices(j, chunk, n_in, D, J, E, KI, DP, EP)
        matrices = tl.load(weight + place, mask=stored, other=0.0)
        v = load_states(outputs, b, there, j, J, E, EP)
        logit = agreements(x, v, matrices, N, KI, DP, PRECISION)
        if prior is not None:
            logit += tl.load(prior + i * J + j, mask=known, other=0.0)[None, :]
        tl.store(logits + j * size + at, logit, mask=inside)
        highest = tl.maximum(top, logit)
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp(top - shift)
        share = tl.exp(logit - shift)
        total = total * shrink + share
        if ds is not None:
            g = load_states(ds, b, there, j, J, E, EP)
            dc = agreements(x, g, matrices, N, KI, DP, PRECISION)
            if d_coupling is not None:
                dc += tl.load(d_coupling + at * J + j, mask=inside, other=0.0)
            tl.store(logits + (J + j) * size + at, dc, mask=inside)
            mean = mean * shrink + share * dc
        top = highest
    tl.store(softmax + at, tl.where(top == float("-inf"), 0.0, top), mask=inside)
    tl.store(softmax + size + at, over(tl.full(total.shape, 1.0, kind), total), mask=inside)
    if ds is not None:
        tl.store(softmax + 2 * size + at, over(mean, total), mask=inside)


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
    b, there = images_of(tl.program_id(0), n_images, N)
    size = n_in.to(tl.int64) * n_images
    total = tl.zeros((N, EP), kind)
    for chunk in range(part * per_part, tl.minimum(tl.cdiv(n_in, KI), (part + 1) * per_part)):
        x = load_poses(u, b, there, chunk, n_in, D, KI, DP)
        place, stored = places_of_matrices(j, chunk, n_in, D, J, E, KI, DP, EP)
        matrices = tl.load(weight + place, mask=stored, other=0.0)
        if logits is not None:
            i, known = capsules_of(chunk, n_in, KI)
            inside = there[:, None] & known[None, :]
            at = (b * n_in)[:, None] + i[None, :]
            shift = tl.load(softmax + at, mask=inside, other=0.0)
            scale = tl.load(softmax + size + at, mask=inside, other=0.0)
            c = tl.exp(tl.load(logits + j * size + at, mask=inside, other=0.0) - shift) * scale
            if coupling is not None:
                tl.store(coupling + at * J + j, c, mask=inside)
            if BACKWARD:
                dc = tl.load(logits + (J + j) * size + at, mask=inside, other=0.0)
                db = c * (dc - tl.load(softmax + 2 * size + at, mask=inside, other=0.0))
                tl.store(logits + j * size + at, c, mask=inside)
                tl.store(logits + (J + j) * size + at, db, mask=inside)
                c = db
            total = product(spread(c, N, KI, DP) * x.to(kind), matrices, total, PRECISION)
        else:
            total = product(x, matrices, total, PRECISION)
    if logits is None:
        total = equal_share(total, J, LEAKY)
    e = tl.arange(0, EP)
    to = parts + (((part.to(tl.int64) * n_images + b) * J + j) * E)[:, None] + e[None, :]
    tl.store(to, total, mask=there[:, None] & (e < E)[None, :])


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
    b, there = images_of(tl.program_id(0) % n_blocks, n_images, N)
    i, known = capsules_of(chunk, n_in, KI)
    inside = there[:, None] & known[None, :]
    at = (b * n_in)[:, None] + i[None, :]
    size = n_in.to(tl.int64) * n_images
    step = tl.full((), J * E, tl.int64) * n_images
    total = tl.zeros((N, KI * DP), kind)
    zero = tl.zeros((N, KI * DP), kind)
    for j in range(J):
        place, stored = places_of_matrices(j, chunk, n_in, D, J, E, KI, DP, EP)
        turned = tl.trans(tl.load(weight + place, mask=stored, other=0.0))
        for t in tl.static_range(FIRST, N_ITERS):
            g = load_states(ds + t * step, b, there, j, J, E, EP)
            if t < COUPLED:
                total = product(equal_share(g, J, LEAKY), turned, total, PRECISION)
            else:
                here = couplings + ((t - COUPLED) * 2 * J + j) * size + at
                c = tl.load(here, mask=inside, other=0.0)
                total += spread(c, N, KI, DP) * product(g, turned, zero, PRECISION)
                if FULL and t > 0:
                    v = load_states(outputs + t * step, b, there, j, J, E, EP)
                    db = tl.load(here + J * size, mask=inside, other=0.0)
                    total += spread(db, N, KI, DP) * product(v, turned, zero, PRECISION)
    i, d, known = elements_of(chunk, n_in, D, KI, DP)
    to = du + (b * n_in * D)[:, None] + (i * D + d)[None, :]
    tl.store(to, total.to(du.dtype.element_ty), mask=there[:, None] & known[None, :])


@triton.jit(do_not_specialize=["n_images", "per_part"])
def weight_gradient_pass(
    u,
    outputs,
    ds,
    couplings,
    d_weight,
    d_prior,
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

    t as in :func:`pose_gradient_pass`; ``d_prior`` may be None. A program has a chunk of lower capsules.
    """
    kind: tl.constexpr = ds.dtype.element_ty
    chunk, j, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, known = capsules_of(chunk, n_in, KI)
    size = n_in.to(tl.int64) * n_images
    step = tl.full((), J * E, tl.int64) * n_images
    total = tl.zeros((KI * DP, EP), kind)
    total_prior = tl.zeros((N, KI), kind)
    for block in range(part * per_part, tl.minimum(tl.cdiv(n_images, N), (part + 1) * per_part)):
        b, there = images_of(block, n_images, N)
        inside = there[:, None] & known[None, :]
        at = (b * n_in)[:, None] + i[None, :]
        x = load_poses(u, b, there, chunk, n_in, D, KI, DP)
        for t in tl.static_range(FIRST, N_ITERS):
            g = load_states(ds + t * step, b, there, j, J, E, EP)
            if t < COUPLED:
                total = product(tl.trans(x), equal_share(g, J, LEAKY), total, PRECISION)
            else:
                here = couplings + ((t - COUPLED) * 2 * J + j) * size + at
                c = spread(tl.load(here, mask=inside, other=0.0), N, KI, DP)
                total = product(tl.trans(c * x.to(kind)), g, total, PRECISION)
                if FULL and t > 0 or d_prior is not None:
                    db = tl.load(here + J * size, mask=inside, other=0.0)
                    if d_prior is not None:
                        total_prior += db
                    if FULL and t > 0:
                        v = load_states(outputs + t * step, b, there, j, J, E, EP)
                        total = product(tl.trans(spread(db, N, KI, DP) * x.to(kind)), v, total, PRECISION)
    place, stored = places_of_matrices(j, chunk, n_in, D, J, E, KI, DP, EP)
    to = d_weight + part.to(tl.int64) * n_in * (J * D * E) + place
    tl.store(to, total.to(d_weight.dtype.element_ty), mask=stored)
    if d_prior is not None:
        tl.store(d_prior + (part.to(tl.int64) * n_in + i) * J + j, tl.sum(total_prior, 0), mask=known)
    if chunk == 0:
        total_bias = tl.zeros((N, EP), kind)
        for bias_block in range(part * per_part, tl.minimum(tl.cdiv(n_images, N), (part + 1) * per_part)):
            image, real = images_of(bias_block, n_images, N)
            for t in tl.static_range(FIRST, N_ITERS):
                total_bias += load_states(ds + t * step, image, real, j, J, E, EP)
        e = tl.arange(0, EP)
        tl.store(d_bias + (part * J + j) * E + e, tl.sum(total_bias, 0), mask=e < E)


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

