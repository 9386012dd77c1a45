"""Dynamic routing in compiled code, as operators that torch knows; the algebra is in ``ops/dynamic/operator.py``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from torchcaps.ops.backends.dispatch import note_reference
from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.backends.native import SUFFIXES, load, why_not
from torchcaps.ops.dynamic.operator import gradients, outputs, register
from torchcaps.ops.dynamic.reference import route
from torchcaps.ops.votes import dense_votes

#: Tensors of the pose's size that are kept of each iteration: the weighted sums.
KEPT = 1


@torch.library.custom_op("torchcaps::dynamic_routing_cpu", mutates_args=(), device_types="cpu")
def forward_op(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    b0: Tensor | None,
    n_iters: int,
    leaky: bool,
    full: bool,  # noqa: ARG001 (for the backward pass)
    return_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Route tensors of one dtype, float32 or float64.

    An exported program may ask for it where nothing is compiled: there the reference computes the same, without
    gradients.

    Arguments are those of :func:`torchcaps.ops.dynamic_routing`; ``full`` says whether its gradient is "full".

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]``, coupling ``[B, I, J]`` or ``[0]`` unless asked for,
        and the weighted sums of all iterations ``[1, n_iters, B, J, d_out]``, which the backward pass needs.
    """
    refuse_forward_derivative(u, weight, bias, b0)
    made = outputs(u, weight, n_iters, return_coupling, KEPT)
    pose, activation, coupling, states = made
    if why_not("dynamic") is not None:
        _by_reference(made, u, weight, bias, b0, n_iters, leaky, return_coupling)
        return made
    asked = coupling if return_coupling else None
    _call("forward", u, weight, n_iters, leaky, u, weight, bias, b0, states, pose, activation, asked)
    return made


@torch.library.custom_op("torchcaps::dynamic_routing_cpu_backward", mutates_args=(), device_types="cpu")
def backward_op(
    d_pose: Tensor,
    d_activation: Tensor,
    d_coupling: Tensor | None,
    u: Tensor,
    weight: Tensor,
    b0: Tensor | None,
    states: Tensor,
    leaky: bool,
    full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward_op`: u, weight, bias and b0, the last ``[0]`` where there is none."""
    made = gradients(u, weight, b0)
    given = u, weight, b0, states, d_pose, d_activation, d_coupling
    d_b0 = None if b0 is None else made[3]
    _call("backward", u, weight, states.shape[1], leaky, *given, full, *made[:3], d_b0)
    return made


register(forward_op, backward_op, "cpu", KEPT)


def _by_reference(
    made: tuple[Tensor, ...],
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    b0: Tensor | None,
    n_iters: int,
    leaky: bool,
    return_coupling: bool,
) -> None:
    """Fill the results, without the states, which no gradient can be computed from here."""
    note_reference(str(why_not("dynamic")))
    routed = route(dense_votes(u, weight), n_iters, bias, b0, leaky, "full")
    for result, value in zip(made, routed[: 3 if return_coupling else 2]):
        if value is not None:
            result.copy_(value)
    made[3].fill_(torch.nan)


def _call(name: str, u: Tensor, weight: Tensor, n_iters: int, leaky: bool, *values: Tensor | bool | None) -> None:
    """Call ``<name>_<dtype>`` of the library; tensors are handed over as pointers, None as null."""
    sizes = [*u.shape[:2], *weight.shape[1:], n_iters]
    arguments = [*map(ctypes.c_int64, sizes), ctypes.c_int32(leaky), ctypes.c_int64(torch.get_num_threads())]
    kept = [value.contiguous() if isinstance(value, Tensor) else value for value in values]
    for value in kept:
        if isinstance(value, Tensor):
            arguments.append(ctypes.c_void_p(value.data_ptr()))
        else:
            arguments.append(ctypes.c_void_p() if value is None else ctypes.c_int32(value))
    if getattr(load("dynamic"), f"{name}_{SUFFIXES[u.dtype]}")(*arguments):
        raise MemoryError(f"dynamic routing of sizes {sizes} ran out of memory")
