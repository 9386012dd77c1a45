"""Dynamic routing at every place of a map, among the types of capsule that stand there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from torchcaps.checks import check_floating, check_shapes
from torchcaps.ops.dynamic.routing import check_passes
from torchcaps.ops.dynamic.votes import choose, route_compiled
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.squash import squash_with_length
from torchcaps.types import Capsules


def locally_constrained_routing(
    votes: Tensor,
    *,
    n_iters: int = 3,
    bias: Tensor | None = None,
    leaky: bool = False,
    backprop: str = "full",
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route T lower types to J upper types at every place of a map, by agreement.

    Each place is a problem of its own: :func:`~torchcaps.ops.dynamic_routing_from_votes` with T lower capsules. A
    convolution has looked around already: the vote of a type is its answer at that place. Votes stay as the convolution
    laid them out, and nothing as large is made beside them but their gradient. Computed in float32 at least.

    Args:
        votes: û, ``[B, T, J, d_out, H, W]``.
        n_iters: passes over the votes, at least 1.
        bias: added to the weighted sum before squashing, ``[J, d_out]``, the same at all places.
        leaky: let a capsule route to nothing, see :func:`~torchcaps.ops.dynamic_routing`.
        backprop: "full" or "last", see :func:`~torchcaps.ops.dynamic_routing`.
        backend: "reference" is plain PyTorch; "cpu" is compiled code, which reads the votes from memory once, and gives
            no couplings. "auto" takes compiled code where it is available and serves;
            :func:`torchcaps.ops.which_backend` says for "dynamic_votes" which it is.
        return_coupling: fill the result's ``coupling``.

    Returns:
        pose ``[B, J, H, W, d_out]``, activation ``[B, J, H, W]`` (the pose's length, 0 … 1), and coupling
        ``[B, H, W, T, J]``, or None unless asked for: Σ_j c_tj = 1, or less than 1 with ``leaky``.

    Raises:
        ValueError: shapes that do not fit, integers, ``n_iters`` or d_out below 1, an unknown ``backprop`` or
            ``backend``, couplings of "cpu".
        Unavailable: ``backend="cpu"`` where nothing can be compiled; a RuntimeError.

    Example:
        >>> import torch
        >>> votes = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2, 1, 1).expand(1, 2, 1, 2, 3, 3)  # two types agree
        >>> locally_constrained_routing(votes).pose[0, 0, 1, 1]  # s = (2, 0), of which 4/5 remain as v
        tensor([0.8000, 0.0000])

    Source: LaLonde, Bagci 2018, arXiv 1804.04241, and its code.
    """
    sizes = check_shapes(votes=(votes, "B T J d_out H W"))
    check_floating("votes", votes)
    check_passes(sizes, n_iters, backprop, leaky, return_coupling)
    if bias is not None:
        check_shapes(votes=(votes, "B T J d_out H W"), bias=(bias, "J d_out"))
    chosen = choose(backend, votes, bias, return_coupling=return_coupling)
    with without_autocast(votes):
        if chosen == "cpu":
            return route_compiled(votes, n_iters, bias, leaky=leaky, together=False, backprop=backprop)
        return route_types(
            votes,
            n_iters,
            bias,
            backprop,
            partial(_softmax, leaky=leaky),
            partial(squash_with_length, dim=2),
            return_coupling=return_coupling,
        )


def route_types(
    votes: Tensor,
    n_iters: int,
    bias: Tensor | None,
    backprop: str,
    softmax: Callable[[Tensor], Tensor],
    squash: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    return_coupling: bool,
) -> Capsules:
    """Route votes that a convolution laid out, without checks, in float32 at least.

    Args:
        votes: û, ``[B, T, J, d_out, H, W]``.
        n_iters: passes.
        bias: ``[J, d_out]`` or None.
        backprop: "full" or "last".
        softmax: makes couplings of the logits of one lower type, ``[B, J, H, W]``.
        squash: makes poses, and their lengths without the axis of the pose, of s, ``[B, J, d_out, H, W]``.
        return_coupling: fill the result's ``coupling``.
    """
    pose, activation, couplings = _passes(at_least_float32(votes), n_iters, bias, backprop, softmax, squash)
    coupling = None
    if return_coupling:
        shape = votes.shape[0], 0, votes.shape[2], *votes.shape[4:]
        coupling = torch.stack(couplings, dim=1) if couplings else votes.new_zeros(shape)
        coupling = coupling.permute(0, 3, 4, 1, 2).to(votes.dtype)
    return Capsules(pose.movedim(2, 4).to(votes.dtype), activation.to(votes.dtype), coupling)


def _passes(
    votes: Tensor,
    n_iters: int,
    bias: Tensor | None,
    backprop: str,
    softmax: Callable[[Tensor], Tensor],
    squash: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return poses ``[B, J, d_out, H, W]``, their lengths, and the couplings of each lower type ``[B, J, H, W]``.

    Type by type: nothing as large as all votes is made beside them.
    """
    types = votes.unbind(1)  # each [B, J, d_out, H, W]
    start = votes.new_zeros((votes.shape[0], *votes.shape[2:]))  # len would fix the size of an exported batch
    if bias is not None:
        start = start + bias.to(votes.dtype)[:, :, None, None]

    def one_pass(logits: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        couplings = [softmax(b) for b in logits]
        s = start
        for c, u_hat in zip(couplings, types, strict=True):
            s = torch.addcmul(s, c.unsqueeze(2), u_hat)
        return *squash(s), couplings

    logits = [torch.zeros_like(u_hat[:, :, 0]) for u_hat in types]
    with torch.no_grad() if backprop == "last" and torch.is_grad_enabled() else nullcontext():
        for _ in range(n_iters - 1):
            v = one_pass(logits)[0]
            logits = [b + (u_hat * v).sum(dim=2) for b, u_hat in zip(logits, types, strict=True)]
    if backprop == "last":  # no_grad does not hold back what forward-mode derivatives carry along
        logits = [b.detach() for b in logits]
    return one_pass(logits)


def _softmax(b: Tensor, leaky: bool) -> Tensor:
    """Take the softmax over the upper types ``[B, J, H, W]``; leaky, over one more logit of 0, which is dropped."""
    if not leaky:
        return b.softmax(dim=1)
    return torch.cat((b, torch.zeros_like(b[:, :1])), dim=1).softmax(dim=1)[:, :-1]
