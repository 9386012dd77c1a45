"""Routing by how well upper capsules explain the votes, at a cost for what is used and what is ignored."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import (
    check_at_least,
    check_choice,
    check_flag,
    check_floating,
    check_mask,
    check_shapes,
    check_sized,
)
from torchcaps.ops.backends.dispatch import which_backend
from torchcaps.ops.em.checks import check_activation
from torchcaps.ops.heinsen_matrix import compiled
from torchcaps.ops.log_sigmoid import log_sigmoid
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.units import have_large_votes, in_units, per_square_unit
from torchcaps.types import Capsules

BACKENDS = ("auto", "reference", "cpu", "triton")
_EPS = 1e-5  # the author's


def heinsen_matrix_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_use: Tensor,
    beta_ign: Tensor,
    *,
    bias: Tensor | None = None,
    n_iters: int = 3,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules, which vote V_ij = M_i W_ij + B_ij, to J upper ones by Heinsen's algorithm of 2019.

    In the first pass R_ij = 1/J. With f_i the lower activations, one pass has

        use_ij = f_i R_ij,    ign_ij = f_i - use_ij,    a_j = Σ_i (β^use_ij use_ij - β^ign_ij ign_ij),
        μ_j = Σ_i use_ij V_ij / Σ_i use_ij,    s_j = Σ_i use_ij (V_ij - μ_j)² / Σ_i use_ij + ε,
        R_ij ← softmax_j(ln σ(a_j) - Σ (V_ij - μ_j)² / 2s_j - ½ Σ ln s_j).

    So an upper capsule gains by what it uses, and pays for what it ignores. ε = 1e-5 stands in the sums of use_ij too.
    The author's code takes logits of which f_i is the sigmoid, and returns s_j as well. Votes beyond 2^20 are routed in
    units of the largest. Computed in float32 at least, whatever autocast is in force; the result has the common dtype
    of ``pose`` and ``weight``.

    Args:
        pose: M, matrices ``[B, I, rows, d]`` or vectors ``[B, I, d_in]``.
        activation: f, 0 … 1, ``[B, I]``. A lower capsule of 0 does not count.
        weight: W, ``[I, J, d, columns]``, or ``[I, J, d_in, d_out]`` for vectors; I = 1 is shared by all.
        beta_use: β^use, ``[I, J]`` or ``[1, J]``.
        beta_ign: β^ign, likewise.
        bias: B, ``[I, J, rows, columns]`` or ``[1, J, rows, columns]``; for vectors ``[I, J, d_out]``. None for 0.
        n_iters: passes, at least 1; the paper uses 3.
        mask: true for lower capsules that are there, ``[B, I]``; None for all.
        backend: "reference" stores the votes. "cpu" and "triton", for CUDA devices, do not; they are for 4×4
            matrices whose bias all lower capsules share. "auto" takes "cpu" where it is available, elsewhere the
            reference, and the reference for products of poses and weights, or a bias, beyond 1e10. The code is that
            of variational-Bayes routing; :func:`torchcaps.ops.which_backend` says whether it is available.
        return_coupling: fill the result's ``coupling`` with R of the last pass.

    Returns:
        pose μ ``[B, J, d_out]``, or ``[B, J, rows, columns]`` of matrices; activation a ``[B, J]``, *logits*; and
        coupling ``[B, I, J]``, or None unless asked for: Σ_j R_ij = 1.

    Raises:
        ValueError: shapes that do not fit, numbers that are not floating point, activations that are no probabilities,
            ``n_iters`` below 1, an unknown ``backend``, or one that is not made for these.
        Unavailable: a named ``backend`` cannot be had here; a RuntimeError.

    Example:
        >>> import torch
        >>> pose, f, weight, beta = torch.rand(2, 6, 4, 4), torch.rand(2, 6), torch.rand(6, 3, 4, 4), torch.zeros(6, 3)
        >>> routed = heinsen_matrix_routing(pose, f, weight, beta, beta)
        >>> routed.pose.shape, bool(routed.activation.any())  # without costs all scores are 0
        (torch.Size([2, 3, 4, 4]), False)

    Source: Heinsen 2019, An Algorithm for Routing Capsules in All Domains, arXiv 1911.00792, and its code.
    """
    check_floating("pose", pose)
    check_floating("weight", weight)
    matrices = pose.dim() == 4
    sizes = check_shapes(pose=(pose, "B I rows d" if matrices else "B I d"), activation=(activation, "B I"))
    n_in, rows = sizes["I"], sizes.get("rows", 1)
    own = check_shapes(weight=(weight, "I J d columns"))
    if own["d"] != sizes["d"] or own["I"] not in (1, n_in):
        raise ValueError(f"weight must be [I={n_in} or 1, J, d={sizes['d']}, columns], got shape {list(weight.shape)}")
    n_out, columns = own["J"], own["columns"]
    for name, beta in (("beta_use", beta_use), ("beta_ign", beta_ign)):
        check_sized(name, beta, (n_in, n_out), (1, n_out), beside=("pose", pose))
    vote = (rows, columns) if matrices else (columns,)
    if bias is not None:
        check_sized("bias", bias, (n_in, n_out, *vote), (1, n_out, *vote), beside=("pose", pose))
    if mask is not None:
        check_mask(mask, pose.shape[:2], ("pose", pose))
    check_activation(activation)
    check_at_least("n_iters", n_iters, 1)
    check_flag("return_coupling", return_coupling)
    every = (pose, activation, weight, beta_use, beta_ign, *(() if bias is None else (bias,)))
    chosen = which_backend("variational_bayes", _asked(backend, vote, pose, weight, bias), *every)
    far = have_large_votes(pose, weight) or (bias is not None and have_large_votes(bias, bias.new_ones(1)))
    if backend == "auto" and far:
        chosen = "reference"
    dtype = torch.promote_types(pose.dtype, weight.dtype)
    with without_autocast(pose):
        m, w = (at_least_float32(x.to(dtype)) for x in (pose if matrices else pose.unsqueeze(2), weight))
        f = activation.to(m.dtype) if mask is None else activation.to(m.dtype) * mask.to(m.dtype)
        w = w.expand(n_in, -1, -1, -1)
        use, ign = beta_use.to(m.dtype), beta_ign.to(m.dtype)
        bias = None if bias is None else bias.to(m.dtype)
        if chosen != "reference":
            mean, logit, r = compiled.route(m, f, w, bias, use, ign, n_iters, return_coupling, eps=_EPS, backend=chosen)
        else:
            votes = torch.einsum("birk,ijkc->bijrc", m, w).flatten(3)  # [B, I, J, D]
            votes = votes if bias is None else votes + bias.flatten(2)
            mean, _, logit, r = route(votes, f, use, ign, n_iters)
    return Capsules(mean.unflatten(2, vote).to(dtype), logit.to(dtype), r.to(dtype) if return_coupling else None)


