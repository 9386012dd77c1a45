"""Routing in which each lower capsule decides alone where its vote goes, without iterations."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_flag, check_floating, check_shapes
from torchcaps.ops.backends.tracing import has_values
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.weighted_votes import weighted_votes
from torchcaps.types import Capsules


def self_routing(
    u: Tensor,
    activation: Tensor,
    weight: Tensor | None,
    *,
    route_weight: Tensor,
    route_bias: Tensor | None = None,
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules to J upper ones by a linear layer in each lower capsule.

    With shares c_ij = softmax_j(R_i u_i + r_i) and votes û_ij = u_i W_ij,

        a_j = Σ_i c_ij a_i / Σ_i a_i,    v_j = Σ_i c_ij a_i û_ij / Σ_i c_ij a_i.

    So the activations of the upper capsules sum to one. Where no lower capsule is active, all count alike; the authors'
    code gives NaN there, and where all shares of an upper capsule vanish by rounding. Votes are never stored. Computed
    in float32 at least, whatever autocast is in force; the result has the dtype of ``u``.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        activation: a, ``[B, I]``, at least 0.
        weight: W, ``[I, J, d_in, d_out]``; None for no poses, as the authors have it in the layer of classes. The pose
            is then the activation, one number.
        route_weight: R, ``[I, J, d_in]``.
        route_bias: r, ``[I, J]``; None for 0.
        return_coupling: fill the result's ``coupling`` with c.

    Returns:
        pose ``[B, J, d_out]`` (``[B, J, 1]`` without ``weight``), activation ``[B, J]``, 0 … 1, and coupling
        ``[B, I, J]``, or None unless asked for: Σ_j c_ij = 1.

    Raises:
        ValueError: shapes that do not fit, numbers that are not floating point, or an activation below 0 (looked at on
            the CPU alone).

    Example:
        >>> import torch
        >>> u, a = torch.rand(2, 6, 8), torch.rand(2, 6)
        >>> routed = self_routing(u, a, torch.rand(6, 3, 8, 16), route_weight=torch.zeros(6, 3, 8))
        >>> routed.pose.shape
        torch.Size([2, 3, 16])
        >>> bool((routed.activation - 1 / 3).abs().max() < 1e-6)  # R = 0 shares equally
        True

    Source: Hahn, Pyeon, Kim 2019, Self-Routing Capsule Networks, NeurIPS, section 3.
    """
    check_floating("u", u)
    check_floating("activation", activation)
    check_floating("route_weight", route_weight)
    shapes = {"u": (u, "B I d_in"), "activation": (activation, "B I"), "route_weight": (route_weight, "I J d_in")}
    if weight is not None:
        check_floating("weight", weight)
        shapes["weight"] = (weight, "I J d_in d_out")
    if route_bias is not None:
        shapes["route_bias"] = (route_bias, "I J")
    check_shapes(**shapes)
    check_flag("return_coupling", return_coupling)
    if has_values(activation) and bool((activation < 0).any()):
        raise ValueError(f"activation must be at least 0, got {activation.min():.4g}")
    dtype = torch.promote_types(u.dtype, route_weight.dtype)
    with without_autocast(u):
        wide = at_least_float32(u.to(dtype))
        a, r = activation.to(wide.dtype), route_weight.to(wide.dtype)
        logit = torch.einsum("bid,ijd->bij", wide, r)
        if route_bias is not None:
            logit = logit + route_bias.to(wide.dtype)
        log_c = logit.log_softmax(dim=2)
        c = log_c.exp()
        empty = (a == 0).all(dim=1, keepdim=True)
        a = torch.where(empty, 1.0, a)
        total = a.sum(dim=1, keepdim=True) if a.shape[1] else 1
        upper = torch.einsum("bij,bi->bj", c, a) / total
        pose = upper.unsqueeze(2)
        if weight is not None:
            pose = _mean_votes(wide, a, log_c, weight.to(wide.dtype))
    return Capsules(pose.to(dtype), upper.to(dtype), c.to(dtype) if return_coupling else None)


def _mean_votes(u: Tensor, a: Tensor, log_c: Tensor, weight: Tensor) -> Tensor:
    """Average the votes ``[B, I, J, d_out]`` with the weights c_ij a_i, for each upper capsule: ``[B, J, d_out]``.

    The largest share among active capsules counts as 1, so that some weight is left however small all shares are.
    """
    active = log_c.detach().masked_fill((a == 0).unsqueeze(2), -torch.inf)
    below = log_c - (active.amax(dim=1, keepdim=True) if active.shape[1] else 0)
    # Shares of capsules that are not active do not count, and may be larger than all that do. No clamp: from torch 2.14
    # it gives no gradient to what is at its bound, as the largest is.
    share = below.masked_fill(below > 0, 0).exp() * a.unsqueeze(2)  # [B, I, J]
    return weighted_votes(share / share.sum(dim=1, keepdim=True), u, weight)
