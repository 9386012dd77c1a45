"""Variational-Bayes routing of votes in receptive fields, in plain PyTorch.

Source: De Sousa Ribeiro, Leontidis, Kollias 2020, and the authors' code.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.units import in_units, per_square_unit
from torchcaps.ops.variational_bayes.digamma import digamma
from torchcaps.ops.votes import Fields


class Posterior(NamedTuple):
    """Hold what is known of each upper capsule.

    Attributes:
        mean: m ``[B, P, J, D]``, in the units of :func:`route`.
        scale: P ``[B, P, J, D]``, in square units.
        deviation: (V - m)² ``[B, P, J, N, D]``, in square units.
        kappa: κ ``[B, P, J]``.
        nu: ν ``[B, P, J]``.
        log_pi: E ln π ``[B, P, J]``.
        log_det: E ln|Λ| ``[B, P, J]``, in plain units.
    """

    mean: Tensor
    scale: Tensor
    deviation: Tensor
    kappa: Tensor
    nu: Tensor
    log_pi: Tensor
    log_det: Tensor


def route(
    votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor, fields: Fields, n_iters: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Route votes ``[B, P, N, J, D]`` of the N lower capsules in each of P receptive fields.

    Returns:
        Means ``[B, P, J, D]``, logits of the activations ``[B, P, J]``, and responsibilities ``[B, P, N, J]``.
    """
    v, unit = in_units(votes.transpose(2, 3).contiguous(), 3)  # with N and D side by side sums are products of matrices
    unit, a = unit[:, :, :, 0], a[:, :, None]  # [B, P, J, D] and [B, P, 1, N]
    r = torch.full_like(v[..., 0], 1 / max(1, v.shape[2]))
    known = _update(v, r * a, unit)
    for _ in range(n_iters - 1):
        r = _share(known, fields)
        known = _update(v, r * a, unit)
    entropy = (v.shape[4] * math.log(2 * math.pi * math.e) - known.log_det) / 2
    return known.mean * unit, beta_a - (known.log_pi.exp() * entropy + beta_u), r.transpose(2, 3)


def _update(v: Tensor, r: Tensor, unit: Tensor) -> Posterior:
    """Update what is known by R ``[B, P, J, N]``."""
    size = v.shape[4]
    mass = r.sum(dim=3)  # R_j
    kappa, nu = 1 + mass, size + 1 + mass
    mean = (r.unsqueeze(3) @ v).squeeze(3) / kappa[..., None]
    deviation = (v - mean.unsqueeze(3)).square()
    spread = (r.unsqueeze(3) @ deviation).squeeze(3)
    scale = per_square_unit(1.0, unit) + spread + mean.square()
    log_pi = digamma(1 + mass) - digamma((1 + mass).sum(dim=2, keepdim=True))
    steps = torch.arange(size, dtype=v.dtype, device=v.device)
    log_det = digamma((nu[..., None] - steps) / 2).sum(dim=-1) + size * math.log(2)
    log_det = log_det - (scale.log() + 2 * unit.log()).sum(dim=-1)
    return Posterior(mean, scale, deviation, kappa, nu, log_pi, log_det)


def _share(known: Posterior, fields: Fields) -> Tensor:
    """Share each lower capsule among all upper ones that see it, of all types at all places: ``[B, P, J, N]``."""
    distance = (known.deviation @ (1 / known.scale).unsqueeze(4)).squeeze(4)
    own = known.log_pi + (known.log_det - known.mean.shape[3] / known.kappa) / 2  # [B, P, J]
    log_rho = own[..., None] - known.nu[..., None] * distance / 2
    total = log_rho.logsumexp(dim=2).unsqueeze(3)  # [B, P, N, 1]
    return (log_rho - fields.logsumexp(total).transpose(2, 3)).exp()
