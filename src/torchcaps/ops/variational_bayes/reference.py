"""Variational-Bayes routing of votes in receptive fields, in plain PyTorch.

Source: De Sousa Ribeiro, Leontidis, Kollias 2020, and the authors' code.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.units import in_units, per_square_unit
from torchcaps.ops.votes import Fields


class Posterior(NamedTuple):
    """Hold what is known of each upper capsule: m and P ``[B, P, J, D]``, the rest ``[B, P, J]``.

    m is in units u, P in units u², where u is ``unit`` of :func:`route`; ``log_det`` is in plain units.
    """

    mean: Tensor
    scale: Tensor
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
    v, unit = in_units(votes, 2)
    unit = unit[:, :, 0]  # [B, P, J, D]
    r = torch.full_like(votes[..., 0], 1 / votes.shape[3])
    known = _update(v, r * a[..., None], unit)
    for _ in range(n_iters - 1):
        r = _share(v, known, fields)
        known = _update(v, r * a[..., None], unit)
    entropy = (votes.shape[4] * math.log(2 * math.pi * math.e) - known.log_det) / 2
    return known.mean * unit, beta_a - (known.log_pi.exp() * entropy + beta_u), r


def _update(v: Tensor, r: Tensor, unit: Tensor) -> Posterior:
    """Update what is known by R ``[B, P, N, J]``."""
    size = v.shape[4]
    mass = r.sum(dim=2)  # R_j
    kappa, nu = 1 + mass, size + 1 + mass
    mean = torch.einsum("bpnj,bpnjd->bpjd", r, v) / kappa[..., None]
    spread = torch.einsum("bpnj,bpnjd->bpjd", r, (v - mean[:, :, None]).square())
    scale = per_square_unit(1.0, unit) + spread + mean.square()
    log_pi = torch.digamma(1 + mass) - torch.digamma((1 + mass).sum(dim=2, keepdim=True))
    steps = torch.arange(size, dtype=v.dtype, device=v.device)
    log_det = torch.digamma((nu[..., None] - steps) / 2).sum(dim=-1) + size * math.log(2)
    return Posterior(mean, scale, kappa, nu, log_pi, log_det - (scale.log() + 2 * unit.log()).sum(dim=-1))


def _share(v: Tensor, known: Posterior, fields: Fields) -> Tensor:
    """Share each lower capsule among all upper ones that see it, of all types at all places: ``[B, P, N, J]``."""
    distance = ((v - known.mean[:, :, None]).square() / known.scale[:, :, None]).sum(dim=-1)  # [B, P, N, J]
    own = known.log_pi + (known.log_det - v.shape[4] / known.kappa) / 2  # [B, P, J]
    log_rho = own[:, :, None] - known.nu[:, :, None] * distance / 2
    return (log_rho - fields.logsumexp(log_rho.logsumexp(dim=-1, keepdim=True))).exp()
