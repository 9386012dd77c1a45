"""Variational-Bayes routing of 4×4 matrices by compiled moments of the votes, which are never stored."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.variational_bayes.digamma import digamma
from torchcaps.ops.variational_bayes.moments import Moments, Shares, moments

#: The numbers of a vote.
SIZE = 16


def route(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: tuple[int, int],
    n_iters: int,
    return_coupling: bool,
    *,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Route maps of matrices, by tensors of one dtype, float32 or float64.

    Returns:
        Means ``[B, P, J, D]``, logits of the activations ``[B, P, J]``, and responsibilities
        ``[B, H', W', T·K_h·K_w, J]``, or ``[0]`` unless asked for.
    """
    dtype, known, coupling = pose.dtype, None, pose
    for t in range(n_iters):
        shares = None if known is None else Shares(known.mean, known.precision, known.constant.to(dtype))
        wanted = return_coupling and t == n_iters - 1
        found, coupling = moments(pose, activation, weight, offset, stride, shares, wanted, backend=backend)
        known = _known(found)
    assert known is not None
    entropy = (SIZE * math.log(2 * math.pi * math.e) - known.log_det) / 2
    logit = beta_a - (known.log_pi.exp() * entropy + beta_u)
    return known.mean.transpose(2, 3), logit.to(dtype), coupling


class _Known(NamedTuple):
    """Hold what is known of each upper capsule: numbers of capsules ``[B, P, J]`` in float64, as they are few.

    The mean and the precision ν/P ``[B, P, D, J]``; E ln π, E ln|Λ|, and the logarithm of a share at the mean.
    """

    mean: Tensor
    precision: Tensor
    log_pi: Tensor
    log_det: Tensor
    constant: Tensor


def _known(found: Moments) -> _Known:
    """Update what is known. κ and α are the mass, ν = D + κ, and P = 1 + spread + m²."""
    scale, kappa = 1 + found.spread + found.mean.square(), found.mass.double()
    above = digamma(kappa + 1)
    log_pi = above - 1 / kappa - digamma(kappa.sum(dim=2, keepdim=True))
    log_det = _sum_of_digammas(kappa, above) - scale.log().sum(dim=2, dtype=torch.float64)
    precision = (SIZE + found.mass)[:, :, None] / scale
    return _Known(found.mean, precision, log_pi, log_det, log_pi + (log_det - SIZE / kappa) / 2)


def _sum_of_digammas(kappa: Tensor, above: Tensor) -> Tensor:
    """Compute Σ_d ψ((D + κ - d)/2) + D ln 2 over d = 0 … D - 1, from ψ(κ + 1).

    By ψ(x) + ψ(x + ½) = 2 ψ(2x) - 2 ln 2 it is 2 Σ_k ψ(κ + 1 + 2k) over k < D/2. By ψ(x + 1) = ψ(x) + 1/x each of these
    is ψ(κ + 1) and fractions. All are positive, so that nothing cancels.
    """
    steps = torch.arange(1, SIZE - 1, dtype=kappa.dtype, device=kappa.device)
    times = SIZE // 2 - torch.div(steps + 1, 2, rounding_mode="floor")  # of how many k the fraction is
    return SIZE * above + 2 * (times / (kappa[..., None] + steps)).sum(dim=-1)
