"""Routing by how well a vote agrees with all votes for the same capsule, without iterations."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from torchcaps.checks import check_choice, check_flag, check_floating, check_shapes
from torchcaps.ops.agreement import Rule, by_agreement
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.squash import exponential_squash_with_length
from torchcaps.ops.units import in_units
from torchcaps.ops.votes import dense_votes
from torchcaps.types import Capsules

SCALES = ("upper", "lower")


def self_attention_routing(
    u: Tensor,
    weight: Tensor,
    *,
    prior_bias: Tensor | None = None,
    scale: str = "upper",
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules to J upper ones by self-attention among the votes.

    With votes û_ij = u_i W_ij,

        b_ij = Σ_k û_ij · û_kj / √d,    c_ij = softmax_j(b_ij) + B_ij,    v_j = squash(Σ_i c_ij û_ij),

    where squash is :func:`exponential_squash`. The paper sums the columns of the Gram matrix of the votes for each j.
    That matrix, I² numbers for each j, is never made: b_ij = û_ij · S_j / √d with S_j = Σ_k û_kj. So this is one update
    of dynamic routing whose agreement is with the plain sum of the votes. Votes beyond 2^20 are routed in units of the
    largest of an image, so that no product overflows. Computed in float32 at least, whatever autocast is in force; the
    result has the common dtype of ``u`` and ``weight``.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: transformation matrices, ``[I, J, d_in, d_out]``.
        prior_bias: B, ``[I, J]``, added to the couplings *after* the softmax; None for 0.
        scale: d under the root: "upper" for d_out, as in the authors' code, or "lower" for d_in, as in the paper.
        return_coupling: fill the result's ``coupling`` with c, B included.

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]`` (the pose's length, 0 … 1), and coupling ``[B, I, J]``, or None
        unless asked for: Σ_j (c_ij − B_ij) = 1.

    Raises:
        ValueError: shapes that do not fit, numbers that are not floating point, or an unknown ``scale``.

    Example:
        >>> import torch
        >>> u, weight = torch.rand(2, 16, 8), torch.rand(16, 10, 8, 16)
        >>> routed = self_attention_routing(u, weight, return_coupling=True)
        >>> routed.pose.shape, routed.coupling.shape
        (torch.Size([2, 10, 16]), torch.Size([2, 16, 10]))

    Source: Mazzia, Salvetti, Chiaberge 2021, Efficient-CapsNet, Scientific Reports 11, arXiv 2101.12491.
    """
    check_floating("u", u)
    check_floating("weight", weight)
    sizes = check_shapes(u=(u, "B I d_in"), weight=(weight, "I J d_in d_out"))
    if prior_bias is not None:
        check_shapes(weight=(weight, "I J d_in d_out"), prior_bias=(prior_bias, "I J"))
    check_choice("scale", scale, SCALES)
    check_flag("return_coupling", return_coupling)
    dtype = torch.promote_types(u.dtype, weight.dtype)
    d = sizes["d_out"] if scale == "upper" else sizes["d_in"]
    with without_autocast(u):
        u, weight = at_least_float32(u.to(dtype)), at_least_float32(weight.to(dtype))
        prior = None if prior_bias is None else prior_bias.to(u.dtype)
        factor = 1 / math.sqrt(d)
        rule = Rule(over_lower=False, constant=factor, plain=functools.partial(_by_attention, scale=factor))
        s, c = by_agreement(u, weight, prior, rule)
        pose, activation = exponential_squash_with_length(s)
    return Capsules(pose.to(dtype), activation.to(dtype), c.to(dtype) if return_coupling else None)


def _by_attention(u: Tensor, weight: Tensor, prior: Tensor | None, *, scale: float) -> tuple[Tensor, Tensor]:
    """Weigh votes by self-attention in plain PyTorch; returns sums ``[B, J, d_out]`` and couplings ``[B, I, J]``."""
    votes, unit = in_units(dense_votes(u, weight), (1, 2, 3))  # [B, I, J, d_out]
    b = (votes * votes.sum(dim=1, keepdim=True)).sum(dim=3) * scale  # quicker than many small products
    c = _softmax(b, unit[..., 0])
    c = c if prior is None else c + prior
    return (c.unsqueeze(3) * votes).sum(dim=1) * unit[:, 0], c


def _softmax(b: Tensor, unit: Tensor) -> Tensor:
    """Take the softmax over the last axis of logits that are in square units."""
    squared = (unit * unit).clamp_max(torch.finfo(unit.dtype).max)
    # Of the difference to the largest, whose product with the unit may be −∞ but is never +∞ or NaN.
    highest = b.detach().amax(dim=-1, keepdim=True) if b.shape[-1] else 0
    return ((b - highest) * squared).softmax(dim=-1)
