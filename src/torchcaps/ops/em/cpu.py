"""EM routing in compiled code, as operators that torch knows; the algebra is in ``ops/em/operator.py``."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.backends.dispatch import note_reference
from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.backends.native import SUFFIXES, load, why_not
from torchcaps.ops.em.operator import Settings, gradients, outputs, places, register, schemas
from torchcaps.ops.em.reference import route_map
from torchcaps.ops.em.settings import EMSettings
from torchcaps.ops.votes import Fields

#: The numbers of a vector that are compiled.
SIZE = 16
#: Numbers kept of a parent for the backward pass: of each iteration, and of the first one besides.
STATE, FIRST = 34, 16


_FORWARD, _BACKWARD = schemas(n_kept=1)


@torch.library.custom_op("torchcaps::em_routing_cpu", mutates_args=(), device_types="cpu", schema=_FORWARD)
def forward_op(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    stride: list[int],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Route tensors of one dtype, float32 or float64.

    An exported program may ask for it where nothing is compiled: there the reference computes the same, without
    gradients.

    Args:
        pose: ``[B, T, H, W, 4, 4]``, or vectors ``[B, T, H, W, 16]``. The other tensors are those of
            :func:`torchcaps.ops.conv_em_routing`.
        activation: ``[B, T, H, W]``.
        weight: ``[T, K_h, K_w, J, 4, 4]``, or ``[T, K_h, K_w, J, 16, 16]``.
        beta_u: ``[J]``.
        beta_a: ``[J]``.
        offset: ``[T, K_h, K_w, 4, 4]``, ``[T, K_h, K_w, 16]`` or None.
        stride: of rows and of columns.
        rest: :class:`~torchcaps.ops.em.operator.Settings` as packed, and ``return_coupling``.

    Returns:
        pose ``[B, J, H', W', 4, 4]`` or ``[B, J, H', W', 16]``, activation ``[B, J, H', W']``, coupling
        ``[B, H', W', T·K_h·K_w, J]`` or ``[0]`` unless asked for, and the parents' states
        ``[B, H', W', n_iters · STATE + FIRST, J]`` for the backward pass.
    """
    settings, return_coupling = Settings.unpack(*rest[:-1]), rest[-1]
    refuse_forward_derivative(pose, activation, weight, beta_u, beta_a, offset)
    results = _allocate(pose, weight, stride, settings.n_iters, return_coupling)
    mu, a, coupling, states = results
    if not a.numel():  # no images, or no parents
        return results
    if why_not(_library(pose)) is not None:
        _by_reference(results, (pose, activation, weight, beta_u, beta_a), offset, stride, settings, return_coupling)
        return results
    n, stride = _side_by_side(pose, stride)
    maps = [_as_one_map(x, n) for x in (pose, activation, mu, a)]
    given = *maps[:2], weight, beta_u, beta_a, offset
    # A tensor of inference mode never gets a gradient.
    kept = None if torch.is_inference_mode_enabled() else states
    _call("forward", stride, settings, *given, *maps[2:], kept, coupling if return_coupling else None)
    if n > 1:
        mu.copy_(_as_images(maps[2]))
        a.copy_(_as_images(maps[3]))
    return results


