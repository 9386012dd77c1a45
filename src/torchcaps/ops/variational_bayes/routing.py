"""Routing by a mixture of Gaussians with priors, so that no variance can vanish."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_flag, check_floating, check_shapes
from torchcaps.ops.precision import computed_in, without_autocast
from torchcaps.types import Capsules


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
    are computed in log space, where the authors' code exponentiates and clamps. The batch normalizations that their
    layers have, of m_j and of the logit of a_j, are not here. Computed in float32 at least, whatever autocast is in
    force; the result has the dtype of ``votes``.

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
        ValueError: shapes that do not fit, numbers that are not floating point, or ``n_iters`` below 1.

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
    check_shapes(votes=(votes, "B I J D"), activation=(activation, "B I"), beta_u=(beta_u, "J"), beta_a=(beta_a, "J"))
    check_at_least("n_iters", n_iters, 1)
    check_flag("return_coupling", return_coupling)
    dtype = computed_in(votes)
    with without_autocast(votes):
        v, a = votes.to(dtype), activation.to(dtype)
        r = torch.full_like(v[..., 0], 1 / v.shape[2])
        mean, kappa, nu, scale, log_pi, log_det = _update(v, r * a[..., None])
        for _ in range(n_iters - 1):
            distance = ((v - mean[:, None]).square() / scale[:, None]).sum(dim=-1)  # [B, I, J]
            own = log_pi + (log_det - v.shape[3] / kappa) / 2  # [B, J]
            r = (own[:, None] - nu[:, None] * distance / 2).softmax(dim=2)
            mean, kappa, nu, scale, log_pi, log_det = _update(v, r * a[..., None])
        entropy = (v.shape[3] * math.log(2 * math.pi * math.e) - log_det) / 2
        upper = (beta_a.to(dtype) - (log_pi.exp() * entropy + beta_u.to(dtype))).sigmoid()
    wanted = votes.dtype
    return Capsules(mean.to(wanted), upper.to(wanted), r.to(wanted) if return_coupling else None)


def _update(votes: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Update the posteriors by R ``[B, I, J]``: m, κ, ν, P, E ln π and E ln|Λ|; ``[B, J]``, m and P ``[B, J, D]``."""
    size = votes.shape[3]
    mass = r.sum(dim=1)  # R_j
    kappa, nu = 1 + mass, size + 1 + mass
    mean = torch.einsum("bij,bijd->bjd", r, votes) / kappa[..., None]
    spread = torch.einsum("bij,bijd->bjd", r, (votes - mean[:, None]).square())
    scale = 1 + spread + mean.square()
    log_pi = torch.digamma(1 + mass) - torch.digamma((1 + mass).sum(dim=1, keepdim=True))
    steps = torch.arange(size, dtype=votes.dtype, device=votes.device)
    log_det = torch.digamma((nu[..., None] - steps) / 2).sum(dim=-1) + size * math.log(2) - scale.log().sum(dim=-1)
    return mean, kappa, nu, scale, log_pi, log_det
