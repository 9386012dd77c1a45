"""The operator of the moments of votes as torch registers it, the same for every backend.

With d = V − mean of the new means, the gradient of a share r_ij, times what is given for the results of j, is

    dr = k + Σ_h d_h (g₁_h + g₂_h d_h),    dV_h = r (g₁_h + 2 g₂_h d_h),
    k = d mass,    g₁ = (d mean − 2 prior mean d spread) / mass,    g₂ = d spread,

as a spread is around a mean beside the prior. With x = R (a dr − Σ_j R a dr) and e = V − m of the old means,

    dV_h = −x p_h e_h,    dm_h = Σ_i x p_h e_h,    dp_h = −½ Σ_i x e_h²,    dc = Σ_i x,

or, where logits are linear in the votes, dV_h = x p_h, dm = 0 and dp_h = Σ_i x V_h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_forward_derivative, refuse_second_derivative
from torchcaps.ops.em.operator import places

_GIVEN = "Tensor pose, Tensor activation, Tensor weight, Tensor? offset, Tensor mean, Tensor precision, Tensor constant"
_SETTINGS = "SymInt[] stride, float prior, bool linear"
_FORWARD = f"({_GIVEN}, {_SETTINGS}, bool return_coupling) -> (Tensor, Tensor, Tensor, Tensor)"
_BACKWARD = (
    f"({_GIVEN}, {_SETTINGS}, Tensor d_mean, Tensor d_spread, Tensor d_mass, Tensor? d_coupling, Tensor new_mean, "
    "Tensor mass) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


class Given(NamedTuple):
    """What an operator is given, as ``moments.py`` says; shares of ``[0]`` are none."""

    pose: Tensor
    activation: Tensor
    weight: Tensor
    offset: Tensor | None
    mean: Tensor
    precision: Tensor
    constant: Tensor
    stride: list[int]
    prior: float
    linear: bool

    @property
    def first(self) -> bool:
        """Whether each vote has the same share."""
        return not self.mean.numel()


class Results(NamedTuple):
    """Mean and spread ``[B, P, 16, J]``, mass ``[B, P, J]``, and R ``[B, H', W', T·K_h·K_w, J]`` or ``[0]``."""

    mean: Tensor
    spread: Tensor
    mass: Tensor
    coupling: Tensor


class Slopes(NamedTuple):
    """The gradients of results, and what the backward pass needs of these. R may have none."""

    mean: Tensor
    spread: Tensor
    mass: Tensor
    coupling: Tensor | None
    new_mean: Tensor
    new_mass: Tensor


class Gradients(NamedTuple):
    """The gradients of what is given."""

    pose: Tensor
    activation: Tensor
    weight: Tensor
    mean: Tensor
    precision: Tensor
    constant: Tensor


def operator(
    backend: str,
    forward: Callable[[Given, Results], object],
    backward: Callable[[Given, Slopes, Gradients], object],
    device: str | None = None,
) -> Any:
    """Make the operator of a backend, ``torchcaps::vote_moments_<backend>``.

    Args:
        backend: its name.
        forward: writes the results; R where it is not empty.
        backward: writes the gradients.
        device: the kind of device that it is for; None for any.
    """
    name, where = f"torchcaps::vote_moments_{backend}", {"mutates_args": (), "device_types": device}

    @torch.library.custom_op(name, schema=_FORWARD, **where)
    def forward_op(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        given, return_coupling = Given(*arguments[:-1]), arguments[-1]
        refuse_forward_derivative(*given[:7])
        results = _allocate(given.pose, given.weight, given.stride, return_coupling)
        if results.mass.numel():  # else there are no images, or no upper capsules
            forward(given, results)
        return tuple(results)  # type: ignore[return-value]

    @torch.library.custom_op(f"{name}_backward", schema=_BACKWARD, **where)
    def backward_op(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        given, slopes = Given(*arguments[:10]), Slopes(*arguments[10:])
        gradients = _gradients(given)
        if slopes.mass.numel():
            backward(given, slopes, gradients)
        else:
            for x in gradients:
                x.zero_()
        return tuple(gradients)  # type: ignore[return-value]

    @forward_op.register_fake
    def _(*arguments: Any) -> Any:
        given = Given(*arguments[:-1])
        return tuple(_allocate(given.pose, given.weight, given.stride, arguments[-1]))

    @backward_op.register_fake
    def _(*arguments: Any) -> Any:
        return tuple(_gradients(Given(*arguments[:10])))

    def differentiate(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        asked = slopes[3] if ctx.return_coupling else None  # else one of shape [0]
        *tensors, new_mean, mass = ctx.saved_tensors
        made = Gradients(*backward_op(*tensors, *ctx.settings, *slopes[:3], asked, new_mean, mass))
        return *made[:3], None, *made[3:], *(None for _ in ctx.settings), None

    forward_op.register_autograd(differentiate, setup_context=_keep)
    refuse_second_derivative(backward_op, backend)
    return forward_op


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *ctx.settings, ctx.return_coupling = inputs[7:]
    ctx.save_for_backward(*inputs[:7], output[0], output[2])


def _allocate(pose: Tensor, weight: Tensor, stride: list[int], return_coupling: bool) -> Results:
    upper, n_out = places(pose, weight, stride), weight.shape[3]
    mass = pose.shape[0], upper[0] * upper[1], n_out
    state = *mass[:2], 16, n_out
    n_children = weight.shape[0] * weight.shape[1] * weight.shape[2]
    coupling = (pose.shape[0], *upper, n_children, n_out) if return_coupling else (0,)
    return Results(*(pose.new_empty(shape) for shape in (state, state, mass, coupling)))


def _gradients(given: Given) -> Gradients:
    """Allocate a gradient of each tensor, contiguous whatever that is."""
    wanted = given.pose, given.activation, given.weight, given.mean, given.precision, given.constant
    return Gradients(*(x.new_empty(x.shape) for x in wanted))
