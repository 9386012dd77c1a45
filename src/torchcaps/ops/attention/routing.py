"""Routing by learned attention among the votes for each capsule, without iterations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchcaps.checks import check_flag, check_floating, check_shapes, check_sized
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.squash import safe_norm
from torchcaps.ops.votes import dense_votes
from torchcaps.types import Capsules


def attention_routing(
    u: Tensor,
    weight: Tensor,
    *,
    attention_weight: Tensor,
    activation_weight: Tensor,
    vote_bias: Tensor | None = None,
    activation_bias: Tensor | None = None,
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules to J upper ones by logits that are linear in all votes for an upper capsule.

    With votes û_ij = u_i W_ij + w_ij,

        b_ij = Σ_k A_ikj · û_kj,    c_ij = softmax_i(b_ij),    v_j = tanh((Σ_i c_ij û_ij) C_j + C⁰_j).

    The softmax runs over *lower* capsules: upper ones do not compete. The last step is the authors' capsule activation,
    a matrix and a tanh in place of squash. Their votes are convolutions, with I types of capsule at a place, and
    dropout before them; here they are matrices. Computed in float32 at least, whatever autocast is in force; the result
    has the common dtype of ``u`` and ``weight``.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: W, ``[I, J, d_in, d_out]``.
        attention_weight: A, ``[I, K, J, d_out]``. K is I; or the number of types of capsule, where I = K·n capsules
            stand in the order type, place. Types then count by the sum of their votes at the n places.
        activation_weight: C, ``[J, d_out, d_out]``.
        vote_bias: w, ``[I, J, d_out]``; None for 0.
        activation_bias: C⁰, ``[J, d_out]``; None for 0.
        return_coupling: fill the result's ``coupling`` with c.

    Returns:
        pose ``[B, J, d_out]``, numbers of −1 … 1; activation ``[B, J]``, the pose's length over √d_out, 0 … 1; and
        coupling ``[B, I, J]``, or None unless asked for: Σ_i c_ij = 1.

    Raises:
        ValueError: shapes that do not fit, or numbers that are not floating point.

    Example:
        >>> import torch
        >>> u, weight, square = torch.rand(2, 6, 8), torch.rand(6, 3, 8, 16), torch.rand(3, 16, 16)
        >>> routed = attention_routing(u, weight, attention_weight=torch.zeros(6, 6, 3, 16), activation_weight=square)
        >>> routed.pose.shape, routed.activation.shape
        (torch.Size([2, 3, 16]), torch.Size([2, 3]))

    Source: Choi, Seo, Im, Kang 2019, Attention Routing Between Capsules, ICCV workshops, arXiv 1907.01750, and
    its code.
    """
    for name, tensor in (("u", u), ("weight", weight), ("attention_weight", attention_weight)):
        check_floating(name, tensor)
    shapes = {
        "u": (u, "B I d_in"),
        "weight": (weight, "I J d_in d_out"),
        "attention_weight": (attention_weight, "I K J d_out"),
    }
    if vote_bias is not None:
        shapes["vote_bias"] = (vote_bias, "I J d_out")
    if activation_bias is not None:
        shapes["activation_bias"] = (activation_bias, "J d_out")
    sizes = check_shapes(**shapes)
    n_in, n_types, n_out, d_out = (sizes[name] for name in ("I", "K", "J", "d_out"))
    n_places = n_in // max(1, n_types)
    if n_places * n_types != n_in:
        raise ValueError(f"attention_weight must be [I={n_in}, K, J, d_out] with K that divides I, got K={n_types}")
    check_sized("activation_weight", activation_weight, (n_out, d_out, d_out), beside=("u", u))
    check_flag("return_coupling", return_coupling)
    dtype = torch.promote_types(u.dtype, weight.dtype)
    with without_autocast(u):
        votes = dense_votes(at_least_float32(u.to(dtype)), at_least_float32(weight.to(dtype)))  # [B, I, J, d_out]
        attention, square = attention_weight.to(votes.dtype), activation_weight.to(votes.dtype)
        if vote_bias is not None:
            votes = votes + vote_bias.to(votes.dtype)
        seen = votes.unflatten(1, (n_types, n_places)).sum(dim=2)  # [B, K, J, d_out]
        c = torch.einsum("bkjd,ikjd->bij", seen, attention).softmax(dim=1)
        s = torch.einsum("bij,bijd,jde->bje", c, votes, square)
        if activation_bias is not None:
            s = s + activation_bias.to(s.dtype)
        pose = s.tanh()
        activation = (safe_norm(pose) / math.sqrt(d_out)).clamp_max(1)
    return Capsules(pose.to(dtype), activation.to(dtype), c.to(dtype) if return_coupling else None)
