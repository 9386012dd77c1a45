"""The moments of votes on CUDA devices, by the passes of EM routing: what differs is a few numbers of each parent.

The algebra is in ``moments.py`` and ``operator.py``, the records of the parents in ``ops/em/triton_tiles.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.em.passes import Passes, Sums
from torchcaps.ops.variational_bayes.operator import BACKWARD, FORWARD, allocate, gradients, register


class _Written(NamedTuple):
    """The numbers of a parent's record that are written here, ``[B, P, J, 16]`` or ``[B, P, J]``."""

    minus_mean: Tensor
    precision: Tensor
    constant: Tensor
    k: Tensor
    moved: Tensor

    @classmethod
    def of(cls, records: Tensor) -> _Written:
        """Find them in the records."""
        return cls(records[..., :16], records[..., 16:32], records[..., 32], records[..., 33], records[..., 36:52])


@torch.library.custom_op("torchcaps::vote_moments_triton", mutates_args=(), schema=FORWARD)
def forward_op(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    mean: Tensor,
    precision: Tensor,
    constant: Tensor,
    stride: list[int],
    return_coupling: bool,
    prior: float,
    linear: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute what ``moments.py`` says; shares of ``[0]`` are none."""
    refuse_forward_derivative(pose, activation, weight, offset, mean, precision, constant)
    results = new_mean, spread, mass, coupling = allocate(pose, weight, stride, return_coupling)
    if not mass.numel():
        return results
    passes, first = Passes.of(pose, activation, weight, offset, stride, False, True, linear=linear), not mean.numel()
    record = _Written.of(passes.records)
    if first:
        if return_coupling:
            coupling.copy_(passes.first_coupling(True))
        s0, s1, _ = _whole(passes.parents(first=True, around=False), squares=False)
        mass.copy_(prior + s0)
        at = s1 / mass[..., None]
        record.minus_mean.copy_(-at)
        squares = _whole(passes.parents(first=True)).s2
    else:
        _write_shares(record, mean, precision, constant, linear)
        passes.children()
        s0, s1, s2 = _whole(passes.parents(coupling=coupling if return_coupling else None))
        mass.copy_(prior + s0)
        moved = (s1 + prior * record.minus_mean) / mass[..., None]
        at = moved - record.minus_mean
        squares = s2 + moved * (moved * s0[..., None] - 2 * s1)
        if not linear:
            # Where the mean moved so far that the spread cancels, it is summed again around the new mean.
            lost = (s2 > 4 * squares).any(dim=-1)
            record.moved.copy_(moved)
            again = _whole(passes.parents(again=lost.to(torch.int32))).s2
            squares = torch.where(lost[..., None], again, squares)
    new_mean.copy_(at.transpose(2, 3))
    spread.copy_(squares.transpose(2, 3))
    return results


@torch.library.custom_op("torchcaps::vote_moments_triton_backward", mutates_args=(), schema=BACKWARD)
def backward_op(
    d_mean: Tensor,
    d_spread: Tensor,
    d_mass: Tensor,
    d_coupling: Tensor | None,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    mean: Tensor,
    precision: Tensor,
    constant: Tensor,
    new_mean: Tensor,
    mass: Tensor,
    stride: list[int],
    prior: float,
    linear: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward_op`: pose, activation, weight, mean, precision and constant."""
    results = gradients(pose, activation, weight, mean, precision, constant)
    if not mass.numel():
        return tuple(x.zero_() for x in results)  # type: ignore[return-value]
    passes = Passes.of(pose, activation, weight, offset, stride, False, True, backward=True, linear=linear)
    record, first = _Written.of(passes.records), not mean.numel()
    g2 = d_spread.transpose(2, 3)
    at = new_mean.transpose(2, 3)
    record.k.copy_(d_mass)
    passes.records[..., 52:68] = (d_mean.transpose(2, 3) - 2 * prior * at * g2) / mass[..., None]
    passes.records[..., 68:84] = g2
    d_pose, d_activation = torch.empty_like(passes.pose), torch.empty_like(passes.activation)
    d_weight = passes.pose.new_empty(passes.weight_parts()[0], *passes.weight[0].shape)
    if first:
        record.minus_mean.copy_(-at)
        passes.gradients(d_pose, d_activation, d_weight, first=True, types=True)
    else:
        d_coupling = None if d_coupling is None else d_coupling.contiguous()
        _write_shares(record, mean, precision, constant, linear)
        record.moved.copy_(at + record.minus_mean)
        passes.children(backward=True, d_coupling=d_coupling)
        passes.gradients(d_pose, d_activation, d_weight, d_coupling=d_coupling)
        s0, s1, s2 = _whole(passes.parents(backward=True, d_coupling=d_coupling))
        results[3].copy_(((record.precision * s1) * (not linear)).transpose(2, 3))
        results[4].copy_((s1 if linear else s2 / -2).transpose(2, 3))
        results[5].copy_(s0)
    d_kernels = d_weight.sum(dim=0).permute(3, 0, 1, 2, 4).unflatten(1, weight.shape[1:3])
    computed = d_pose.permute(0, 4, 1, 2, 3, 5), d_activation.permute(0, 3, 1, 2), d_kernels
    for to, x in zip(results, computed, strict=False):
        to.copy_(x.reshape(to.shape))
    return results


register(forward_op, backward_op, "triton")


def _write_shares(record: _Written, mean: Tensor, precision: Tensor, constant: Tensor, linear: bool) -> None:
    record.minus_mean.copy_(mean.transpose(2, 3) * (0 if linear else -1))
    record.precision.copy_(precision.transpose(2, 3))
    record.constant.copy_(constant)


def _whole(sums: Sums, *, squares: bool = True) -> Sums:
    """Add the parts of each sum."""
    return Sums(sums.s0.sum(dim=0), sums.s1.sum(dim=0), sums.s2.sum(dim=0) if squares else sums.s2)
