"""Votes that are weighted by their agreement with the sum of all votes for a capsule, in compiled code on CPUs.

With votes û_ij = u_i W_ij, their sums S_j = Σ_k û_kj, and agreements a_ij = û_ij · S_j,

    s_j = Σ_i c_ij û_ij,    c_ij = softmax_j(a_ij / √d) + B_ij,    or softmax_i(a_ij / max(‖û_ij‖², ε)).

With α_ij and β_ij the derivatives of the loss by a_ij and by ‖û_ij‖², that by a vote is

    dû_ij = c_ij ds_j + α_ij S_j + Σ_k α_kj û_kj + 2 β_ij û_ij.

Votes are made by products of matrices, for some images and upper capsules at a time, and anew in the backward pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from torchcaps.ops.backends.native import SUFFIXES, load, takes
from torchcaps.ops.backends.tracing import of_many_outputs
from torchcaps.ops.precision import without_autocast
from torchcaps.ops.units import LARGE

_LIBRARY = "agreement"
#: Numbers of votes that are made at once: about what a core has in its second cache.
_AT_ONCE = 2**19
#: Zeros make images a multiple of it: what the widest vectors hold.
_LANES = 16
#: Images at once, at most. A power of 2 would put the numbers of a vote into few lines of a cache.
_IMAGES = 15 * _LANES


class Rule(NamedTuple):
    """Hold what shares follow from.

    Attributes:
        over_lower: the softmax is over lower capsules, of agreements per square; else over upper ones.
        constant: ε, or 1/√d.
        plain: computes s ``[B, J, d_out]`` and c ``[B, I, J]`` in plain PyTorch, from u, W and B.
    """

    over_lower: bool
    constant: float
    plain: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def by_agreement(u: Tensor, weight: Tensor, prior: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """Weigh votes by their agreement: in compiled code where that is right, elsewhere as the rule says.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: W, ``[I, J, d_in, d_out]``, of the same dtype.
        prior: B, ``[I, J]``, of the same dtype; None for 0.
        rule: what shares follow from.

    Returns:
        s ``[B, J, d_out]`` and c ``[B, I, J]``.
    """
    if not _is_compiled(u, weight, prior):
        return rule.plain(u, weight, prior)
    made = _ByAgreement.apply(u, weight, prior, rule)
    assert isinstance(made, tuple)
    return made


def _is_compiled(u: Tensor, weight: Tensor, prior: Tensor | None) -> bool:
    if not takes(_LIBRARY, u, weight, *(() if prior is None else (prior,))):
        return False
    largest = [float(x.detach().abs().amax()) for x in (u, weight)]
    return largest[0] * largest[1] * u.shape[2] <= LARGE  # else votes may be large, or no numbers


class _ByAgreement(Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, weight: Tensor, prior: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        n_in, n_out, _, d_out = weight.shape
        s, c = u.new_empty(len(u), n_out, d_out), u.new_empty(len(u), n_in, n_out)
        lower, kernels = _lanes_last(u), _side_by_side(weight)
        for images, upper in _parts(u, weight, rule):
            votes = _votes(lower[..., images], kernels[:, :, upper])
            shares, sums = votes.new_empty(n_in, *votes.shape[1::2]), votes.new_empty(votes.shape[1:])
            _call(rule, votes, None if prior is None else prior[:, upper], shares, sums, None)
            _put(sums, s[images, upper])
            _put(shares, c[images, :, upper])
        ctx.save_for_backward(u, weight, prior, c)
        ctx.rule = rule
        return s, c

    @staticmethod
    def backward(ctx: Any, ds: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        u, weight, prior, c = ctx.saved_tensors
        rule = ctx.rule
        if torch.is_grad_enabled() or of_many_outputs(ds, dc):  # with derivatives of its own, or of many at once
            return *_by_torch((u, weight, prior), rule, (ds, dc)), None
        with without_autocast(u):
            lower, kernels = _lanes_last(u), _side_by_side(weight)
            d_lower, d_kernels = torch.zeros_like(lower), torch.zeros_like(kernels)
            d_prior = None if prior is None else torch.zeros_like(prior)
            for images, upper in _parts(u, weight, rule):
                x, w = lower[..., images], kernels[:, :, upper]
                d_votes = _votes(x, w)
                given = (_lanes_last(y) for y in (c[images, :, upper], ds[images, upper], dc[images, :, upper]))
                shares, sums, d_shares = given
                _call(rule, d_votes, None if prior is None else prior[:, upper], shares, sums, d_shares)
                if d_prior is not None:
                    d_prior[:, upper] += d_shares.sum(dim=2)
                d = d_votes.flatten(1, 2)
                d_lower[..., images].baddbmm_(w.flatten(2), d)
                d_kernels[:, :, upper] += (x @ d.mT).view(w.shape)
        return d_lower[..., : len(u)].permute(2, 0, 1), d_kernels.transpose(1, 2), d_prior, None


def _by_torch(given: tuple[Tensor | None, ...], rule: Rule, slopes: tuple[Tensor, Tensor]) -> list[Tensor | None]:
    """Differentiate what plain PyTorch computes, so that the derivatives have derivatives."""
    with torch.enable_grad():
        leaves = [x if x is None or x.requires_grad else x.detach().requires_grad_() for x in given]
        made = rule.plain(*leaves)  # type: ignore[arg-type]
        wanted = [x for x in leaves if x is not None]
        found = iter(torch.autograd.grad(made, wanted, slopes, create_graph=True, allow_unused=True))
    return [None if x is None else next(found) for x in leaves]


def _lanes_last(x: Tensor) -> Tensor:
    """Lay images ``[B, M, N]`` out as ``[M, N, B]``, with zeros behind them."""
    return F.pad(x.permute(1, 2, 0), (0, -x.shape[0] % _LANES)).contiguous()


def _put(x: Tensor, to: Tensor) -> None:
    """Write ``[M, N, B]`` to ``[B, M, N]``, without what is behind the images."""
    to.copy_(x[..., : to.shape[0]].permute(2, 0, 1))


def _side_by_side(weight: Tensor) -> Tensor:
    """Lay matrices out as ``[I, d_in, J, d_out]``: those of a lower capsule are one."""
    return weight.transpose(1, 2).contiguous()


def _votes(lower: Tensor, kernels: Tensor) -> Tensor:
    """Make votes ``[I, J, d_out, B]``."""
    return (kernels.flatten(2).mT @ lower).unflatten(1, kernels.shape[2:])


def _parts(u: Tensor, weight: Tensor, rule: Rule) -> Iterator[tuple[slice, slice]]:
    """Cut images, and upper capsules that do not compete, so that few votes are made at once."""
    n_in, n_out, _, d_out = weight.shape
    least = 1 if rule.over_lower else n_out
    n_images = min(_IMAGES, max(1, _AT_ONCE // (n_in * d_out * least * _LANES)) * _LANES)
    n_upper = max(least, _AT_ONCE // (n_in * d_out * min(n_images, u.shape[0])))
    for image in range(0, u.shape[0], n_images):
        for upper in range(0, n_out, n_upper):
            yield slice(image, image + n_images), slice(upper, upper + n_upper)


def _call(
    rule: Rule, votes: Tensor, prior: Tensor | None, shares: Tensor, sums: Tensor, d_shares: Tensor | None
) -> None:
    """Write shares and sums; or the gradients of votes over these, where that of the shares is given."""
    prior = None if prior is None else prior.contiguous()
    sizes = *votes.shape, rule.over_lower
    given = (None if x is None else x.data_ptr() for x in (votes, prior, shares, sums, d_shares))
    function = getattr(load(_LIBRARY), f"agreement_{SUFFIXES[votes.dtype]}")
    settings = ctypes.c_double(rule.constant), ctypes.c_int64(torch.get_num_threads())
    if function(*map(ctypes.c_int64, sizes), *settings, *map(ctypes.c_void_p, given)):
        raise MemoryError(f"votes of sizes {list(votes.shape)} ran out of memory")
