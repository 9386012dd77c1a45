"""Sums of votes that are weighted before they meet, without the votes: one upper capsule after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torchcaps.ops.backends.tracing import have_tangents, is_plain, of_many_outputs

#: Numbers of weighted poses for all upper capsules at once from which each on its own takes less time.
_MANY = 2**20
_SUM = "bij,bid,ijde->bje"


def weighted_votes(share: Tensor, u: Tensor, weight: Tensor) -> Tensor:
    """Compute Σ_i s_ij u_i W_ij.

    As one expression torch keeps s_ij u_i, which is as large as the votes. On a CPU these are made for one upper
    capsule at a time, and anew in the backward pass, where they are many.

    Args:
        share: s, ``[B, I, J]``.
        u: ``[B, I, d_in]``.
        weight: W, ``[I, J, d_in, d_out]``, all of one dtype.

    Returns:
        ``[B, J, d_out]``.
    """
    given = share, u, weight
    if not _is_ours(*given):
        return torch.einsum(_SUM, *given)
    made = _InTurn.apply(*given)
    assert isinstance(made, Tensor)
    return made


def _is_ours(share: Tensor, u: Tensor, weight: Tensor) -> bool:
    if not is_plain():  # before any size is asked for, which a program that is exported would then insist on
        return False
    if share.device.type != "cpu" or u.numel() * share.shape[2] < _MANY or weight.numel() == 0:
        return False
    return not have_tangents(share, u, weight)


class _InTurn(Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, u: Tensor, weight: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(share, u, weight)
        shares, kernels = _by_upper(share, weight)
        weighted, y = (
            torch.empty_like(u, memory_format=torch.contiguous_format),
            u.new_empty(len(kernels), len(u), weight.shape[3]),
        )
        for s, w, to in zip(shares, kernels, y, strict=True):
            torch.mul(s[:, :, None], u, out=weighted)
            torch.mm(weighted.flatten(1), w, out=to)
        return y.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        share, u, weight = ctx.saved_tensors
        if torch.is_grad_enabled() or of_many_outputs(dy):  # with derivatives of its own, or of many outputs at once
            d_weighted = (weight @ dy[:, None, :, :, None]).squeeze(
                -1
            )  # [B, I, J, d_in]; products that torch can batch
            weighted = share[..., None] * u[:, :, None]
            d_share = (d_weighted * u[:, :, None]).sum(dim=3)
            return (
                d_share,
                (d_weighted * share[..., None]).sum(dim=2),
                weighted.permute(1, 2, 3, 0) @ dy.transpose(0, 1),
            )
        shares, kernels = _by_upper(share, weight)
        d_shares, d_u, d_kernels = torch.empty_like(shares), torch.zeros_like(u), torch.empty_like(kernels)
        weighted, d_weighted = (torch.empty_like(u, memory_format=torch.contiguous_format) for _ in range(2))
        for j, d in enumerate(dy.transpose(0, 1)):
            s = shares[j][:, :, None]
            torch.mul(s, u, out=weighted)
            torch.mm(weighted.flatten(1).t(), d, out=d_kernels[j])
            torch.mm(d, kernels[j].t(), out=d_weighted.flatten(1))
            d_u.addcmul_(d_weighted, s)
            torch.sum(d_weighted.mul_(u), dim=2, out=d_shares[j])
        return d_shares.permute(1, 2, 0), d_u, d_kernels.unflatten(1, u.shape[1:]).transpose(0, 1)


def _by_upper(share: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Lay out shares ``[J, B, I]`` and matrices ``[J, I·d_in, d_out]`` for each upper capsule."""
    return share.permute(2, 0, 1).contiguous(), weight.transpose(0, 1).flatten(1, 2).contiguous()