def _asked(backend: str, vote: tuple[int, ...], pose: Tensor, weight: Tensor, bias: Tensor | None) -> str:
    """Return what to ask for: the reference instead of "auto" where compiled code is not made for a call."""
    check_choice("backend", backend, BACKENDS)
    if backend == "reference":
        return backend
    if not vote == tuple(weight.shape[-2:]) == tuple(pose.shape[-2:]) == (4, 4) or not pose.shape[1]:
        why = f"wants 4×4 matrices, got poses {list(pose.shape)} and weight {list(weight.shape)}"
    elif bias is not None and len(bias) != 1:
        why = f"wants one bias for all lower capsules, got {len(bias)}"
    else:
        return backend
    if backend == "auto":
        return "reference"
    raise ValueError(f"backend='{backend}' {why}")


def route(
    votes: Tensor, f: Tensor, beta_use: Tensor, beta_ign: Tensor, n_iters: int, *, eps: float = _EPS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Route votes ``[B, I, J, D]`` of lower capsules with activations ``[B, I]``.

    Returns:
        μ and s ``[B, J, D]``, a ``[B, J]`` and R ``[B, I, J]``. s is in plain numbers, and infinite where they end.
    """
    v, unit = in_units(votes, 1)
    r = torch.full_like(votes[..., 0], 1 / max(1, votes.shape[2]))
    known = _explain(v, unit, r, f, beta_use, beta_ign, eps)
    for _ in range(n_iters - 1):
        mean, variance, logit = known
        distance = ((v - mean[:, None]).square() / variance[:, None]).sum(dim=3) / 2  # [B, I, J]
        own = log_sigmoid(logit) - (variance.log() / 2 + unit[:, 0].log()).sum(dim=2)
        r = (own[:, None] - distance).softmax(dim=2)
        known = _explain(v, unit, r, f, beta_use, beta_ign, eps)
    mean, variance, logit = known
    scale = unit[:, 0]
    return mean * scale, variance * scale * scale, logit, r


def _explain(
    v: Tensor, unit: Tensor, r: Tensor, f: Tensor, beta_use: Tensor, beta_ign: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit the upper capsules to the votes, in units: μ and s ``[B, J, D]``, a ``[B, J]``."""
    use = f[..., None] * r  # [B, I, J]
    logit = (beta_use * use - beta_ign * (f[..., None] - use)).sum(dim=1)
    share = use / (use.sum(dim=1, keepdim=True) + eps)
    mean = torch.einsum("bij,bijd->bjd", share, v)
    variance = torch.einsum("bij,bijd->bjd", share, (v - mean[:, None]).square())
    return mean, variance + per_square_unit(eps, unit[:, 0]), logit
