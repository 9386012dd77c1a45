"""Routing by how central a vote is among all votes for the same capsule, without iterations."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_flag, check_floating, check_shapes
from torchcaps.ops.agreement import Rule, by_agreement
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.squash import squash_with_length
from torchcaps.ops.units import in_units
from torchcaps.types import Capsules

_SHORTEST = 1e-8  # the authors' least square of a length
_LEAST = 1e-30  # of it in units of large votes, so that nothing is divided by 0


def degree_routing(u: Tensor, weight: Tensor, *, return_coupling: bool = False) -> Capsules:
    """Route I lower capsules to J upper ones by the degree of each vote in the graph of all votes for a capsule.

    With votes û_ij = u_i W_ij and, for each j, edges A_ik = û_ij · û_kj / max(‖û_ij‖², 1e-8),

        c_ij = softmax_i(Σ_k A_ik),    v_j = squash(Σ_i c_ij û_ij).

    The softmax runs over *lower* capsules: upper ones do not compete. A is as the authors' code has it. It divides by
    the norm of one vote twice, so that it is no cosine. As it is summed over k it is never made. SOVNET's votes are
    group convolutions; here they are matrices. Computed in float32 at least, whatever autocast is in force; the result
    has the common dtype of ``u`` and ``weight``.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: transformation matrices, ``[I, J, d_in, d_out]``.
        return_coupling: fill the result's ``coupling`` with c.

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]`` (the pose's length, 0 … 1), and coupling ``[B, I, J]``, or None
        unless asked for: Σ_i c_ij = 1.

    Raises:
        ValueError: shapes that do not fit, or numbers that are not floating point.

    Example:
        >>> import torch
        >>> routed = degree_routing(torch.rand(2, 6, 8), torch.rand(6, 3, 8, 16), return_coupling=True)
        >>> routed.pose.shape, bool((routed.coupling.sum(dim=1) - 1).abs().max() < 1e-5)
        (torch.Size([2, 3, 16]), True)

    Source: Venkataraman, Balasubramanian, Sarma 2020, Building Deep Equivariant Capsule Networks, ICLR, arXiv
    1908.01300, and its code.
    """
    check_floating("u", u)
    check_floating("weight", weight)
    check_shapes(u=(u, "B I d_in"), weight=(weight, "I J d_in d_out"))
    check_flag("return_coupling", return_coupling)
    dtype = torch.promote_types(u.dtype, weight.dtype)
    with without_autocast(u):
        wide = at_least_float32(u.to(dtype)), at_least_float32(weight.to(dtype))
        s, c = by_agreement(*wide, None, _RULE)
        pose, activation = squash_with_length(s)
    return Capsules(pose.to(dtype), activation.to(dtype), c.to(dtype) if return_coupling else None)


def _by_degree(u: Tensor, weight: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weigh votes by their degrees in plain PyTorch; returns sums ``[B, J, d_out]`` and couplings ``[B, I, J]``."""
    n_in, n_out, d_out = (weight.shape[axis] for axis in (0, 1, 3))
    votes = u.transpose(0, 1) @ weight.transpose(1, 2).flatten(2)  # lower capsules first, as products of matrices are
    votes = votes.view(n_in, u.shape[0], n_out, d_out)
    votes, unit = in_units(votes, (0, 3))
    degree = (votes * votes.sum(dim=0)).sum(dim=3)
    square = votes.square().sum(dim=3)
    c = (degree / square.maximum((_SHORTEST / unit[..., 0] / unit[..., 0]).clamp_min(_LEAST))).softmax(dim=0)
    return (c.unsqueeze(3) * votes).sum(dim=0) * unit[0], c.transpose(0, 1)


_RULE = Rule(over_lower=True, constant=_SHORTEST, plain=_by_degree)
