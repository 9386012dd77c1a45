"""EM routing as others write it: receptive fields unfolded, votes stored, autograd through every iteration.

No slower than need be. Votes V and their squares lie side by side, X = [V, V²], so that means and variances are one
batched matrix product, R X, and the distances of an E-step another,
Σ_h (V_h − μ_h)² / σ²_h = X [−2μ/σ², 1/σ²] + Σ_h μ_h² / σ²_h. (Variances as differences lose digits that the
library keeps; the check before the clock is started says how many.)
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import as_two
from torchcaps.ops import Capsules, EMSettings
from torchcaps.ops.em.settings import em_settings


def stored_votes(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | tuple[int, int] = 1,
    n_iters: int = 3,
    settings: str | EMSettings = "released",
    dense: bool = False,
    offset: Tensor | None = None,
    **changes: Any,
) -> Capsules:
    """As :func:`torchcaps.ops.conv_em_routing`; ``dense`` says whether a layer is one of class capsules."""
    given = em_settings(settings, dense=dense, **changes)
    (n_images, types, height, width), (rows, columns, n_out) = pose.shape[:4], weight.shape[1:4]
    kernel, (down, right) = rows * columns, as_two("stride", stride, 1)
    child = torch.arange(height * width, device=pose.device).view(height, width)
    child = child.unfold(0, rows, down).unfold(1, columns, right)  # [H', W', K_h, K_w]
    places, child = child.shape[:2], child.flatten()
    n_places, n_children = places[0] * places[1], types * kernel
    seen_by = child.bincount(minlength=height * width)[child].view(n_places, 1, kernel)

    fields = pose.unfold(2, rows, down).unfold(3, columns, right)  # [B, T, H', W', 4, 4, K_h, K_w]
    fields = fields.permute(1, 6, 7, 0, 2, 3, 4, 5).reshape(n_children, -1, 4)
    votes = torch.bmm(fields, weight.flatten(0, 2).transpose(1, 2).reshape(n_children, 4, n_out * 4))
    votes = votes.view(n_children, n_images, n_places, 4, n_out, 4).permute(1, 2, 4, 0, 3, 5).flatten(4)
    if offset is not None:
        votes = votes + offset.reshape(n_children, 16)
    x = torch.cat((votes, votes.square()), dim=4)  # [B, P, J, N, 32]
    a = activation.unfold(2, rows, down).unfold(3, columns, right).permute(0, 2, 3, 1, 4, 5)
    a = a.reshape(n_images, n_places, 1, n_children)

    ratio = n_out * n_places / (types * height * width) if given.normalize else 1.0
    parents = seen_by if given.start == "parents" else torch.ones_like(seen_by)
    start = 1 / (n_out * parents.to(a)).expand(n_places, types, kernel).reshape(n_places, 1, n_children)
    r = (a * start).expand(-1, -1, n_out, -1)  # R a, [B, P, J, N]
    mu = logit = torch.zeros((), device=pose.device)
    for t in range(n_iters):
        mass = r.sum(dim=3) + given.mass_floor  # [B, P, J]
        sums = (r.unsqueeze(3) @ x).squeeze(3) / mass.unsqueeze(3)  # [B, P, J, 32]
        mean, second = sums.chunk(2, dim=3)
        mu = (1 - given.damping) * mean + given.damping * mu
        share = (r.sum(dim=3) / mass).unsqueeze(3)
        variance = (second - 2 * mu * mean + share * mu.square()).clamp_min(0) + given.variance_floor
        log_variance = variance.log().sum(dim=3)
        cost = (16 * given.beta_u_scale * beta_u + given.cost_scale * log_variance / 2) * ratio * mass
        logit = given.lambda_at(t) * (given.beta_a_scale * beta_a - cost)
        if t == n_iters - 1:
            break
        inverse = 1 / variance
        factors = torch.cat((mu * inverse, -inverse / 2), dim=3).unsqueeze(4)
        own = F.logsigmoid(logit) - (log_variance + 16 * math.log(2 * math.pi) + (mu.square() * inverse).sum(3)) / 2
        log_ap = (x @ factors).squeeze(4) + own.unsqueeze(3)  # [B, P, J, N]
        rivals = log_ap.logsumexp(dim=2, keepdim=True) if given.compete == "all" else log_ap
        r = a * (log_ap - _over_places(rivals, child, types, height * width)).exp()
    return Capsules(
        mu.unflatten(1, places).permute(0, 3, 1, 2, 4).unflatten(4, (4, 4)),
        logit.sigmoid().unflatten(1, places).permute(0, 3, 1, 2),
    )


def _over_places(log_ap: Tensor, child: Tensor, types: int, n_lower: int) -> Tensor:
    """Log of the sum of exponentials over the places that see a child; ``[B, P, J, N]`` or with J = 1."""
    n_images, n_places, n_out, n_children = log_ap.shape
    if n_places == 1:
        return log_ap
    terms = log_ap.view(n_images, n_places, n_out * types, -1).transpose(1, 2).flatten(2)  # [B, J·T, P·K]
    none = terms.new_full((*terms.shape[:2], n_lower), -math.inf)
    highest = none.scatter_reduce(2, child.expand_as(terms), terms.detach(), "amax")[:, :, child]
    total = torch.zeros_like(none).index_add(2, child, (terms - highest).exp())[:, :, child]
    log_total = (highest + total.log()).unflatten(2, (n_places, -1)).transpose(1, 2)
    return log_total.reshape(n_images, n_places, n_out, n_children)
