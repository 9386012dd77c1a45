"""EM routing as the paper prints it, in plain PyTorch: what every kernel is held to.

Source: Hinton, Sabour, Frosst 2018, procedure 1.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from torchcaps.ops.em.settings import EMSettings
from torchcaps.ops.log_sigmoid import log_sigmoid
from torchcaps.ops.votes import Fields, matrix_votes
from torchcaps.types import Capsules


def route_map(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    fields: Fields,
    n_iters: int,
    given: EMSettings,
    backprop: str,
) -> Capsules:
    """Route a map, by checked arguments of :func:`torchcaps.ops.conv_em_routing` of one dtype; the couplings too."""
    matrices = pose.dim() == 6
    poses = fields.gather(pose if matrices else pose.unsqueeze(-2))
    votes = matrix_votes(poses, weight.flatten(0, 2))  # [B, P, N, J, ., .]
    if offset is not None:
        votes = votes + offset.to(votes).reshape(fields.n_children, 1, *votes.shape[-2:])
    betas = beta_u.to(votes.dtype), beta_a.to(votes.dtype)
    mu, a, coupling = route(votes.flatten(-2), fields.gather(activation), *betas, fields, n_iters, given, backprop)
    return Capsules(
        mu.unflatten(1, fields.places).permute(0, 3, 1, 2, 4).unflatten(-1, (4, 4) if matrices else mu.shape[-1:]),
        a.unflatten(1, fields.places).permute(0, 3, 1, 2),
        coupling.unflatten(1, fields.places),
    )


def route(
    votes: Tensor,
    a: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    fields: Fields,
    n_iters: int,
    given: EMSettings,
    backprop: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run procedure 1 of the paper. Votes ``[B, P, N, J, D]`` are of the N children in each of P receptive fields."""
    ratio = len(beta_u) * fields.n_places / max(1, fields.n_lower) if given.normalize else 1.0
    one = votes.new_ones(votes.shape[1:3])  # [P, N]
    n_parents = len(beta_u) * (fields.seen_by(votes.device).to(one.dtype) if given.start == "parents" else one)
    r = (1 / n_parents)[..., None].expand(votes.shape[:4])  # R_ij, [B, P, N, J]
    mu = logit = votes.new_zeros(())
    for t in range(n_iters):
        last = t == n_iters - 1
        if last and backprop == "last":  # no_grad does not hold back what forward-mode derivatives carry along
            r, mu = r.detach(), mu.detach()
        # Not where it changes nothing: torch.export cannot load programs with a region of it within one of autocast.
        with torch.no_grad() if backprop == "last" and not last and torch.is_grad_enabled() else nullcontext():
            mu, variance, logit = _m_step(votes, r * a[..., None], mu, beta_u, beta_a, given, given.lambda_at(t), ratio)
            if not last:
                r = _e_step(votes, mu, variance, logit, fields, given)
    return mu, logit.sigmoid(), r


def _m_step(
    votes: Tensor,
    r: Tensor,
    mu: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    given: EMSettings,
    inverse_temperature: float,
    ratio: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a Gaussian to each parent's votes: μ and σ² ``[B, P, J, D]``, logit of the activation ``[B, P, J]``."""
    mass = r.sum(dim=2) + given.mass_floor  # [B, P, J]
    mean = torch.einsum("bpnj,bpnjh->bpjh", r, votes) / mass[..., None]
    mu = (1 - given.damping) * mean + given.damping * mu
    variance = torch.einsum("bpnj,bpnjh->bpjh", r, (votes - mu[:, :, None]).square()) / mass[..., None]
    variance = variance + given.variance_floor
    log_sigma = given.cost_scale * variance.log().sum(dim=-1) / 2  # Σ_h log σ_h
    cost = (given.beta_u_scale * votes.shape[-1] * beta_u + log_sigma) * ratio * mass
    return mu, variance, inverse_temperature * (given.beta_a_scale * beta_a - cost)


def _e_step(votes: Tensor, mu: Tensor, variance: Tensor, logit: Tensor, fields: Fields, given: EMSettings) -> Tensor:
    """Share each child among the parents that compete for it: R_ij ``[B, P, N, J]``."""
    distance = ((votes - mu[:, :, None]).square() / variance[:, :, None]).sum(dim=-1)  # [B, P, N, J]
    log_p = -(distance + (2 * math.pi * variance).log().sum(dim=-1)[:, :, None]) / 2
    log_ap = log_sigmoid(logit)[:, :, None] + log_p
    if given.compete == "positions":
        return (log_ap - fields.logsumexp(log_ap)).exp()
    return (log_ap - fields.logsumexp(log_ap.logsumexp(dim=-1, keepdim=True))).exp()
