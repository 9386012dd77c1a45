"""Kernels of dynamic routing. The algebra is in ``ops/fused/dynamic.py``; imported only where triton is.

A program holds a block of N images for all upper capsules: tiles [N, JP, EP], where JP and EP are the powers of two
that J and E = d_out fit in. It walks over lower capsules, whose votes it makes, uses and forgets. Sums over lower
capsules are cut into parts by the sizes alone and added in their order, without atomics: the same numbers every time.
All tensors are contiguous; offsets that grow with a tensor are of 64 bits.
"""

import triton
import triton.language as tl

from torchcaps.ops.fused.triton.kernels.exact import over, root


@triton.jit
def images_of(block, n_images, J: tl.constexpr, E: tl.constexpr, N: tl.constexpr, JP: tl.constexpr, EP: tl.constexpr):
    """Numbers of images [N], upper capsules [JP] and elements [EP], of 64 bits; which are there, [N] and [JP, EP]."""
    b = (block * N + tl.arange(0, N)).to(tl.int64)
    j = tl.arange(0, JP).to(tl.int64)
    e = tl.arange(0, EP).to(tl.int64)
    return b, j, e, b < n_images, (j < J)[:, None] & (e < E)[None, :]


@triton.jit
def make_votes(rows, matrices, there, upper, like, D: tl.constexpr, E: tl.constexpr):
    """û [N, JP, EP] of one lower capsule, from pointers to its poses [N] and to its matrices' first rows [JP, EP].

    By multiply and add, not tl.dot: d_in is often below 16, and float32 is to stay float32.
    """
    votes = like * 0
    for d in tl.range(0, D, loop_unroll_factor=4):
        x = tl.load(rows + d, mask=there, other=0.0).to(like.dtype)
        w = tl.load(matrices + d * E, mask=upper, other=0.0).to(like.dtype)
        votes += x[:, None, None] * w[None, :, :]
    return votes


@triton.jit
def couple(votes, v, prior, at, j, J: tl.constexpr, LEAKY: tl.constexpr):
    """Couplings c [N, JP] from the votes and the outputs so far (eq. 3); 0 beyond J."""
    b = tl.sum(votes * v, 2)
    if prior is not None:
        b += tl.load(prior + at, mask=j < J, other=0.0)[None, :]
    b = tl.where((j < J)[None, :], b, float("-inf"))
    top = tl.max(b, 1)
    if LEAKY:
        top = tl.maximum(top, 0.0)
    c = tl.exp(b - top[:, None])
    total = tl.sum(c, 1)
    if LEAKY:
        total += tl.exp(-top)
    return over(c, total[:, None])


@triton.jit(do_not_specialize=["n_images", "per_part"])
def forward_pass(
    u,
    weight,
    prior,
    outputs,
    parts,
    coupling,
    n_images,
    n_in,
    per_part,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    JP: tl.constexpr,
    EP: tl.constexpr,
    LEAKY: tl.constexpr,
):
    """One iteration: Σ_i c_ij û_ij over the lower capsules of a part, and c where it is asked for."""
    part = tl.program_id(1)
    b, j, e, there, upper = images_of(tl.program_id(0), n_images, J, E, N, JP, EP)
    state = b[:, None, None] * (J * E) + (j[:, None] * E + e[None, :])[None, :, :]  # [N, JP, EP]
    inside = there[:, None, None] & upper[None, :, :]
    v = tl.load(outputs + state, mask=inside, other=0.0)
    s = v * 0
    for i in range(part * per_part, tl.minimum(n_in, (part + 1) * per_part)):
        matrices = weight + ((i * J + j) * (D * E))[:, None] + e[None, :]
        votes = make_votes(u + (b * n_in + i) * D, matrices, there, upper, v, D, E)
        c = couple(votes, v, prior, i * J + j, j, J, LEAKY)
        if coupling is not None:
            place = coupling + ((b * n_in + i) * J)[:, None] + j[None, :]
            tl.store(place, c, mask=there[:, None] & (j < J)[None, :])
        s += c[:, :, None] * votes
    tl.store(parts + part.to(tl.int64) * n_images * (J * E) + state, s, mask=inside)


