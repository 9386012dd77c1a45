"""The moments of votes in compiled code, as operators that torch knows; the algebra is in ``moments.py``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from torchcaps.ops.backends.dispatch import note_reference
from torchcaps.ops.backends.native import SUFFIXES, load, why_not
from torchcaps.ops.em.cpu import Sizes
from torchcaps.ops.variational_bayes.operator import Given, Gradients, Results, Slopes, operator
from torchcaps.ops.votes import Fields, matrix_votes

_LIBRARY = "variational_bayes"


def _forward(given: Given, results: Results) -> None:
    """Compute the moments; where nothing is compiled torch does the same, for a program that was exported elsewhere."""
    reason = why_not(_LIBRARY)
    if reason is not None:
        note_reference(reason)
        for to, x in zip(results, _by_torch(given), strict=True):
            if to.numel():
                to.copy_(x)
        return
    coupling = results.coupling if results.coupling.numel() else None
    _call("moments", given, ((*_shares(given), *results[:3]),), (coupling,))


def _backward(given: Given, slopes: Slopes, gradients: Gradients) -> None:
    states = (
        (*_shares(given), slopes.new_mean, None, slopes.new_mass),
        (None, None, None, slopes.mean, slopes.spread, slopes.mass),
        (*gradients[3:], None, None, None),
    )
    _call("moments_backward", given, states, (slopes.coupling, *gradients[:3]))


forward_op = operator("cpu", _forward, _backward, "cpu")


def _shares(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    return given.mean, given.precision, given.constant


class _States(ctypes.Structure):
    """``States`` of moments.h."""

    _names = ("mean", "precision", "constant", "new_mean", "spread", "mass")
    _fields_ = tuple((name, ctypes.c_void_p) for name in _names)


def _call(
    name: str, given: Given, states: tuple[tuple[Tensor | None, ...], ...], rest: tuple[Tensor | None, ...]
) -> None:
    """Call ``<name>_<dtype>`` of the library; None, and shares of nothing, are handed over as null."""
    tensors = given.pose, given.activation, given.weight, given.offset
    states = tuple(tuple(None if x is None or not x.numel() else x for x in each) for each in states)
    kept = [[None if x is None else x.contiguous() for x in each] for each in (tensors, rest, *states)]
    extents = [*given.pose.shape[:4], *given.weight.shape[1:4], *given.stride, 1]
    sizes = Sizes(*extents, torch.get_num_threads(), compete_positions=False, start_types=True, last_only=False)
    read, more = ([ctypes.c_void_p(_address(x)) for x in each] for each in kept[:2])
    structures = [ctypes.byref(_States(*map(_address, each))) for each in kept[2:]]
    function = getattr(load(_LIBRARY), f"{name}_{SUFFIXES[given.pose.dtype]}")
    settings = ctypes.c_double(given.prior), ctypes.c_int32(given.linear)
    if function(ctypes.byref(sizes), *read, *structures, *more, *settings):
        raise MemoryError(f"routing of sizes {extents} ran out of memory")


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _by_torch(given: Given) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the moments of stored votes, without gradients."""
    pose, activation, weight, offset = given[:4]
    fields = Fields(pose.shape[1:4], weight.shape[1:3], (given.stride[0], given.stride[1]))
    votes = matrix_votes(fields.gather(pose), weight.flatten(0, 2))
    if offset is not None:
        votes = votes + offset.reshape(fields.n_children, 1, 4, 4)
    v = votes.flatten(4).permute(0, 1, 2, 4, 3)  # [B, P, N, 16, J]
    if given.first:
        r = torch.full_like(v[:, :, :, 0], 1 / max(1, v.shape[4]))
    else:
        known, precision, constant = (x[:, :, None] for x in _shares(given))
        terms = v if given.linear else (v - known).square() / -2
        logits = constant + (terms * precision).sum(dim=3)
        r = (logits - fields.logsumexp(logits.logsumexp(dim=3, keepdim=True))).exp()
    used = (r * fields.gather(activation)[..., None])[:, :, :, None]
    mass = given.prior + used.sum(dim=2)
    mean = (used * v).sum(dim=2) / mass
    spread = (used * (v - mean[:, :, None]).square()).sum(dim=2)
    return mean, spread, mass[:, :, 0], r.unflatten(1, fields.places)
