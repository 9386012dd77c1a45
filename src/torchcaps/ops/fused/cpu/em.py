"""EM routing between 4×4 matrix capsules in compiled code, as operators that torch knows.

The votes are computed anew in each iteration, in registers. Between iterations live the means, variances and
logits of the parents; the responsibilities of a child are a function of these and of its votes. With
d = V − μ, the backward pass of an M-step is, for gradients of μ, σ² and the logit that are summed into k, g₁
and g₂ of each parent,

    dr = k + Σ_h d_h (g₁_h + g₂_h d_h),    dV_h = r (g₁_h + 2 g₂_h d_h),

and that of the E-step before it, with x = R (a dr − Σ_j R a dr) the gradient of its logits and e = V − μ_before,

    dV_h = −x e_h / σ²_h,    dμ_h = Σ_i x e_h / σ²_h,    dσ²_h = Σ_i x (e_h² / σ²_h − 1) / 2σ²_h.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.em_settings import EMSettings
from torchcaps.ops.fused.cpu.dynamic import SUFFIXES
from torchcaps.ops.fused.cpu.library import load
from torchcaps.ops.routed import Routed

#: Numbers kept of a parent for the backward pass: of each iteration, and of the first one besides.
STATE, FIRST = 34, 16


def conv_em_routing_cpu(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: tuple[int, int],
    n_iters: int,
    settings: EMSettings,
    offset: Tensor | None,
    gradient: str,
    return_coupling: bool,
) -> Routed:
    """:func:`torchcaps.ops.conv_em_routing` of checked arguments, matrices of one dtype of ``SUFFIXES``."""
    beta_u, beta_a = beta_u.to(pose.dtype), beta_a.to(pose.dtype)
    offset = None if offset is None else offset.to(pose.dtype)
    (types, height, width), (rows, columns) = pose.shape[1:4], weight.shape[1:3]
    places = ((height - rows) // stride[0] + 1) * ((width - columns) // stride[1] + 1)
    numbers = [
        settings.damping,
        settings.variance_floor,
        settings.mass_floor,
        len(beta_u) * places / (types * height * width) if settings.normalise else 1.0,
        settings.beta_a_scale,
        settings.beta_u_scale,
        settings.cost_scale,
        *(settings.lambda_at(t) for t in range(n_iters)),
    ]
    choices = [settings.compete == "positions", settings.start == "types", gradient == "last"]
    tensors = pose, activation, weight, beta_u, beta_a, offset
    mu, a, coupling, _ = routed(*tensors, list(stride), choices, numbers, return_coupling)
    if not return_coupling:
        return Routed(mu, a, None)
    # Without an E-step, or with one that is taken as a constant, the responsibilities are constants.
    return Routed(mu, a, coupling if n_iters > 1 and gradient == "full" else coupling.detach())


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
        pose: ``[B, T, H, W, 4, 4]``. The others are those of :func:`torchcaps.ops.conv_em_routing`.
        choices: whether positions compete, whether R starts at 1 over the number of types, whether the gradient
            is that of the last iteration only.
        numbers: damping, floors of variance and mass, number of parents over number of children or 1, factors
            of β_a, β_u and Σ_h log σ_h, and λ of every iteration.

    Returns:
        pose ``[B, J, H', W', 4, 4]``, activation ``[B, J, H', W']``, coupling ``[B, H', W', T·K_h·K_w, J]`` or
        ``[0]`` unless asked for, and the parents' states ``[B, H', W', n_iters · STATE + FIRST, J]`` for the backward
        pass.
    """
    outputs = _outputs(pose, weight, stride, numbers, return_coupling)
    mu, a, coupling, states = outputs
    given = pose, activation, weight, beta_u, beta_a, offset
    _call("forward", stride, choices, numbers, *given, mu, a, states, coupling if return_coupling else None)
    return outputs


@routed.register_fake
def _(pose: Tensor, _a: Any, weight: Tensor, _u: Any, _b: Any, _o: Any, *rest: Any) -> tuple[Tensor, ...]:
    stride, _, numbers, return_coupling = rest
    return _outputs(pose, weight, stride, numbers, return_coupling)


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
    made = _gradients(*given)
    _call("backward", stride, choices, numbers, *given, offset, states, d_mu, d_a, d_coupling, *made)
    return made


@routed_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _gradients(*arguments[3:8])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.stride, ctx.choices, ctx.numbers, ctx.return_coupling = inputs
    ctx.save_for_backward(*tensors, output[3])


def _backward(ctx: Any, d_mu: Tensor, d_a: Tensor, d_coupling: Tensor, _: Tensor) -> tuple[Any, ...]:
    asked = d_coupling if ctx.return_coupling else None
    gradients = routed_backward(d_mu, d_a, asked, *ctx.saved_tensors, ctx.stride, ctx.choices, ctx.numbers)
    return *gradients, None, None, None, None, None


def _no_second_derivative(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    raise NotImplementedError("impl='cpu' has no second derivative: take impl='reference' where one is needed")


routed.register_autograd(_backward, setup_context=_setup_context)
routed_backward.register_autograd(_no_second_derivative)


def _outputs(
    pose: Tensor, weight: Tensor, stride: list[int], numbers: list[float], return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_images, types, height, width = pose.shape[:4]
    _, rows, columns, n_out = weight.shape[:4]
    places = ((height - rows) // stride[0] + 1, (width - columns) // stride[1] + 1)
    shapes = (
        (n_images, n_out, *places, 4, 4),
        (n_images, n_out, *places),
        (n_images, *places, types * rows * columns, n_out) if return_coupling else (0,),
        (n_images, *places, (len(numbers) - 7) * STATE + FIRST, n_out),
    )
    mu, a, coupling, states = (torch.empty(shape, dtype=pose.dtype, device=pose.device) for shape in shapes)
    return mu, a, coupling, states


def _gradients(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    pose, activation, weight, beta_u, beta_a = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors)
    return pose, activation, weight, beta_u, beta_a


def _call(name: str, stride: list[int], choices: list[bool], numbers: list[float], *tensors: Tensor | None) -> None:
    """Call ``<name>_<dtype>`` of the library; None is handed over as null."""
    kept = [None if x is None else x.contiguous() for x in tensors]
    pose, weight = kept[0], kept[2]
    assert pose is not None
    assert weight is not None
    sizes = [*pose.shape[:4], *weight.shape[1:4], *stride, len(numbers) - 7]
    integers = [*sizes, *map(int, choices), torch.get_num_threads()]
    arguments: list[Any] = [(ctypes.c_int64 * len(integers))(*integers), (ctypes.c_double * len(numbers))(*numbers)]
    arguments += [ctypes.c_void_p() if x is None else ctypes.c_void_p(x.data_ptr()) for x in kept]
    if getattr(load("em"), f"{name}_{SUFFIXES[pose.dtype]}")(*arguments):
        raise MemoryError(f"EM routing of sizes {sizes} ran out of memory")
