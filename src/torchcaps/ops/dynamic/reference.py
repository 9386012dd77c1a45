"""Dynamic routing as the paper prints it, in plain PyTorch: what every kernel is held to.

Source: Sabour et al. 2017, procedure 1 and equations 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from torchcaps.ops.squash import squash_with_length
from torchcaps.types import Capsules


def route(
    votes: Tensor, n_iters: int, bias: Tensor | None, initial_logits: Tensor | None, leaky: bool, backprop: str
) -> Capsules:
    """Run procedure 1 of the paper, line by line, on checked arguments; û is ``votes`` ``[B, I, J, d_out]``."""
    return run_procedure(
        votes.new_zeros(votes.shape[:3]),
        lambda c: torch.einsum("bij,bije->bje", c, votes),  # eq. 2
        lambda v: torch.einsum("bije,bje->bij", votes, v),
        n_iters,
        bias,
        initial_logits,
        leaky,
        backprop,
    )


def run_procedure(
    agreement: Tensor,
    weighted_sum: Callable[[Tensor], Tensor],
    agreement_with: Callable[[Tensor], Tensor],
    n_iters: int,
    bias: Tensor | None,
    initial_logits: Tensor | None,
    leaky: bool,
    backprop: str,
) -> Capsules:
    """Run procedure 1, whatever form the votes have.

    Args:
        agreement: zeros ``[B, I, J]``.
        weighted_sum: from c ``[B, I, J]`` to Σ_i c_ij û_ij ``[B, J, d_out]``.
        agreement_with: from v ``[B, J, d_out]`` to û_ij · v_j ``[B, I, J]``.
        n_iters: at least 1.
        bias: ``[J, d_out]``.
        initial_logits: what ``[B, I, J]`` can be expanded from.
        leaky: whether the softmax has a place for nothing.
        backprop: "full" or "last".
    """
    b0 = 0 if initial_logits is None else initial_logits.to(agreement.dtype)

    def one_pass(agreement: Tensor) -> Capsules:
        b = b0 + agreement  # [B, I, J]
        c = _leaky_softmax(b) if leaky else b.softmax(dim=2)  # eq. 3: over the upper capsules
        s = weighted_sum(c)  # eq. 2
        return Capsules(*squash_with_length(s if bias is None else s + bias.to(s.dtype)), c)  # eq. 1

    # Not where it changes nothing: torch.export cannot load programs with a region of it within one of autocast.
    with torch.no_grad() if backprop == "last" and torch.is_grad_enabled() else nullcontext():
        for _ in range(n_iters - 1):
            v = one_pass(agreement).pose
            agreement = agreement + agreement_with(v)
    if backprop == "last":  # no_grad does not hold back what forward-mode derivatives carry along
        agreement = agreement.detach()
    return one_pass(agreement)


def _leaky_softmax(b: Tensor) -> Tensor:
    """Take the softmax over the last axis and one more logit, 0, whose share is dropped."""
    leak = b.new_zeros((*b.shape[:-1], 1))
    return torch.cat((leak, b), dim=-1).softmax(dim=-1)[..., 1:]
