"""EM routing in compiled code, as operators that torch knows; the algebra is in ``ops/fused/em.py``."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.fused.cpu.library import SUFFIXES, load
from torchcaps.ops.fused.em_operator import Numbers, gradients, outputs, places, register
from torchcaps.ops.fused.operators import refuse_forward_derivative

#: The numbers of a vector that are compiled.
SIZE = 16
#: Numbers kept of a parent for the backward pass: of each iteration, and of the first one besides.
STATE, FIRST = 34, 16


@torch.library.custom_op("torchcaps::em_routing_cpu", mutates_args=(), device_types="cpu")
def routed(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    stride: list[int],
    choices: list[bool],
    numbers: list[float],
    return_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """EM routing of tensors of one dtype, float32 or float64.

    Args:
        pose: ``[B, T, H, W, 4, 4]``, or vectors ``[B, T, H, W, 16]``. The others are those of
            :func:`torchcaps.ops.conv_em_routing`.
        choices: whether positions compete, whether R starts at 1 over the number of types, whether the gradient
            is that of the last iteration only.
        numbers: :class:`~torchcaps.ops.fused.em_operator.Numbers`, and λ of every iteration.

    Returns:
        pose ``[B, J, H', W', 4, 4]`` or ``[B, J, H', W', 16]``, activation ``[B, J, H', W']``, coupling
        ``[B, H', W', T·K_h·K_w, J]`` or ``[0]`` unless asked for, and the parents' states
        ``[B, H', W', n_iters · STATE + FIRST, J]`` for the backward pass.
    """
    refuse_forward_derivative(pose, activation, weight, beta_u, beta_a, offset)
    made = _made(pose, weight, stride, numbers, return_coupling)
    mu, a, coupling, states = made
    if not a.numel():  # no images, or no parents
        return made
    given = pose, activation, weight, beta_u, beta_a, offset
    _call("forward", stride, choices, numbers, *given, mu, a, states, coupling if return_coupling else None)
    return made


def library_for(*, matrices: bool) -> str:
    """Which library routes such poses: each has its own, as either takes a while to compile."""
    return "em" if matrices else "em_vectors"


def _made(
    pose: Tensor, weight: Tensor, stride: list[int], numbers: list[float], return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kept = (len(numbers) - len(Numbers._fields)) * STATE + FIRST
    shape = (pose.shape[0], *places(pose, weight, stride), kept, weight.shape[3])
    mu, a, coupling, states = outputs(pose, weight, stride, return_coupling, shape)
    return mu, a, coupling, states


@torch.library.custom_op("torchcaps::em_routing_cpu_backward", mutates_args=(), device_types="cpu")
def routed_backward(
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
    choices: list[bool],
    numbers: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of :func:`routed`: pose, activation, weight, beta_u and beta_a."""
    given = pose, activation, weight, beta_u, beta_a
    made = gradients(*given)
    if not d_a.numel():
        return tuple(x.zero_() for x in made)  # type: ignore[return-value]
    _call("backward", stride, choices, numbers, *given, offset, states, d_mu, d_a, d_coupling, *made)
    return made


register(routed, routed_backward, "cpu", _made)


def _call(name: str, stride: list[int], choices: list[bool], numbers: list[float], *tensors: Tensor | None) -> None:
    """Call ``<name>_<dtype>`` of the library; None is handed over as null."""
    kept = [None if x is None else x.contiguous() for x in tensors]
    pose, weight = kept[0], kept[2]
    assert pose is not None
    assert weight is not None
    sizes = [*pose.shape[:4], *weight.shape[1:4], *stride, len(numbers) - len(Numbers._fields)]
    integers = [*sizes, *map(int, choices), torch.get_num_threads()]
    arguments: list[Any] = [(ctypes.c_int64 * len(integers))(*integers), (ctypes.c_double * len(numbers))(*numbers)]
    arguments += [ctypes.c_void_p() if x is None else ctypes.c_void_p(x.data_ptr()) for x in kept]
    library = load(library_for(matrices=pose.dim() == 6))
    if getattr(library, f"{name}_{SUFFIXES[pose.dtype]}")(*arguments):
        raise MemoryError(f"EM routing of sizes {sizes} ran out of memory")
