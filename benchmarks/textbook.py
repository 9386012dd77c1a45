"""Dynamic routing as others write it: the votes are stored, and autograd does the rest.

Written from the formulas, each as quick as its idea allows. All take u ``[B, I, d_in]``, weight
``[I, J, d_in, d_out]`` and bias ``[J, d_out]`` or None, and return the pose ``[B, J, d_out]``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tiled(u: Tensor, weight: Tensor, bias: Tensor | None, n_iters: int) -> Tensor:
    """Votes by a matrix product that is broadcast over images, sums by multiplying and adding."""
    votes = (u[:, :, None, None] @ weight).squeeze(3)  # [B, I, J, D]

    def outcome(b: Tensor) -> Tensor:
        return _squash((b.softmax(dim=2).unsqueeze(3) * votes).sum(dim=1), bias)  # [B, J, D]

    b = votes.new_zeros(votes.shape[:3])
    for _ in range(n_iters - 1):
        b = b + (votes * outcome(b).unsqueeze(1)).sum(dim=3)
    return outcome(b)


def einsum(u: Tensor, weight: Tensor, bias: Tensor | None, n_iters: int) -> Tensor:
    """Every product an einsum."""
    votes = torch.einsum("bid,ijde->bije", u, weight)

    def outcome(b: Tensor) -> Tensor:
        return _squash(torch.einsum("bij,bije->bje", b.softmax(dim=2), votes), bias)

    b = votes.new_zeros(votes.shape[:3])
    for _ in range(n_iters - 1):
        b = b + torch.einsum("bije,bje->bij", votes, outcome(b))
    return outcome(b)


def batched(u: Tensor, weight: Tensor, bias: Tensor | None, n_iters: int) -> Tensor:
    """Votes as ``[B, J, I, D]``, so that both sums are batched matrix products over neighbouring numbers."""
    n_in, n_out, _, d_out = weight.shape
    matrices = weight.transpose(1, 2).reshape(n_in, -1, n_out * d_out)
    votes = torch.bmm(u.transpose(0, 1), matrices).unflatten(2, (n_out, d_out)).permute(1, 2, 0, 3).contiguous()

    def outcome(b: Tensor) -> Tensor:
        return _squash((b.softmax(dim=1).unsqueeze(2) @ votes).squeeze(2), bias)

    b = votes.new_zeros(votes.shape[:3])  # [B, J, I]
    for _ in range(n_iters - 1):
        b = b + (votes @ outcome(b).unsqueeze(3)).squeeze(3)
    return outcome(b)


def few_at_a_time(u: Tensor, weight: Tensor, bias: Tensor | None, n_iters: int) -> Tensor:
    """:func:`batched`, four images at a time, so that their votes stay in the cache."""
    return torch.cat([batched(images, weight, bias, n_iters) for images in u.split(4)])


FORMULATIONS = {"tiled": tiled, "einsum": einsum, "batched": batched, "few_at_a_time": few_at_a_time}


def _squash(s: Tensor, bias: Tensor | None) -> Tensor:
    s = s if bias is None else s + bias
    square = s.square().sum(dim=-1, keepdim=True)
    return s * (square.sqrt() / (1 + square))
