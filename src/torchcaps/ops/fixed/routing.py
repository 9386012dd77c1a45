"""Sums of votes under couplings that are the same for every image."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_beside, check_flag, check_floating, check_shapes, check_tensor
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.squash import squash_with_length
from torchcaps.types import Capsules


def fixed_routing(
    u: Tensor,
    weight: Tensor,
    *,
    coupling: Tensor | None = None,
    bias: Tensor | None = None,
    return_coupling: bool = False,
) -> Capsules:
    """Route I lower capsules to J upper ones by couplings that do not depend on the votes.

    s_j = Σ_i c_ij u_i W_ij and v_j = squash(s_j + bias_j). Even couplings c_ij = 1/J are the first pass of
    :func:`dynamic_routing`. The votes are never stored: the sum over i and d_in is one matrix product. Computed in
    float32 at least, whatever autocast is in force; the result has the common dtype of ``u`` and ``weight``.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: transformation matrices, ``[I, J, d_in, d_out]``; or ``[1, J, d_in, d_out]``, shared by all lower
            capsules.
        coupling: c, ``[I, J]``; None for 1/J.
        bias: added to the sum before squashing, ``[J, d_out]``.
        return_coupling: fill the result's ``coupling``.

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]`` (the pose's length, 0 … 1), and coupling ``[B, I, J]``, or None
        unless asked for.

    Raises:
        ValueError: shapes that do not fit, or numbers that are not floating point.

    Example:
        >>> import torch
        >>> u = torch.tensor([[[1.0, 0.0], [3.0, 0.0]]])
        >>> shared = torch.eye(2).expand(1, 2, 2, 2)  # both upper capsules get ((1, 0) + (3, 0)) / 2 = (2, 0)
        >>> fixed_routing(u, shared).pose  # of which 4/5 remain
        tensor([[[0.8000, 0.0000],
                 [0.8000, 0.0000]]])

    Source: Sabour et al. 2017, procedure 1 with one iteration; with shared matrices Gu, Tresp 2020 (Aff-CapsNet).
    """
    check_floating("u", u)
    check_floating("weight", weight)
    sizes = check_shapes(u=(u, "B I d_in"), weight=(weight, "I' J d_in d_out"))
    n_in, n_out = sizes["I"], sizes["J"]
    if sizes["I'"] not in (1, n_in):
        raise ValueError(f"weight must be [I={n_in} or 1, J, d_in, d_out] as u says, got shape {list(weight.shape)}")
    for name, tensor, wanted in (("coupling", coupling, (n_in, n_out)), ("bias", bias, (n_out, sizes["d_out"]))):
        if tensor is not None:
            check_tensor(name, tensor)
            check_beside(name, tensor, "u", u)
            if tensor.shape != wanted:
                raise ValueError(f"{name} must be {list(wanted)}, got shape {list(tensor.shape)}")
    check_flag("return_coupling", return_coupling)
    dtype = torch.promote_types(u.dtype, weight.dtype)
    with without_autocast(u):
        u, weight = at_least_float32(u.to(dtype)), at_least_float32(weight.to(dtype))
        c = u.new_full((n_in, n_out), 1 / max(1, n_out)) if coupling is None else coupling.to(u.dtype)
        s = _weighted_sum(u, weight, None if coupling is None else c)
        pose, activation = squash_with_length(s if bias is None else s + bias.to(s.dtype))
    given = c.to(dtype).expand(len(u), n_in, n_out) if return_coupling else None
    return Capsules(pose.to(dtype), activation.to(dtype), given)


def _weighted_sum(u: Tensor, weight: Tensor, c: Tensor | None) -> Tensor:
    """Compute Σ_i c_ij u_i W_ij, ``[B, J, d_out]``, by products of matrices alone; None stands for c_ij = 1/J."""
    n_out, shared = weight.shape[1], len(weight) == 1
    if c is None:
        u, equation = (u.sum(dim=1), "bd,jde->bje") if shared else (u, "bid,ijde->bje")
        return torch.einsum(equation, u, weight[0] if shared else weight) / max(1, n_out)
    if shared:  # children count through their weighted sum alone
        return torch.einsum("bjd,jde->bje", torch.einsum("bid,ij->bjd", u, c), weight[0])
    return torch.einsum("bid,ijde->bje", u, weight * c[:, :, None, None])
