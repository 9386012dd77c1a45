"""Routing by a mixture of Gaussians with priors, so that no variance can vanish."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.checks import as_two, check_at_least, check_choice, check_flag, check_floating, check_shapes, check_sized
from torchcaps.ops.backends.dispatch import which_backend
from torchcaps.ops.em.checks import check_activation
from torchcaps.ops.precision import at_least_float32, computed_in, without_autocast
from torchcaps.ops.units import have_large_votes
from torchcaps.ops.variational_bayes import compiled
from torchcaps.ops.variational_bayes.reference import route
from torchcaps.ops.votes import Fields, matrix_votes
from torchcaps.types import Capsules

#: What may be asked for; "auto" takes what :func:`torchcaps.ops.which_backend` says.
BACKENDS = ("auto", "reference", "cpu", "triton")
#: Normalizes poses ``[B, J, n]`` or logits ``[B, J, n]``, such as ``torch.nn.BatchNorm1d(J, affine=False)``.
Norm = Callable[[Tensor], Tensor]


def variational_bayes_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    n_iters: int = 3,
    offset: Tensor | None = None,
    norm_pose: Norm | None = None,
    norm_logit: Norm | None = None,
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules, which vote V_ij = M_i W_ij, to J upper ones by variational Bayes.

    The votes are routed as :func:`variational_bayes_routing_from_votes` says. The authors' layers normalize the means
    and the logits of the activations over the batch; hand over ``norm_pose`` and ``norm_logit`` for that. Computed in
    float32 at least, whatever autocast is in force; the result has the common dtype of ``pose`` and ``weight``.

    Args:
        pose: M, matrices ``[B, I, rows, d]`` or vectors ``[B, I, d_in]``.
        activation: of the lower capsules, 0 … 1, ``[B, I]``. One of 0 does not count.
        weight: W, ``[I, J, d, columns]``, or ``[I, J, d_in, d_out]`` for vectors.
        beta_u: β_u, ``[J]``.
        beta_a: β_a, ``[J]``.
        n_iters: passes, at least 1; the paper uses 3.
        offset: added to the votes of each lower capsule, of the shape of one vote behind ``[I]``; None for nothing.
        norm_pose: what the means ``[B, J, D]`` go through at the end; None for nothing.
        norm_logit: what the logits ``[B, J, 1]`` of the activations go through; None for nothing.
        backend: "reference" stores the votes. "cpu" and "triton", for CUDA devices, do not; they are for 4×4
            matrices, without gradient of ``offset``, and for votes up to 1e12 in float32. "auto" takes "cpu" where
            it is available, elsewhere the reference; :func:`torchcaps.ops.which_backend` says which. Beyond 1e10
            "auto" takes the reference, too.
        return_coupling: fill the result's ``coupling`` with r of the last pass.

    Returns:
        pose ``[B, J, d_out]``, or ``[B, J, rows, columns]`` of matrices; activation ``[B, J]``, 0 … 1; and coupling
        ``[B, I, J]``, or None unless asked for: Σ_j r_ij = 1.

    Raises:
        ValueError: shapes that do not fit, numbers that are not floating point, activations that are no probabilities,
            ``n_iters`` below 1, an unknown ``backend``, or one that is not made for these.
        Unavailable: a named ``backend`` cannot be had here; a RuntimeError.

    Example:
        >>> import torch
        >>> pose, a, weight, beta = torch.rand(2, 6, 4, 4), torch.rand(2, 6), torch.rand(6, 3, 4, 4), torch.zeros(3)
        >>> norm = torch.nn.BatchNorm1d(3, affine=False)
        >>> variational_bayes_routing(pose, a, weight, beta, beta, norm_pose=norm).pose.shape
        torch.Size([2, 3, 4, 4])

    Source: De Sousa Ribeiro, Leontidis, Kollias 2020, Capsule Routing via Variational Bayes, AAAI; as in the authors'
    code.
    """
    matrices = getattr(pose, "ndim", 0) == 4
    sizes = check_shapes(
        pose=(pose, "B I rows d" if matrices else "B I d"),
        activation=(activation, "B I"),
        weight=(weight, "I J d columns"),
    )
    if offset is not None:
        vote = (sizes["rows"], sizes["columns"]) if matrices else (sizes["columns"],)
        check_sized("offset", offset, (sizes["I"], *vote), beside=("pose", pose))
    routed = conv_variational_bayes_routing(
        pose[:, :, None, None],
        activation[:, :, None, None],
        weight[:, None, None],
        beta_u,
        beta_a,
        n_iters=n_iters,
        offset=None if offset is None else offset[:, None, None],
        norm_pose=norm_pose,
        norm_logit=norm_logit,
        backend=backend,
        return_coupling=return_coupling,
    )
    coupling = None if routed.coupling is None else routed.coupling[:, 0, 0]
    return Capsules(routed.pose[:, :, 0, 0], routed.activation[:, :, 0, 0], coupling)


