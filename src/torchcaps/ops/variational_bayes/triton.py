"""The moments of votes on CUDA devices, by the passes of EM routing: what differs is a few numbers of each parent.

The algebra is in ``moments.py`` and ``operator.py``, the records of the parents in ``ops/em/triton_tiles.py``.
"""

from __future__ import annotations

import torch

from torchcaps.ops.em.passes import Passes, Sums
from torchcaps.ops.variational_bayes.operator import Given, Gradients, Results, Slopes, operator

#: Where the numbers of a parent's record lie that are written here.
_MINUS_MEAN, _PRECISION, _CONSTANT, _K = slice(16), slice(16, 32), 32, 33
_MOVED, _G1, _G2 = slice(36, 52), slice(52, 68), slice(68, 84)


def _forward(given: Given, results: Results) -> None:
    passes = _passes(given)
    record, asked = passes.records, results.coupling if results.coupling.numel() else None
    if given.first:
        if asked is not None:
            asked.copy_(passes.first_coupling(True))
        s0, s1, _ = _whole(passes.parents(first=True, around=False), squares=False)
        mass = given.prior + s0
        mean = s1 / mass[..., None]
        record[..., _MINUS_MEAN] = -mean
        squares = _whole(passes.parents(first=True)).s2
    else:
        passes.children()
        s0, s1, s2 = _whole(passes.parents(coupling=asked))
        mass = given.prior + s0
        moved = (s1 + given.prior * record[..., _MINUS_MEAN]) / mass[..., None]
        mean = moved - record[..., _MINUS_MEAN]
        squares = s2 + moved * (moved * s0[..., None] - 2 * s1)
        if not given.linear:
            # Where the mean moved so far that the spread cancels, it is summed again around the new mean.
            lost = (s2 > 4 * squares).any(dim=-1)
            record[..., _MOVED] = moved
            again = _whole(passes.parents(again=lost.to(torch.int32))).s2
            squares = torch.where(lost[..., None], again, squares)
    results.mean.copy_(mean.transpose(2, 3))
    results.spread.copy_(squares.transpose(2, 3))
    results.mass.copy_(mass)


def _backward(given: Given, slopes: Slopes, gradients: Gradients) -> None:
    passes = _passes(given, backward=True)
    record, g2, mean = passes.records, slopes.spread.transpose(2, 3), slopes.new_mean.transpose(2, 3)
    record[..., _K] = slopes.mass
    record[..., _G1] = (slopes.mean.transpose(2, 3) - 2 * given.prior * mean * g2) / slopes.new_mass[..., None]
    record[..., _G2] = g2
    d_pose, d_activation = torch.empty_like(passes.pose), torch.empty_like(passes.activation)
    d_weight = passes.pose.new_empty(passes.weight_parts()[0], *passes.weight[0].shape)
    if given.first:
        record[..., _MINUS_MEAN] = -mean
        passes.gradients(d_pose, d_activation, d_weight, first=True, types=True)
    else:
        asked = None if slopes.coupling is None else slopes.coupling.contiguous()
        record[..., _MOVED] = mean + record[..., _MINUS_MEAN]
        passes.children(backward=True, d_coupling=asked)
        passes.gradients(d_pose, d_activation, d_weight, d_coupling=asked)
        s0, s1, s2 = _whole(passes.parents(backward=True, d_coupling=asked))
        d_mean = torch.zeros_like(s1) if given.linear else record[..., _PRECISION] * s1
        gradients.mean.copy_(d_mean.transpose(2, 3))
        gradients.precision.copy_((s1 if given.linear else s2 / -2).transpose(2, 3))
        gradients.constant.copy_(s0)
    d_kernels = d_weight.sum(dim=0).permute(3, 0, 1, 2, 4).reshape(gradients.weight.shape)
    gradients.pose.copy_(d_pose.permute(0, 4, 1, 2, 3, 5))
    gradients.activation.copy_(d_activation.permute(0, 3, 1, 2))
    gradients.weight.copy_(d_kernels)


forward_op = operator("triton", _forward, _backward)


def _passes(given: Given, *, backward: bool = False) -> Passes:
    """Lay out what is given, with the shares in the records."""
    kept = given.pose, given.activation, given.weight, given.offset, given.stride
    passes = Passes.of(*kept, False, True, backward=backward, linear=given.linear)
    if not given.first:
        record = passes.records
        record[..., _MINUS_MEAN] = 0 if given.linear else -given.mean.transpose(2, 3)
        record[..., _PRECISION] = given.precision.transpose(2, 3)
        record[..., _CONSTANT] = given.constant
    return passes


def _whole(sums: Sums, *, squares: bool = True) -> Sums:
    """Add the parts of each sum."""
    return Sums(sums.s0.sum(dim=0), sums.s1.sum(dim=0), sums.s2.sum(dim=0) if squares else sums.s2)
