"""Routing by how well upper capsules predict the lower ones, without ever storing a vote."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_flag, check_floating, check_mask, check_shapes, check_sized
from torchcaps.ops.log_sigmoid import log_sigmoid
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.units import layer_norm
from torchcaps.types import Capsules

#: No prediction is made of a score beyond this, so that similarities do not overflow.
_SCORE = 1e15


def heinsen_vector_routing(
    x: Tensor,
    *,
    activation_weight: Tensor,
    activation_bias: Tensor,
    vote_factor: Tensor,
    vote_weight: Tensor,
    vote_bias: Tensor,
    prediction_weight: Tensor,
    prediction_factor: Tensor,
    prediction_bias: Tensor,
    similarity_weight: Tensor,
    similarity_bias: Tensor,
    beta_use: Tensor,
    beta_ign: Tensor,
    n_iters: int = 2,
    mask: Tensor | None = None,
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower vectors to J upper ones by Heinsen's algorithm of 2022.

    Lower vectors are scaled, x̃_i = x_i/√I, have activations f_i = σ(A_i · x̃_i + A⁰_i), and vote
    V_ij = (x̃_i ⊙ F1_j) F2 + F⁰_j. In the first pass R_ij = 1/J. One pass has

        φ_ij = β^use_ij f_i R_ij - β^ign_ij f_i (1 - R_ij),    o_j = Σ_i φ_ij V_ij,
        x̂_j = (LN(o_j) G1) ⊙ G2_j + G⁰_j,    R_ij ← softmax_j(ln σ((x_i · x̂_j) S_ij + S⁰_ij)),

    where LN normalizes to mean 0 and variance 1, and the result is LN(o_j). φ is what the paper calls "bang per bit".
    Votes are never stored: o_j = ((Σ_i φ_ij x̃_i) ⊙ F1_j) F2 + (Σ_i φ_ij) F⁰_j, so that memory grows with I·J and not
    with I·J·d_out. Computed in float32 at least, whatever autocast is in force; the result has the common dtype of
    ``x`` and ``vote_weight``.

    Args:
        x: ``[B, I, d_in]``.
        activation_weight: A, ``[I, d_in]``, or ``[1, d_in]`` for any number of lower vectors.
        activation_bias: A⁰, ``[I]`` or ``[1]``.
        vote_factor: F1, ``[J, d_in]``, J at least 2.
        vote_weight: F2, ``[d_in, d_out]``.
        vote_bias: F⁰, ``[J, d_out]``.
        prediction_weight: G1, ``[d_out, d_in]``.
        prediction_factor: G2, ``[J, d_in]``.
        prediction_bias: G⁰, ``[J, d_in]``.
        similarity_weight: S, ``[I, J]`` or ``[1, J]``.
        similarity_bias: S⁰, likewise.
        beta_use: β^use, ``[I, J]``, or ``[B, I, J]`` where it depends on the vectors.
        beta_ign: β^ign, likewise.
        n_iters: passes, at least 1; the paper uses 2. With one, predictions and similarities are not needed.
        mask: true for vectors that are there, ``[B, I]``; the √I above counts those alone. None for all.
        return_coupling: fill the result's ``coupling`` with R of the last pass.

    Returns:
        pose ``[B, J, d_out]``, of one number not normalized; activation ``[B, J]``, *logits*; and coupling
        ``[B, I, J]``, or None unless asked for: Σ_j R_ij = 1. The paper has no activations of upper vectors. Here they
        are Σ_i φ_ij, the score of Heinsen's algorithm of 2019; or the pose itself where it is one number, as in the
        author's classifiers.

    Raises:
        ValueError: shapes that do not fit, numbers that are not floating point, or ``n_iters`` below 1.

    Example:
        >>> import torch
        >>> i, j, d = 6, 3, 8
        >>> shapes = {"activation_weight": (i, d), "activation_bias": (i,), "vote_factor": (j, d),
        ...           "vote_weight": (d, 16), "vote_bias": (j, 16), "prediction_weight": (16, d),
        ...           "prediction_factor": (j, d), "prediction_bias": (j, d), "similarity_weight": (i, j),
        ...           "similarity_bias": (i, j), "beta_use": (i, j), "beta_ign": (i, j)}
        >>> heinsen_vector_routing(torch.rand(2, i, d), **{k: torch.rand(v) for k, v in shapes.items()}).pose.shape
        torch.Size([2, 3, 16])

    Source: Heinsen 2022, An Algorithm for Routing Vectors in Sequences, arXiv 2211.11754, and its code.
    """
    given = {
        "activation_weight": activation_weight,
        "activation_bias": activation_bias,
        "vote_factor": vote_factor,
        "vote_weight": vote_weight,
        "vote_bias": vote_bias,
        "prediction_weight": prediction_weight,
        "prediction_factor": prediction_factor,
        "prediction_bias": prediction_bias,
        "similarity_weight": similarity_weight,
        "similarity_bias": similarity_bias,
        "beta_use": beta_use,
        "beta_ign": beta_ign,
    }
    _check_shapes(x, given, mask)
    check_at_least("n_iters", n_iters, 1)
    check_flag("return_coupling", return_coupling)
    dtype = torch.promote_types(x.dtype, vote_weight.dtype)
    with without_autocast(x):
        wide = at_least_float32(x.to(dtype))
        p = {name: tensor.to(wide.dtype) for name, tensor in given.items()}
        pose, logit, r = _route(wide, p, n_iters, None if mask is None else mask.to(wide.dtype))
    return Capsules(pose.to(dtype), logit.to(dtype), r.to(dtype) if return_coupling else None)