def conv_variational_bayes_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | tuple[int, int] = 1,
    n_iters: int = 3,
    offset: Tensor | None = None,
    norm_pose: Norm | None = None,
    norm_logit: Norm | None = None,
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route maps as :func:`variational_bayes_routing` does; an upper capsule at a place sees a receptive field.

    Upper capsules compete for a lower one wherever they stand: r_ij sums to one over all of them, of all types at all
    places, whose receptive fields it lies in. The sum in E ln π_j = ψ(α_j) - ψ(Σ_j α_j) is over the types of a place.

    Args:
        pose: ``[B, T, H, W, rows, d]``, or vectors ``[B, T, H, W, d_in]``.
        activation: 0 … 1, ``[B, T, H, W]``.
        weight: ``[T, K_h, K_w, J, d, columns]``, shared over places; for vectors ``[T, K_h, K_w, J, d_in, d_out]``.
        beta_u: β_u, ``[J]``.
        beta_a: β_a, ``[J]``.
        stride: places from one receptive field to the next, or (rows, columns).
        n_iters: passes, at least 1.
        offset: added to the votes, of the shape of one vote behind ``[T, K_h, K_w]``; None for nothing.
        norm_pose: what the means ``[B, J, H'·W'·D]`` go through at the end; None for nothing.
        norm_logit: what the logits ``[B, J, H'·W']`` of the activations go through; None for nothing.
        backend: "auto", "reference", "cpu" or "triton", see :func:`variational_bayes_routing`.
        return_coupling: fill the result's ``coupling`` with r of the last pass.

    Returns:
        pose ``[B, J, H', W', d_out]``, or matrices, with H' = (H − K_h) // stride + 1; activation ``[B, J, H', W']``;
        and coupling ``[B, H', W', T·K_h·K_w, J]``, or None unless asked for.

    Raises:
        ValueError: as :func:`variational_bayes_routing`; a kernel larger than the map.

    Example:
        >>> import torch
        >>> pose, activation = torch.rand(1, 2, 5, 5, 4, 4), torch.rand(1, 2, 5, 5)
        >>> weight, beta = torch.rand(2, 3, 3, 4, 4, 4), torch.zeros(4)
        >>> conv_variational_bayes_routing(pose, activation, weight, beta, beta, stride=2).pose.shape
        torch.Size([1, 4, 2, 2, 4, 4])

    Source: De Sousa Ribeiro, Leontidis, Kollias 2020, section 4, and the authors' code.
    """
    matrices = getattr(pose, "ndim", 0) == 6
    for name, tensor in (("pose", pose), ("activation", activation), ("weight", weight)):
        check_floating(name, tensor)
    sizes = check_shapes(
        pose=(pose, "B T H W rows d" if matrices else "B T H W d"),
        activation=(activation, "B T H W"),
        weight=(weight, "T K_h K_w J d columns"),
    )
    check_activation(activation)
    _check_choices(beta_u, beta_a, sizes["J"], n_iters, return_coupling, ("pose", pose))
    vote = (pose.shape[4], sizes["columns"]) if matrices else (sizes["columns"],)
    if offset is not None:
        check_sized("offset", offset, (*weight.shape[:3], *vote), beside=("pose", pose))
    every = (pose, activation, weight, beta_u, beta_a, *(() if offset is None else (offset,)))
    chosen = which_backend("variational_bayes", _asked(backend, vote, pose, weight, offset), *every)
    if backend == "auto" and have_large_votes(pose, weight):
        chosen = "reference"
    stride = as_two("stride", stride, 1)
    fields = Fields(pose.shape[1:4], weight.shape[1:3], stride)
    dtype = torch.promote_types(pose.dtype, weight.dtype)
    with without_autocast(pose):
        m, a, w = (at_least_float32(x.to(dtype)) for x in (pose, activation, weight))
        beta_u, beta_a = beta_u.to(m.dtype), beta_a.to(m.dtype)
        offset = None if offset is None else offset.to(m.dtype)
        if chosen != "reference":
            mean, logit, r = compiled.route(
                m, a, w, offset, beta_u, beta_a, stride, n_iters, return_coupling, backend=chosen
            )
        else:
            votes = matrix_votes(fields.gather(m if matrices else m.unsqueeze(-2)), w.flatten(0, 2))
            if offset is not None:
                votes = votes + offset.reshape(fields.n_children, 1, *votes.shape[-2:])
            mean, logit, r = route(votes.flatten(4), fields.gather(a), beta_u, beta_a, fields, n_iters)
            r = r.unflatten(1, fields.places)
    mean, logit = mean.movedim(2, 1).to(dtype), logit.movedim(2, 1).to(dtype)  # [B, J, P, D] and [B, J, P]
    if norm_pose is not None:
        mean = norm_pose(mean.flatten(2)).reshape(mean.shape)
    if norm_logit is not None:
        logit = norm_logit(logit)
    mean = mean.unflatten(2, fields.places).unflatten(-1, vote)
    coupling = r.to(dtype) if return_coupling else None
    return Capsules(mean, logit.sigmoid().unflatten(2, fields.places), coupling)


def variational_bayes_routing_from_votes(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    n_iters: int = 3,
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules to J upper ones by fitting a Gaussian with a prior to the votes for each.

    The priors are the authors': α0 = κ0 = 1, m0 = 0, Ψ0 = 1 in each of the D numbers, ν0 = D + 1. With R_ij = r_ij a_i
    and R_j = Σ_i R_ij, one pass has α_j = α0 + R_j, κ_j = κ0 + R_j, ν_j = ν0 + R_j, and

        m_j = Σ_i R_ij V_ij / κ_j,    P_j = Ψ0 + Σ_i R_ij (V_ij - m_j)² + κ0 m_j²,
        E ln π_j = ψ(α_j) - ψ(Σ_j α_j),    E ln|Λ_j| = Σ_d ψ((ν_j - d)/2) + D ln 2 - Σ_d ln P_jd,  d = 0 … D - 1,
        r_ij = softmax_j(E ln π_j + ½ E ln|Λ_j| - ½ (D/κ_j + ν_j Σ_d (V_ijd - m_jd)²/P_jd)),
        a_j = σ(β_a - (e^(E ln π_j) H_j + β_u)),    H_j = ½ D ln 2πe - ½ E ln|Λ_j|.

    P_j is the authors' Ψ0 + Σ_i R_ij (V_ij - μ_j)² + (κ0 R_j/κ_j) μ_j², without their division by R_j. Responsibilities
    are computed in log space, where the authors' code exponentiates and clamps. Their layers normalize m_j and the
    logit of a_j over the batch, which is not here: see :func:`variational_bayes_routing`. Votes beyond 2^20 are routed
    in units of the largest, so that no square overflows; beside them the prior counts 1e-15 at least. Computed in
    float32 at least, whatever autocast is in force; the result has the dtype of ``votes``.

    Args:
        votes: V, ``[B, I, J, D]``; matrices flattened.
        activation: of the lower capsules, 0 … 1, ``[B, I]``. One of 0 does not count.
        beta_u: β_u, ``[J]``.
        beta_a: β_a, ``[J]``.
        n_iters: passes, at least 1; the paper uses 3.
        return_coupling: fill the result's ``coupling`` with r of the last pass.

    Returns:
        pose ``[B, J, D]`` (the means m_j), activation ``[B, J]``, 0 … 1, and coupling ``[B, I, J]``, or None unless
        asked for: Σ_j r_ij = 1.

    Raises:
        ValueError: shapes that do not fit, numbers that are not floating point, activations that are no probabilities,
            or ``n_iters`` below 1.

    Example:
        >>> import torch
        >>> votes, a, beta = torch.rand(2, 6, 3, 16), torch.rand(2, 6), torch.zeros(3)
        >>> routed = variational_bayes_routing_from_votes(votes, a, beta, beta)
        >>> routed.pose.shape, routed.activation.shape
        (torch.Size([2, 3, 16]), torch.Size([2, 3]))

    Source: De Sousa Ribeiro, Leontidis, Kollias 2020, Capsule Routing via Variational Bayes, AAAI; as in the authors'
    code.
    """
    check_floating("votes", votes)
    check_floating("activation", activation)
    sizes = check_shapes(votes=(votes, "B I J D"), activation=(activation, "B I"))
    check_activation(activation)
    _check_choices(beta_u, beta_a, sizes["J"], n_iters, return_coupling, ("votes", votes))
    dtype = computed_in(votes)
    fields = Fields((sizes["I"], 1, 1), (1, 1), (1, 1))
    with without_autocast(votes):
        v, a, u, b = (x.to(dtype) for x in (votes, activation, beta_u, beta_a))
        mean, logit, r = route(v[:, None], a[:, None], u, b, fields, n_iters)
    wanted = votes.dtype
    coupling = r[:, 0].to(wanted) if return_coupling else None
    return Capsules(mean[:, 0].to(wanted), logit[:, 0].sigmoid().to(wanted), coupling)


