"""What torch is told of an operator of EM routing, the same for every backend.

An operator never stores the votes: each iteration computes them anew. Between iterations live the means, variances and
logits of the parents; the responsibilities of a child are a function of these and of its votes. With d = V − μ, the
backward pass of an M-step is, for gradients of μ, σ² and the logit that are summed into k, g₁ and g₂ of each parent,

    dr = k + Σ_h d_h (g₁_h + g₂_h d_h),    dV_h = r (g₁_h + 2 g₂_h d_h),

and that of the E-step before it, with x = R (a dr − Σ_j R a dr) the gradient of its logits and e = V − μ_before,

    dV_h = −x e_h / σ²_h,    dμ_h = Σ_i x e_h / σ²_h,    dσ²_h = Σ_i x (e_h² / σ²_h − 1) / 2σ²_h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_second_derivative
from torchcaps.ops.precision import computed_in


class Numbers(NamedTuple):
    """The settings as an operator takes them; λ of every iteration follows them."""

    damping: float
    floor: float
    mass_floor: float
    ratio: float
    scale_a: float
    scale_u: float
    scale_variance: float


def places(pose: Tensor, weight: Tensor, stride: list[int] | tuple[int, ...]) -> tuple[int, int]:
    """H' and W' of the parents' map."""
    height, width = (
        (extent - kernel) // step + 1
        for extent, kernel, step in zip(pose.shape[2:4], weight.shape[1:3], stride, strict=True)
    )
    return height, width


def outputs(
    pose: Tensor, weight: Tensor, stride: list[int], return_coupling: bool, *kept: tuple[int, ...]
) -> list[Tensor]:
    """Memory for the results, and for tensors of the shapes that are kept for the backward pass.

    The results are pose ``[B, J, H', W', 4, 4]`` or ``[B, J, H', W', 16]``, activation ``[B, J, H', W']``, and coupling
    ``[B, H', W', T·K_h·K_w, J]`` or ``[0]``.
    """
    (n_images, types), (rows, columns, n_out), upper = pose.shape[:2], weight.shape[1:4], places(pose, weight, stride)
    shapes = (
        (n_images, n_out, *upper, *pose.shape[4:]),
        (n_images, n_out, *upper),
        (n_images, *upper, types * rows * columns, n_out) if return_coupling else (0,),
        *kept,
    )
    dtype = computed_in(pose, weight)
    return [torch.empty(shape, dtype=dtype, device=pose.device) for shape in shapes]


def gradients(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Memory for the gradients of pose, activation, weight, beta_u and beta_a."""
    pose, activation, weight, beta_u, beta_a = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors)
    return pose, activation, weight, beta_u, beta_a


def register(routed: Any, routed_backward: Any, impl: str, made: Callable[..., tuple[Tensor, ...]]) -> None:
    """Tell torch what the operator of a backend returns, and that ``routed_backward`` is its gradient.

    Args:
        routed: the operator; behind its first three results stands what it keeps for the other one.
        routed_backward: takes the results' gradients, the tensors, what was kept, stride, choices and numbers.
        impl: the backend's name.
        made: memory for the results, from pose, weight, stride, numbers and return_coupling.
    """

    @routed.register_fake
    def _(pose: Tensor, _a: Any, weight: Tensor, _u: Any, _b: Any, _o: Any, *rest: Any) -> tuple[Tensor, ...]:
        stride, _, numbers, return_coupling = rest
        return made(pose, weight, stride, numbers, return_coupling)

    @routed_backward.register_fake
    def _(*arguments: Any) -> tuple[Tensor, ...]:
        return gradients(*arguments[3:8])

    def backward(
        ctx: Any, d_mu: Tensor | None, d_a: Tensor | None, d_coupling: Tensor | None, *_: None
    ) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing gives them out no second time
        if d_mu is None or d_a is None:
            zeros = outputs(saved[0], saved[2], ctx.stride, False)
            d_mu = zeros[0].zero_() if d_mu is None else d_mu
            d_a = zeros[1].zero_() if d_a is None else d_a
        asked = d_coupling if ctx.return_coupling else None  # else one of shape [0]
        found = routed_backward(d_mu, d_a, asked, *saved, ctx.stride, ctx.choices, ctx.numbers)
        return *found, None, None, None, None, None

    routed.register_autograd(backward, setup_context=_keep)
    refuse_second_derivative(routed_backward, impl)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # of zeros for all that is kept
    *tensors, ctx.stride, ctx.choices, ctx.numbers, ctx.return_coupling = inputs
    ctx.save_for_backward(*tensors, *output[3:])
