"""The operator of dynamic routing as torch registers it, the same for every backend.

An operator never stores the votes: each iteration computes them anew, in registers. With V^(t) = Σ_{τ<t} v^(τ), the sum
of the outputs so far, the logits are b⁰_ij + û_ij · V_j^(t): V is all that lives between iterations. The backward pass
goes from the last iteration to the first, and computes û and c anew:

    dc_ij = û_ij · ds_j, db = softmax-backward(c, dc), dV_j = Σ_i db_ij û_ij,
    dû_ij = Σ_t (c_ij^(t) ds_j^(t) + db_ij^(t) V_j^(t)), from which du and dW follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_second_derivative
from torchcaps.ops.precision import computed_in

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def outputs(u: Tensor, weight: Tensor, n_iters: int, return_coupling: bool, kept: int) -> _Four:
    """Allocate pose ``[B, J, d_out]``, activation ``[B, J]``, and coupling ``[B, I, J]`` or ``[0]``.

    The last is for what the backward pass needs: ``kept`` tensors of the pose's size from each iteration,
    ``[kept, n_iters, B, J, d_out]``.
    """
    n_images, (n_in, n_out, _, d_out) = u.shape[0], weight.shape
    coupling = (n_images, n_in, n_out) if return_coupling else (0,)
    shapes = ((n_images, n_out, d_out), (n_images, n_out), coupling, (kept, n_iters, n_images, n_out, d_out))
    dtype = computed_in(u, weight)
    pose, activation, coupling, states = (torch.empty(shape, dtype=dtype, device=u.device) for shape in shapes)
    return pose, activation, coupling, states


def gradients(u: Tensor, weight: Tensor, b0: Tensor | None) -> _Four:
    """Allocate the gradients of u, weight, bias and b0, the last ``[0]`` where there is none."""
    n_in, n_out, _, d_out = weight.shape
    dtype = computed_in(u, weight)
    shapes = (
        (u.shape, u.dtype),
        (weight.shape, weight.dtype),
        ((n_out, d_out), dtype),
        ((0,) if b0 is None else (n_in, n_out), dtype),
    )
    du, d_weight, d_bias, d_b0 = (torch.empty(shape, dtype=kind, device=u.device) for shape, kind in shapes)
    return du, d_weight, d_bias, d_b0


def register(forward_op: Any, backward_op: Any, backend: str, kept: int) -> None:
    """Tell torch what the operator of a backend returns, and that ``backward_op`` is its gradient."""

    @forward_op.register_fake
    def _(u: Tensor, weight: Tensor, _bias: Any, _prior: Any, n_iters: int, *rest: bool) -> _Four:
        return outputs(u, weight, n_iters, rest[-1], kept)

    @backward_op.register_fake
    def _(*arguments: Any) -> _Four:
        return gradients(*arguments[3:6])

    def backward(
        ctx: Any, d_pose: Tensor | None, d_activation: Tensor | None, d_coupling: Tensor | None, _: None
    ) -> tuple[Any, ...]:
        u, weight, b0, states = ctx.saved_tensors
        if d_pose is None:
            d_pose = states.new_zeros(states.shape[2:])
        if d_activation is None:
            d_activation = states.new_zeros(states.shape[2:4])
        asked = d_coupling if ctx.return_coupling else None  # else one of shape [0]
        du, d_weight, d_bias, d_b0 = backward_op(
            d_pose, d_activation, asked, u, weight, b0, states, ctx.leaky, ctx.full
        )
        bias, b0 = d_bias if ctx.has_bias else None, None if b0 is None else d_b0
        return du, d_weight, bias, b0, None, None, None, None

    forward_op.register_autograd(backward, setup_context=_keep)
    refuse_second_derivative(backward_op, backend)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: _Four) -> None:
    ctx.set_materialize_grads(False)  # of zeros for all that is kept
    u, weight, bias, b0, _, ctx.leaky, ctx.full, ctx.return_coupling = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(u, weight, b0, output[3])
