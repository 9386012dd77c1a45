"""Dynamic routing in compiled code, as operators that torch knows.

The votes are computed anew in each iteration, in registers. With V^(t) = Σ_{τ<t} v^(τ), the sum of the
outputs so far, the logits are b⁰_ij + û_ij · V_j^(t): V is all that lives between iterations. Backward,
for each iteration, last to first, with û and c computed anew:

    dc_ij = û_ij · ds_j, db = softmax-backward(c, dc), dV_j = Σ_i db_ij û_ij,
    dû_ij = Σ_t (c_ij^(t) ds_j^(t) + db_ij^(t) V_j^(t)), from which du and dW follow.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.fused.cpu.library import load
from torchcaps.ops.routed import Routed

#: The dtypes that are compiled, and what their functions end in.
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}


def dynamic_routing_cpu(
    u: Tensor,
    weight: Tensor,
    n_iters: int,
    bias: Tensor | None,
    prior: Tensor | None,
    leaky: bool,
    gradient: str,
    return_coupling: bool,
) -> Routed:
    """:func:`torchcaps.ops.dynamic_routing` of checked arguments; u and weight have one dtype of :data:`SUFFIXES`."""
    bias, prior = (None if x is None else x.to(u.dtype) for x in (bias, prior))
    full = gradient == "full"
    pose, activation, coupling, _ = routed(u, weight, bias, prior, n_iters, leaky, full, return_coupling)
    return Routed(pose, activation, coupling if return_coupling else None)


@torch.library.custom_op("torchcaps::dynamic_routing_cpu", mutates_args=(), device_types="cpu")
def routed(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prior: Tensor | None,
    n_iters: int,
    leaky: bool,
    full: bool,  # noqa: ARG001 (for the backward pass)
    return_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Dynamic routing of tensors of one dtype, float32 or float64.

    Args:
        u: ``[B, I, d_in]``. The others are those of :func:`torchcaps.ops.dynamic_routing`; ``full`` says
            whether its gradient is "full".

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]``, coupling ``[B, I, J]`` or ``[0]`` unless asked for,
        and the weighted sums of all iterations ``[n_iters, B, J, d_out]``, which the backward pass needs.
    """
    outputs = _outputs(u, weight, n_iters, return_coupling)
    pose, activation, coupling, states = outputs
    asked = coupling if return_coupling else None
    _call("forward", u, weight, n_iters, leaky, u, weight, bias, prior, states, pose, activation, asked)
    return outputs


@routed.register_fake
def _(u: Tensor, weight: Tensor, _bias: Any, _prior: Any, n_iters: int, *rest: bool) -> tuple[Tensor, ...]:
    return _outputs(u, weight, n_iters, rest[-1])


@torch.library.custom_op("torchcaps::dynamic_routing_cpu_backward", mutates_args=(), device_types="cpu")
def routed_backward(
    d_pose: Tensor,
    d_activation: Tensor,
    d_coupling: Tensor | None,
    u: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    states: Tensor,
    leaky: bool,
    full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of :func:`routed`: u, weight, bias and prior, the last ``[0]`` where there is none."""
    gradients = _gradients(u, weight, prior)
    du, d_weight, d_bias, d_prior = gradients
    given = (u, weight, prior, states, d_pose, d_activation, d_coupling)
    made = (du, d_weight, d_bias, None if prior is None else d_prior)
    _call("backward", u, weight, len(states), leaky, *given, full, *made)
    return gradients


@routed_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _gradients(*arguments[3:6])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, bias, prior, _, ctx.leaky, ctx.full, ctx.return_coupling = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(u, weight, prior, output[3])


def _backward(ctx: Any, d_pose: Tensor, d_activation: Tensor, d_coupling: Tensor, _: Tensor) -> tuple[Any, ...]:
    u, weight, prior, states = ctx.saved_tensors
    asked = d_coupling if ctx.return_coupling else None
    du, d_weight, d_bias, d_prior = routed_backward(
        d_pose, d_activation, asked, u, weight, prior, states, ctx.leaky, ctx.full
    )
    bias, prior = d_bias if ctx.has_bias else None, None if prior is None else d_prior
    return du, d_weight, bias, prior, None, None, None, None


def _no_second_derivative(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    raise NotImplementedError("impl='cpu' has no second derivative: take impl='reference' where one is needed")


routed.register_autograd(_backward, setup_context=_setup_context)
routed_backward.register_autograd(_no_second_derivative)


def _outputs(u: Tensor, weight: Tensor, n_iters: int, return_coupling: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_images, (n_in, n_out, _, d_out) = u.shape[0], weight.shape
    coupling = (n_images, n_in, n_out) if return_coupling else (0,)
    shapes = ((n_images, n_out, d_out), (n_images, n_out), coupling, (n_iters, n_images, n_out, d_out))
    pose, activation, coupling, states = (torch.empty(shape, dtype=u.dtype, device=u.device) for shape in shapes)
    return pose, activation, coupling, states


def _gradients(u: Tensor, weight: Tensor, prior: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_in, n_out, _, d_out = weight.shape
    shapes = (u.shape, weight.shape, (n_out, d_out), (0,) if prior is None else (n_in, n_out))
    du, d_weight, d_bias, d_prior = (torch.empty(shape, dtype=u.dtype, device=u.device) for shape in shapes)
    return du, d_weight, d_bias, d_prior


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
