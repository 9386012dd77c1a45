"""Routing in which upper capsules ask, and each lower one chooses among them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.checks import (
    check_at_least,
    check_beside,
    check_choice,
    check_flag,
    check_floating,
    check_shapes,
)
from torchcaps.ops.backends.dispatch import which_backend
from torchcaps.ops.inverted_attention.compiled import further_passes
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.units import layer_norm
from torchcaps.ops.votes import matrix_votes
from torchcaps.types import Capsules

#: What may be asked for; "auto" takes what :func:`torchcaps.ops.which_backend` says.
BACKENDS = ("auto", "reference", "cpu", "triton")


def inverted_attention_routing(
    pose: Tensor,
    weight: Tensor,
    *,
    n_iters: int = 1,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    score_weight: Tensor | None = None,
    score_bias: Tensor | None = None,
    initial: Tensor | None = None,
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules to J upper ones by their agreement with the upper poses of the pass before.

    With votes V_ij = M_i W_ij and the upper poses p_j of the pass before,

        r_ij = softmax_j(⟨V_ij, p_j⟩ / √d_out),    p_j ← LN(Σ_i r_ij V_ij).

    In the first pass r_ij = 1/J, unless ``initial`` poses are handed over. Logits are not summed over passes. The layer
    normalization is over the numbers of a pose, with ε = 1e-5. A first pass alone stores no votes. Computed in float32
    at least, whatever autocast is in force; the result has the common dtype of ``pose`` and ``weight``. Votes up to
    1e20 are safe in float32, where the variance of their sum overflows.

    Args:
        pose: M, vectors ``[B, I, d_in]`` or matrices ``[B, I, rows, d]``.
        weight: W, ``[I, J, d_in, d_out]``, or ``[I, J, d, columns]`` for matrices, where d_out = rows · columns.
        n_iters: passes, at least 1.
        norm_weight: γ of the normalization, ``[d_out]``, the same for all upper capsules; None for 1.
        norm_bias: β, ``[d_out]``; None for 0.
        score_weight: w, ``[d_out]``, of the activations p_j · w + b, which are logits. None for activations of 1.
        score_bias: b, ``[]``; None for 0.
        initial: upper poses ``[B, J, d_out]``, or matrices, to begin from.
        backend: "reference" stores the votes in further passes. "cpu" and "triton", for CUDA devices, do not; they are
            for 4×4 matrices. "auto" takes "cpu" where it is available, elsewhere the reference. The code is that of
            variational-Bayes routing; :func:`torchcaps.ops.which_backend` says whether it is available.
        return_coupling: fill the result's ``coupling`` with r of the last pass.

    Returns:
        pose ``[B, J, d_out]``, or ``[B, J, rows, columns]`` of matrices; activation ``[B, J]``, logits; coupling
        ``[B, I, J]``, or None unless asked for: Σ_j r_ij = 1.

    Raises:
        ValueError: shapes that do not fit, numbers that are not floating point, ``n_iters`` below 1, an unknown
            ``backend``, or one that is not made for these.
        Unavailable: a named ``backend`` cannot be had here; a RuntimeError.

    Example:
        >>> import torch
        >>> pose, weight = torch.rand(2, 6, 4, 4), torch.rand(6, 3, 4, 4)
        >>> routed = inverted_attention_routing(pose, weight, n_iters=2, return_coupling=True)
        >>> routed.pose.shape, routed.coupling.shape
        (torch.Size([2, 3, 4, 4]), torch.Size([2, 6, 3]))
        >>> again = inverted_attention_routing(pose, weight, initial=inverted_attention_routing(pose, weight).pose)
        >>> bool(torch.equal(again.pose, routed.pose))  # pass by pass
        True

    Source: Tsai, Srivastava, Goh, Salakhutdinov 2020, ICLR, arXiv 2002.04764, section 3 and algorithm 1.
    """
    check_floating("pose", pose)
    check_floating("weight", weight)
    matrices = pose.dim() == 4
    sizes = check_shapes(pose=(pose, "B I rows d" if matrices else "B I d"), weight=(weight, "I J d columns"))
    check_at_least("n_iters", n_iters, 1)
    check_flag("return_coupling", return_coupling)
    rows, n_out, columns = sizes.get("rows", 1), sizes["J"], sizes["columns"]
    d_out = rows * columns
    for name, tensor, wanted in (
        ("norm_weight", norm_weight, (d_out,)),
        ("norm_bias", norm_bias, (d_out,)),
        ("score_weight", score_weight, (d_out,)),
        ("score_bias", score_bias, ()),
        ("initial", initial, (sizes["B"], n_out, rows, columns) if matrices else (sizes["B"], n_out, d_out)),
    ):
        if tensor is not None:
            check_floating(name, tensor)
            check_beside(name, tensor, "pose", pose)
            if tensor.shape != wanted:
                raise ValueError(f"{name} must be {list(wanted)}, got shape {list(tensor.shape)}")
    chosen = which_backend("variational_bayes", _asked(backend, pose, weight), pose, weight)
    dtype = torch.promote_types(pose.dtype, weight.dtype)
    with without_autocast(pose):
        m = at_least_float32((pose if matrices else pose.unsqueeze(2)).to(dtype))  # a vector is a matrix of one row
        w = at_least_float32(weight.to(dtype))
        gamma, beta, score, bias = (
            None if x is None else x.to(m.dtype) for x in (norm_weight, norm_bias, score_weight, score_bias)
        )

        def normalize(s: Tensor) -> Tensor:
            return layer_norm(s.flatten(2), gamma, beta)  # [B, J, d_out]

        share = m.new_full((1, 1, 1), 1 / max(1, n_out)).expand(*m.shape[:2], n_out)
        if initial is None:  # Σ_i V_ij / J is one product of matrices
            upper = normalize(torch.einsum("birk,ijkc->bjrc", m, w) / max(1, n_out))
            n_iters = n_iters - 1
        else:
            upper = initial.to(m.dtype).flatten(2)
        if n_iters and chosen != "reference":
            share, upper = further_passes(m, w, upper, n_iters, normalize, return_coupling, backend=chosen)
        elif n_iters:
            share, upper = _further_passes(matrix_votes(m, w).flatten(3), upper, n_iters, normalize)
        logit = upper.new_ones(upper.shape[:2]) if score is None else upper @ score
        logit = logit if bias is None else logit + bias
    upper = upper.unflatten(2, (rows, columns)) if matrices else upper
    return Capsules(upper.to(dtype), logit.to(dtype), share.to(dtype) if return_coupling else None)


def _asked(backend: str, pose: Tensor, weight: Tensor) -> str:
    """Return what to ask for: the reference instead of "auto" where compiled code is not made for a call."""
    check_choice("backend", backend, BACKENDS)
    if backend == "reference" or (tuple(pose.shape[2:]) == tuple(weight.shape[2:]) == (4, 4) and pose.shape[1]):
        return backend
    if backend == "auto":
        return "reference"
    raise ValueError(
        f"backend='{backend}' wants 4×4 matrices, got poses {list(pose.shape)} and weight {list(weight.shape)}"
    )


def _further_passes(
    votes: Tensor, upper: Tensor, n_iters: int, normalize: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Route votes ``[B, I, J, d_out]`` from the poses ``[B, J, d_out]`` of a pass; return shares and poses."""
    share = votes[..., 0]
    for _ in range(n_iters):
        share = (torch.einsum("bijd,bjd->bij", votes, upper) / votes.shape[3] ** 0.5).softmax(dim=2)
        upper = normalize(torch.einsum("bij,bijd->bjd", share, votes))
    return share, upper