@triton.jit(do_not_specialize=["n_images", "per_part"])
def backward_pass(
    u,
    weight,
    prior,
    outputs,
    ds,
    d_coupling,
    parts,
    n_images,
    n_in,
    per_part,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    JP: tl.constexpr,
    EP: tl.constexpr,
    LEAKY: tl.constexpr,
):
    """One iteration backward: dV = Σ_i db_ij û_ij over the lower capsules of a part."""
    part = tl.program_id(1)
    b, j, e, there, upper = images_of(tl.program_id(0), n_images, J, E, N, JP, EP)
    state = b[:, None, None] * (J * E) + (j[:, None] * E + e[None, :])[None, :, :]
    inside = there[:, None, None] & upper[None, :, :]
    v = tl.load(outputs + state, mask=inside, other=0.0)
    g = tl.load(ds + state, mask=inside, other=0.0)
    dv = v * 0
    for i in range(part * per_part, tl.minimum(n_in, (part + 1) * per_part)):
        matrices = weight + ((i * J + j) * (D * E))[:, None] + e[None, :]
        votes = make_votes(u + (b * n_in + i) * D, matrices, there, upper, v, D, E)
        c = couple(votes, v, prior, i * J + j, j, J, LEAKY)
        dc = tl.sum(votes * g, 2)
        if d_coupling is not None:
            place = d_coupling + ((b * n_in + i) * J)[:, None] + j[None, :]
            dc += tl.load(place, mask=there[:, None] & (j < J)[None, :], other=0.0)
        db = c * (dc - tl.sum(c * dc, 1)[:, None])
        dv += db[:, :, None] * votes
    tl.store(parts + part.to(tl.int64) * n_images * (J * E) + state, dv, mask=inside)


@triton.jit(do_not_specialize=["n_images"])
def final_pass(
    u,
    weight,
    prior,
    outputs,
    ds,
    d_coupling,
    du,
    d_weight,
    d_prior,
    n_images,
    n_in,
    D: tl.constexpr,
    J: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    JP: tl.constexpr,
    EP: tl.constexpr,
    N_ITERS: tl.constexpr,
    FULL: tl.constexpr,
    LEAKY: tl.constexpr,
):
    """du, dW and db⁰ of one lower capsule, from V and ds of all iterations; ``d_prior`` may be None."""
    i = tl.program_id(0).to(tl.int64)
    step = tl.full((), J * E, tl.int64) * n_images
    total_prior = tl.zeros((JP,), ds.dtype.element_ty)
    for block in range(tl.cdiv(n_images, N)):
        b, j, e, there, upper = images_of(block, n_images, J, E, N, JP, EP)
        state = b[:, None, None] * (J * E) + (j[:, None] * E + e[None, :])[None, :, :]
        inside = there[:, None, None] & upper[None, :, :]
        to_matrices = ((i * J + j) * (D * E))[:, None] + e[None, :]  # [JP, EP]
        to_rows = (b * n_in + i) * D  # [N]
        d_votes = tl.zeros((N, JP, EP), ds.dtype.element_ty)
        votes = make_votes(u + to_rows, weight + to_matrices, there, upper, d_votes, D, E)
        for t in range(0 if FULL else N_ITERS - 1, N_ITERS):
            here = state + t * step
            v = tl.load(outputs + here, mask=inside, other=0.0)
            g = tl.load(ds + here, mask=inside, other=0.0)
            c = couple(votes, v, prior, i * J + j, j, J, LEAKY)
            d_votes += c[:, :, None] * g
            if FULL or d_prior is not None:
                dc = tl.sum(votes * g, 2)
                if d_coupling is not None:
                    place = d_coupling + ((b * n_in + i) * J)[:, None] + j[None, :]
                    known = there[:, None] & (j < J)[None, :] & (t == N_ITERS - 1)
                    dc += tl.load(place, mask=known, other=0.0)
                db = c * (dc - tl.sum(c * dc, 1)[:, None])
                total_prior += tl.sum(db, 0)
                if FULL:
                    d_votes += db[:, :, None] * v
        for d in range(D):
            x = tl.load(u + to_rows + d, mask=there, other=0.0).to(d_votes.dtype)
            w = tl.load(weight + to_matrices + d * E, mask=upper, other=0.0).to(d_votes.dtype)
            tl.store(du + to_rows + d, tl.sum(tl.sum(d_votes * w[None, :, :], 2), 1), mask=there)
            # The matrices of a lower capsule are this program's alone: it may add to what it wrote.
            place = d_weight + to_matrices + d * E
            before = tl.load(place, mask=upper & (block > 0), other=0.0)
            tl.store(place, before + tl.sum(x[:, None, None] * d_votes, 0), mask=upper)
        tl.debug_barrier()  # what one thread wrote, another may read in the next block
    if d_prior is not None:
        j = tl.arange(0, JP)
        tl.store(d_prior + i * J + j, total_prior, mask=j < J)


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


INTERPRETED = not isinstance(forward_pass, triton.JITFunction)