def _allocate(
    pose: Tensor, weight: Tensor, stride: list[int], n_iters: int, return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (pose.shape[0], *places(pose, weight, stride), n_iters * STATE + FIRST, weight.shape[3])
    mu, a, coupling, states = outputs(pose, weight, stride, return_coupling, shape)
    return mu, a, coupling, states


@torch.library.custom_op("torchcaps::em_routing_cpu_backward", mutates_args=(), device_types="cpu", schema=_BACKWARD)
def backward_op(
    d_mu: Tensor,
    d_a: Tensor,
    d_coupling: Tensor | None,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    states: Tensor,
    stride: list[int],
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward_op`: pose, activation, weight, beta_u and beta_a."""
    results = gradients(pose, activation, weight, beta_u, beta_a)
    if not d_a.numel():
        return tuple(x.zero_() for x in results)  # type: ignore[return-value]
    n, stride = _side_by_side(pose, stride)
    pose, activation, d_mu, d_a, d_pose, d_activation = (
        _as_one_map(x, n) for x in (pose, activation, d_mu, d_a, *results[:2])
    )
    given = pose, activation, weight, beta_u, beta_a, offset, states, d_mu, d_a, d_coupling
    _call("backward", stride, Settings.unpack(*settings), *given, d_pose, d_activation, *results[2:])
    if n > 1:
        results[0].copy_(_as_images(d_pose))
        results[1].copy_(_as_images(d_activation))
    return results


register(forward_op, backward_op, "cpu", _allocate)


def _library(pose: Tensor) -> str:
    return "em" if pose.dim() == 6 else "em_vectors"


def _by_reference(
    results: tuple[Tensor, ...],
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    offset: Tensor | None,
    stride: list[int],
    settings: Settings,
    return_coupling: bool,
) -> None:
    """Fill the results, without the states, which no gradient can be computed from here."""
    note_reference(str(why_not(_library(tensors[0]))))
    pose, _, weight, *_ = tensors
    fields = Fields(list(pose.shape[1:4]), list(weight.shape[1:3]), (stride[0], stride[1]))
    routed = route_map(*tensors, offset, fields, settings.n_iters, _GivenLambdas.of(settings), "full")
    for result, value in zip(results, routed[: 3 if return_coupling else 2]):
        if value is not None:
            result.copy_(value)
    results[3].fill_(torch.nan)


@dataclass(frozen=True)
class _GivenLambdas(EMSettings):
    """The settings that an operator was given, which has every λ by itself."""

    lambdas: tuple[float, ...] = ()

    def lambda_at(self, t: int) -> float:
        return self.lambdas[t]

    @classmethod
    def of(cls, settings: Settings) -> _GivenLambdas:
        return cls(
            compete="positions" if settings.compete_positions else "all",
            start="types" if settings.start_types else "parents",
            damping=settings.damping,
            variance_floor=settings.variance_floor,
            mass_floor=settings.mass_floor,
            cost_scale=settings.scale_variance,
            beta_u_scale=settings.scale_u,
            beta_a_scale=settings.scale_a,
            normalize=settings.ratio != 1.0,
            lambdas=tuple(settings.lambdas),
        )


class Sizes(ctypes.Structure):
    """``Sizes`` of problem.h: extents, then the choices in the order of :class:`Settings`."""

    _extents = ("B", "C", "H", "W", "Kh", "Kw", "J", "sh", "sw", "n_iters", "n_threads")
    _fields_ = tuple((name, ctypes.c_int64) for name in (*_extents, *Settings._fields[:3]))


class _Settings(ctypes.Structure):
    """``Settings`` of problem.h: the numbers of :class:`Settings` in their order."""

    _fields_ = tuple((name, ctypes.c_double) for name in Settings._fields[3:-1])


def _side_by_side(pose: Tensor, stride: list[int]) -> tuple[int, list[int]]:
    """Choose how many images of dense vectors become the places of one map, under a kernel of 1×1; and its stride.

    It is the same routing; but a row of weights, 16 times as long as that of matrices, comes from memory once for all
    of them. The number must not depend on that of threads, or results would.
    """
    if pose.dim() == 6 or pose.shape[2:4] != (1, 1):
        return 1, stride
    return max(n for n in range(1, 9) if pose.shape[0] % n == 0), [1, 1]


def _as_one_map(x: Tensor, n: int) -> Tensor:
    """Reshape ``[B, C, 1, 1, …]`` to ``[B / n, C, n, 1, …]``, a copy where n > 1."""
    return x if n == 1 else x.squeeze(3).unflatten(0, (-1, n)).transpose(1, 2).contiguous()


def _as_images(x: Tensor) -> Tensor:
    """Undo :func:`_as_one_map`."""
    return x.transpose(1, 2).flatten(0, 1).unsqueeze(3)


def _call(name: str, stride: list[int], settings: Settings, *tensors: Tensor | None) -> None:
    """Call ``<name>_<dtype>`` of the library; None is handed over as null."""
    kept = [None if x is None else x.contiguous() for x in tensors]
    pose, weight = kept[0], kept[2]
    assert pose is not None
    assert weight is not None
    extents = [*pose.shape[:4], *weight.shape[1:4], *stride, settings.n_iters]
    sizes = Sizes(*extents, torch.get_num_threads(), *settings[:3])
    numbers = _Settings(*settings[3:-1])
    lambdas = (ctypes.c_double * settings.n_iters)(*settings.lambdas)
    pointers = [ctypes.c_void_p() if x is None else ctypes.c_void_p(x.data_ptr()) for x in kept]
    library = load(_library(pose))
    function = getattr(library, f"{name}_{SUFFIXES[pose.dtype]}")
    if function(ctypes.byref(sizes), ctypes.byref(numbers), lambdas, *pointers):
        raise MemoryError(f"EM routing of sizes {extents} ran out of memory")
