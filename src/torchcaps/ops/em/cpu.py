"""EM routing in compiled code, as operators that torch knows; the algebra is in ``ops/em/operator.py``."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.backends.native import SUFFIXES, load
from torchcaps.ops.em.operator import Numbers, gradients, outputs, places, register

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
        numbers: :class:`~torchcaps.ops.em.operator.Numbers`, and λ of every iteration.

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
    n, stride = _side_by_side(pose, stride)
    maps = [_as_one_map(x, n) for x in (pose, activation, mu, a)]
    given = *maps[:2], weight, beta_u, beta_a, offset
    _call("forward", stride, choices, numbers, *given, *maps[2:], states, coupling if return_coupling else None)
    if n > 1:
        mu.copy_(_as_images(maps[2]))
        a.copy_(_as_images(maps[3]))
    return made


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
    n, stride = _side_by_side(pose, stride)
    pose, activation, d_mu, d_a, d_pose, d_activation = (
        _as_one_map(x, n) for x in (pose, activation, d_mu, d_a, *made[:2])
    )
    found = d_pose, d_activation, *made[2:]
    rest = weight, beta_u, beta_a, offset, states, d_mu, d_a, d_coupling
    _call("backward", stride, choices, numbers, pose, activation, *rest, *found)
    if n > 1:
        made[0].copy_(_as_images(d_pose))
        made[1].copy_(_as_images(d_activation))
    return made


register(routed, routed_backward, "cpu", _made)


def _side_by_side(pose: Tensor, stride: list[int]) -> tuple[int, list[int]]:
    """How many images of dense vectors are routed as the places of one map, under a kernel of 1×1; and its stride.

    It is the same routing; but a row of weights, 16 times as long as that of matrices, comes from memory once for all
    of them. The number must not depend on that of threads, or results would.
    """
    if pose.dim() == 6 or pose.shape[2:4] != (1, 1):
        return 1, stride
    return max(n for n in range(1, 9) if pose.shape[0] % n == 0), [1, 1]


def _as_one_map(x: Tensor, n: int) -> Tensor:
    """``[B, C, 1, 1, …]`` as ``[B / n, C, n, 1, …]``, in memory of its own where n > 1."""
    return x if n == 1 else x.squeeze(3).unflatten(0, (-1, n)).transpose(1, 2).contiguous()


def _as_images(x: Tensor) -> Tensor:
    """The way back."""
    return x.transpose(1, 2).flatten(0, 1).unsqueeze(3)


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
    library = load("em" if pose.dim() == 6 else "em_vectors")
    if getattr(library, f"{name}_{SUFFIXES[pose.dtype]}")(*arguments):
        raise MemoryError(f"EM routing of sizes {sizes} ran out of memory")