def _route(x: Tensor, p: dict[str, Tensor], n_iters: int, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Route vectors ``[B, I, d_in]``; return poses ``[B, J, d_out]``, scores ``[B, J]`` and R ``[B, I, J]``."""
    if mask is None:
        scaled = x * max(1, x.shape[1]) ** -0.5
    else:
        scaled = x * mask.sum(dim=1).clamp_min(1).rsqrt()[:, None, None]
    f = ((scaled * p["activation_weight"]).sum(dim=2) + p["activation_bias"]).sigmoid()  # [B, I]
    f = (f if mask is None else f * mask)[..., None]
    r = x.new_full((*x.shape[:2], len(p["vote_factor"])), 1 / len(p["vote_factor"]))
    o, total = _gather_votes(scaled, f, r, p)
    plain = p["vote_weight"].shape[1] == 1
    for _ in range(n_iters - 1):
        upper = o.clamp(-_SCORE, _SCORE) if plain else layer_norm(o)
        predicted = upper @ p["prediction_weight"] * p["prediction_factor"] + p["prediction_bias"]  # [B, J, d_in]
        near = torch.einsum("bid,bjd->bij", x, predicted)
        r = log_sigmoid(near * p["similarity_weight"] + p["similarity_bias"]).softmax(dim=2)
        o, total = _gather_votes(scaled, f, r, p)
    return (o, o[..., 0], r) if plain else (layer_norm(o), total, r)


def _gather_votes(scaled: Tensor, f: Tensor, r: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Sum the votes by their credit φ, and the credit: ``[B, J, d_out]`` and ``[B, J]``."""
    use = f * r
    credit = p["beta_use"] * use - p["beta_ign"] * (f - use)  # φ, [B, I, J]
    total = credit.sum(dim=1)
    votes = (torch.einsum("bij,bid->bjd", credit, scaled) * p["vote_factor"]) @ p["vote_weight"]
    return votes + total[..., None] * p["vote_bias"], total


def _check_shapes(x: Tensor, given: dict[str, Tensor], mask: Tensor | None) -> None:
    """Refuse tensors that do not fit each other."""
    check_floating("x", x)
    for name, tensor in given.items():
        check_floating(name, tensor)
    sizes = check_shapes(
        x=(x, "B I d_in"),
        vote_factor=(given["vote_factor"], "J d_in"),
        vote_weight=(given["vote_weight"], "d_in d_out"),
        vote_bias=(given["vote_bias"], "J d_out"),
        prediction_weight=(given["prediction_weight"], "d_out d_in"),
        prediction_factor=(given["prediction_factor"], "J d_in"),
        prediction_bias=(given["prediction_bias"], "J d_in"),
    )
    batch, n_in, n_out, d_in = (sizes[name] for name in ("B", "I", "J", "d_in"))
    check_at_least("J", n_out, 2)
    allowed: dict[str, tuple[tuple[int, ...], ...]] = {
        "activation_weight": ((n_in, d_in), (1, d_in)),
        "activation_bias": ((n_in,), (1,)),
        "similarity_weight": ((n_in, n_out), (1, n_out)),
        "similarity_bias": ((n_in, n_out), (1, n_out)),
        "beta_use": ((n_in, n_out), (batch, n_in, n_out)),
        "beta_ign": ((n_in, n_out), (batch, n_in, n_out)),
    }
    for name, shapes in allowed.items():
        check_sized(name, given[name], *shapes, beside=("x", x))
    if mask is not None:
        check_mask(mask, (batch, n_in), ("x", x))
