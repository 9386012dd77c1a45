"""The moments of votes in compiled code, as operators that torch knows; the algebra is in ``moments.py``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from torchcaps.ops.backends.dispatch import note_reference
from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.backends.native import SUFFIXES, load, why_not
from torchcaps.ops.em.cpu import Sizes
from torchcaps.ops.variational_bayes.operator import BACKWARD, FORWARD, allocate, gradients, register
from torchcaps.ops.votes import Fields, matrix_votes

_LIBRARY = "variational_bayes"


@torch.library.custom_op("torchcaps::vote_moments_cpu", mutates_args=(), device_types="cpu", schema=FORWARD)
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
    """Compute what ``moments.py`` says; shares of ``[0]`` are none. Where nothing is compiled torch does the same."""
    given, shares = (pose, activation, weight, offset), (mean, precision, constant)
    refuse_forward_derivative(*given, *shares)
    results = allocate(pose, weight, stride, return_coupling)
    if not results[2].numel():  # no images, or no upper capsules
        return results
    reason = why_not(_LIBRARY)
    if reason is not None:
        note_reference(reason)
        known = shares if mean.numel() else None
        return _by_torch(
            pose, activation, weight, offset, (stride[0], stride[1]), known, return_coupling, prior, linear
        )
    coupling = results[3] if return_coupling else None
    _call("moments", stride, given, ((*shares, *results[:3]),), (coupling,), prior, linear)
    return results


@torch.library.custom_op("torchcaps::vote_moments_cpu_backward", mutates_args=(), device_types="cpu", schema=BACKWARD)
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
    shares = mean, precision, constant
    results = gradients(pose, activation, weight, *shares)
    if not mass.numel():
        return tuple(x.zero_() for x in results)  # type: ignore[return-value]
    states = (*shares, new_mean, None, mass), (None, None, None, d_mean, d_spread, d_mass), (*results[3:], *3 * [None])
    _call(
        "moments_backward",
        stride,
        (pose, activation, weight, offset),
        states,
        (d_coupling, *results[:3]),
        prior,
        linear,
    )
    return results


register(forward_op, backward_op, "cpu")


class _States(ctypes.Structure):
    """``States`` of moments.h."""

    _names = ("mean", "precision", "constant", "new_mean", "spread", "mass")
    _fields_ = tuple((name, ctypes.c_void_p) for name in _names)


def _call(
    name: str,
    stride: list[int],
    given: tuple[Tensor | None, ...],
    states: tuple[tuple[Tensor | None, ...], ...],
    rest: tuple[Tensor | None, ...],
    prior: float,
    linear: bool,
) -> None:
    """Call ``<name>_<dtype>`` of the library; None, and shares of nothing, are handed over as null."""
    states = tuple(tuple(None if x is None or not x.numel() else x for x in each) for each in states)
    kept = [[None if x is None else x.contiguous() for x in each] for each in (given, rest, *states)]
    pose, _, weight, _ = kept[0]
    assert pose is not None
    assert weight is not None
    extents = [*pose.shape[:4], *weight.shape[1:4], *stride, 1]
    sizes = Sizes(*extents, torch.get_num_threads(), compete_positions=False, start_types=True, last_only=False)
    tensors, more = ([ctypes.c_void_p(_address(x)) for x in each] for each in kept[:2])
    structures = [ctypes.byref(_States(*map(_address, each))) for each in kept[2:]]
    function = getattr(load(_LIBRARY), f"{name}_{SUFFIXES[pose.dtype]}")
    if function(ctypes.byref(sizes), *tensors, *structures, *more, ctypes.c_double(prior), ctypes.c_int32(linear)):
        raise MemoryError(f"routing of sizes {extents} ran out of memory")


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _by_torch(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    stride: tuple[int, int],
    shares: tuple[Tensor, Tensor, Tensor] | None,
    return_coupling: bool,
    prior: float,
    linear: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the moments of stored votes, without gradients."""
    fields = Fields(pose.shape[1:4], weight.shape[1:3], stride)
    votes = matrix_votes(fields.gather(pose), weight.flatten(0, 2))
    if offset is not None:
        votes = votes + offset.reshape(fields.n_children, 1, 4, 4)
    v = votes.flatten(4).permute(0, 1, 2, 4, 3)  # [B, P, N, 16, J]
    if shares is None:
        r = torch.full_like(v[:, :, :, 0], 1 / max(1, v.shape[4]))
    else:
        known, precision, constant = (x[:, :, None] for x in shares)
        terms = v if linear else (v - known).square() / -2
        logits = constant + (terms * precision).sum(dim=3)
        r = (logits - fields.logsumexp(logits.logsumexp(dim=3, keepdim=True))).exp()
    given = (r * fields.gather(activation)[..., None])[:, :, :, None]
    mass = prior + given.sum(dim=2)
    mean = (given * v).sum(dim=2) / mass
    spread = (given * (v - mean[:, :, None]).square()).sum(dim=2)
    coupling = r.unflatten(1, fields.places).contiguous() if return_coupling else pose.new_empty(0)
    return mean, spread, mass[:, :, 0], coupling
