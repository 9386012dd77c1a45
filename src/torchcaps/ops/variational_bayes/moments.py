"""The moments of the votes for each upper capsule, in compiled code: what a mixture of Gaussians is fitted by.

With V_ij = M_i W_ij, the shares of a lower capsule i among all upper ones j that see it, wherever they stand, are

    R_ij = softmax_j(c_j − ½ Σ_h p_jh (V_ijh − m_jh)²),    or 1/J at first, and r_ij = R_ij a_i.

Beside a prior, a vote of 0 that counts so much, the next state is

    mass_j = prior + Σ_i r_ij,    mean_j = Σ_i r_ij V_ij / mass_j,    spread_j = Σ_i r_ij (V_ij − mean_j)².

Votes are never stored. What follows from the moments is a few numbers of each upper capsule, and left to torch.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.backends.dispatch import note_reference
from torchcaps.ops.backends.errors import refuse_forward_derivative, refuse_second_derivative
from torchcaps.ops.backends.native import SUFFIXES, load, why_not
from torchcaps.ops.em.cpu import Sizes
from torchcaps.ops.em.operator import places
from torchcaps.ops.votes import Fields, matrix_votes

_LIBRARY = "variational_bayes"
_GIVEN = "Tensor pose, Tensor activation, Tensor weight, Tensor? offset, Tensor mean, Tensor precision, Tensor constant"


class Moments(NamedTuple):
    """Hold mean and spread ``[B, P, 16, J]``, and mass ``[B, P, J]``, of the votes for upper capsules at P places."""

    mean: Tensor
    spread: Tensor
    mass: Tensor


class Shares(NamedTuple):
    """Hold what shares follow from: m and p ``[B, P, 16, J]``, and c ``[B, P, J]``."""

    mean: Tensor
    precision: Tensor
    constant: Tensor


def moments(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    stride: tuple[int, int],
    shares: Shares | None,
    return_coupling: bool = False,
    *,
    prior: float = 1.0,
) -> tuple[Moments, Tensor]:
    """Compute the moments of votes, of tensors of one dtype, float32 or float64.

    Args:
        pose: M, ``[B, T, H, W, 4, 4]``.
        activation: a, ``[B, T, H, W]``.
        weight: W, ``[T, K_h, K_w, J, 4, 4]``.
        offset: added to the votes, ``[T, K_h, K_w, 4, 4]`` or None; it gets no gradient.
        stride: of rows and of columns.
        shares: what the shares follow from; None where they are 1/J.
        return_coupling: return the shares, too.
        prior: what the vote of 0 counts, above 0.

    Returns:
        The moments, and R ``[B, H', W', T·K_h·K_w, J]``, or ``[0]`` unless asked for.
    """
    known = shares or Shares(*(pose.new_empty(0) for _ in Shares._fields))
    *found, coupling = forward_op(pose, activation, weight, offset, *known, list(stride), return_coupling, prior)
    return Moments(*found), coupling


@torch.library.custom_op(
    "torchcaps::vote_moments_cpu",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_GIVEN}, SymInt[] stride, bool return_coupling, float prior) -> (Tensor, Tensor, Tensor, Tensor)",
)
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`moments`; shares of ``[0]`` are none. Where nothing is compiled torch computes the same."""
    given, shares = (pose, activation, weight, offset), (mean, precision, constant)
    refuse_forward_derivative(*given, *shares)
    results = _allocate(pose, weight, stride, return_coupling)
    if not results[2].numel():  # no images, or no upper capsules
        return results
    reason = why_not(_LIBRARY)
    if reason is not None:
        note_reference(reason)
        known = Shares(*shares) if mean.numel() else None
        return _by_torch(pose, activation, weight, offset, (stride[0], stride[1]), known, return_coupling, prior)
    coupling = results[3] if return_coupling else None
    _call("moments", stride, given, ((*shares, *results[:3]),), (coupling,), prior)
    return results