def _asked(backend: str, vote: tuple[int, ...], pose: Tensor, weight: Tensor, offset: Tensor | None) -> str:
    """Return what to ask for: the reference instead of "auto" where compiled code is not made for a call."""
    check_choice("backend", backend, BACKENDS)
    if backend == "reference":
        return backend
    if not vote == tuple(weight.shape[-2:]) == tuple(pose.shape[-2:]) == (4, 4):
        why = f"wants 4×4 matrices, got poses {list(pose.shape)} and weight {list(weight.shape)}"
    elif offset is not None and offset.requires_grad and torch.is_grad_enabled():
        why = "gives no gradient of offset"
    else:
        return backend
    if backend == "auto":
        return "reference"
    raise ValueError(f"backend='{backend}' {why}")


def _check_choices(
    beta_u: Tensor, beta_a: Tensor, n_out: int, n_iters: int, return_coupling: bool, beside: tuple[str, Tensor]
) -> None:
    """Refuse costs that are not one for each upper capsule, passes below 1, and a flag that is none."""
    check_sized("beta_u", beta_u, (n_out,), beside=beside)
    check_sized("beta_a", beta_a, (n_out,), beside=beside)
    check_at_least("n_iters", n_iters, 1)
    check_flag("return_coupling", return_coupling)