def _allocate(
    pose: Tensor, weight: Tensor, stride: list[int], return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate the results of :func:`forward_op`."""
    upper, n_out = places(pose, weight, stride), weight.shape[3]
    mass = pose.shape[0], upper[0] * upper[1], n_out
    state = *mass[:2], 16, n_out
    n_children = weight.shape[0] * weight.shape[1] * weight.shape[2]
    coupling = (pose.shape[0], *upper, n_children, n_out) if return_coupling else (0,)
    return pose.new_empty(state), pose.new_empty(state), pose.new_empty(mass), pose.new_empty(coupling)


@torch.library.custom_op(
    "torchcaps::vote_moments_cpu_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor d_mean, Tensor d_spread, Tensor d_mass, Tensor? d_coupling, {_GIVEN}, Tensor new_mean, "
    "Tensor mass, SymInt[] stride, float prior) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward_op`: pose, activation, weight, mean, precision and constant."""
    shares = mean, precision, constant
    results = _gradients(pose, activation, weight, *shares)
    if not mass.numel():
        return tuple(x.zero_() for x in results)  # type: ignore[return-value]
    states = (*shares, new_mean, None, mass), (None, None, None, d_mean, d_spread, d_mass), (*results[3:], *3 * [None])
    _call("moments_backward", stride, (pose, activation, weight, offset), states, (d_coupling, *results[:3]), prior)
    return results


def _gradients(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Allocate a gradient of each tensor, contiguous whatever that is."""
    pose, activation, weight, *shares = (x.new_empty(x.shape) for x in tensors)
    mean, precision, constant = shares
    return pose, activation, weight, mean, precision, constant


@forward_op.register_fake
def _(
    pose: Tensor, _a: Any, weight: Tensor, _o: Any, _m: Any, _p: Any, _c: Any, stride: Any, coupling: Any, _: Any
) -> Any:
    return _allocate(pose, weight, stride, coupling)


@backward_op.register_fake
def _(_dm: Any, _ds: Any, _dn: Any, _dc: Any, pose: Tensor, a: Tensor, w: Tensor, _o: Any, *rest: Any) -> Any:
    return _gradients(pose, a, w, *rest[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.stride, ctx.return_coupling, ctx.prior = inputs
    ctx.save_for_backward(*tensors, output[0], output[2])


def _differentiate(ctx: Any, d_mean: Tensor, d_spread: Tensor, d_mass: Tensor, d_coupling: Tensor) -> tuple[Any, ...]:
    asked = d_coupling if ctx.return_coupling else None  # else one of shape [0]
    d_pose, d_a, d_weight, *d_shares = backward_op(
        d_mean, d_spread, d_mass, asked, *ctx.saved_tensors, ctx.stride, ctx.prior
    )
    return d_pose, d_a, d_weight, None, *d_shares, None, None, None


forward_op.register_autograd(_differentiate, setup_context=_keep)
refuse_second_derivative(backward_op, "cpu")


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
    if function(ctypes.byref(sizes), *tensors, *structures, *more, ctypes.c_double(prior)):
        raise MemoryError(f"routing of sizes {extents} ran out of memory")


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _by_torch(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    stride: tuple[int, int],
    shares: Shares | None,
    return_coupling: bool,
    prior: float,
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
        distance = ((v - shares.mean[:, :, None]).square() * shares.precision[:, :, None]).sum(dim=3)
        logits = shares.constant[:, :, None] - distance / 2
        r = (logits - fields.logsumexp(logits.logsumexp(dim=3, keepdim=True))).exp()
    given = (r * fields.gather(activation)[..., None])[:, :, :, None]
    mass = prior + given.sum(dim=2)
    mean = (given * v).sum(dim=2) / mass
    spread = (given * (v - mean[:, :, None]).square()).sum(dim=2)
    coupling = r.unflatten(1, fields.places).contiguous() if return_coupling else pose.new_empty(0)
    return mean, spread, mass[:, :, 0], coupling
