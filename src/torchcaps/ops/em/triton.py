"""EM routing between 4×4 matrix capsules on CUDA devices, as operators that torch knows.

The algebra is in ``ops/em/operator.py``. As in FlashAttention the softmax over parents is split: a pass over the
children finds the highest logit of each and the sum of exponentials beside it; a pass over the parents makes the
responsibilities from these. Every pass makes the votes anew; small kernels compute what is of the parents' size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.em.operator import Settings, gradients, outputs, places, register, schemas
from torchcaps.ops.em.passes import Passes

_FORWARD, _BACKWARD = schemas(n_kept=2)


@torch.library.custom_op("torchcaps::em_routing_triton", mutates_args=(), schema=_FORWARD)
def forward_op(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    offset: Tensor | None,
    stride: list[int],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Route in float32, or in float64 where pose or weight has it.

    Args:
        pose: ``[B, T, H, W, 4, 4]``. The other tensors are those of :func:`torchcaps.ops.conv_em_routing`; all but
            weight are of the dtype that is computed in.
        activation: ``[B, T, H, W]``.
        weight: ``[T, K_h, K_w, J, 4, 4]``.
        beta_u: ``[J]``.
        beta_a: ``[J]``.
        offset: ``[T, K_h, K_w, 4, 4]`` or None.
        stride: of rows and of columns.
        rest: :class:`~torchcaps.ops.em.operator.Settings` as packed, and ``return_coupling``.

    Returns:
        pose ``[B, J, H', W', 4, 4]``, activation ``[B, J, H', W']``, coupling ``[B, H', W', T·K_h·K_w, J]`` or
        ``[0]`` unless asked for. For the backward pass, of every iteration: how far the mean moved, what is left of
        Σ r (V − μ) / mass by damping and rounding, and variance, ``[n_iters, 3, B, P, J, 16]``; logit, mass and the
        next logits' constant, ``[n_iters, 3, B, P, J]``.
    """
    settings, return_coupling = Settings.unpack(*rest[:-1]), rest[-1]
    refuse_forward_derivative(pose, activation, weight, beta_u, beta_a, offset)
    results = _allocate(pose, weight, stride, settings.n_iters, return_coupling)
    out_pose, out_activation, coupling, states, masses = results
    if not out_activation.numel():
        return results
    passes = Passes.of(pose, activation, weight, offset, stride, settings.compete_positions, settings.start_types)
    again = torch.empty(masses.shape[2:], dtype=torch.int32, device=pose.device)
    log_ap = torch.empty(masses.shape[2:], dtype=torch.float64, device=pose.device)
    last = settings.n_iters - 1
    for t, inverse_temperature in enumerate(settings.lambdas):
        asked, kept = (coupling if return_coupling and t == last else None), (states[t], masses[t])
        if t:
            passes.children()
            passes.mean(passes.parents(coupling=asked), *kept, again, settings, first=False)
            # Where the mean moved so far that the variance cancels, it is summed again around the new mean.
            sums = passes.parents(again=again)
        else:
            if asked is not None:
                asked.copy_(passes.first_coupling(settings.start_types))
            passes.mean(passes.parents(first=True, around=False), *kept, again, settings, first=True)
            sums = passes.parents(first=True)
        upper, betas = (out_pose, out_activation), (beta_u, beta_a)
        passes.fit(
            sums, again, *kept, log_ap, betas, upper, inverse_temperature, settings, first=t == 0, last=t == last
        )
    return results


def _allocate(
    pose: Tensor, weight: Tensor, stride: list[int], n_iters: int, return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    parents = (pose.shape[0], math.prod(places(pose, weight, stride)), weight.shape[3])
    kept = (n_iters, 3, *parents, 16), (n_iters, 3, *parents)
    mu, a, coupling, states, masses = outputs(pose, weight, stride, return_coupling, *kept)
    return mu, a, coupling, states, masses


@torch.library.custom_op("torchcaps::em_routing_triton_backward", mutates_args=(), schema=_BACKWARD)
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
    masses: Tensor,
    stride: list[int],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward_op`: pose, activation, weight, beta_u and beta_a."""
    if not d_a.numel():
        return tuple(x.zero_() for x in gradients(pose, activation, weight, beta_u, beta_a))  # type: ignore[return-value]
    settings = Settings.unpack(*rest)
    choices = settings.compete_positions, settings.start_types
    passes = Passes.of(pose, activation, weight, offset, stride, *choices, backward=True)
    d_coupling = None if d_coupling is None else d_coupling.contiguous()
    lambdas, stop, last = settings.lambdas, settings.last_only, settings.n_iters - 1
    d_results = d_mu.contiguous(), d_a.contiguous()
    carried, d_betas = torch.empty_like(states[0, 0]), torch.empty_like(masses[0, :2])
    d_pose, d_activation = torch.empty_like(passes.pose), torch.empty_like(passes.activation)
    d_weight = passes.pose.new_empty(passes.weight_parts()[0], *passes.weight[0].shape)
    sums = None
    for t in range(last, -1, -1):
        passes.slopes(sums, d_results, (states, masses), carried, d_betas, beta_u, t, lambdas[t], settings)
        into, more = (d_pose, d_activation, d_weight), t < last
        if t == 0:
            passes.gradients(*into, first=True, types=settings.start_types, more=more)
            break
        outside = d_coupling if t == last else None
        passes.children(backward=not stop, d_coupling=outside)
        passes.gradients(*into, stop=stop, more=more, d_coupling=outside)
        if stop:
            break
        sums = passes.parents(backward=True, d_coupling=outside)
    d_kernels = d_weight.sum(dim=0).permute(3, 0, 1, 2, 4).unflatten(1, weight.shape[1:3])
    results = gradients(pose, activation, weight, beta_u, beta_a)
    computed = d_pose.permute(0, 4, 1, 2, 3, 5), d_activation.permute(0, 3, 1, 2), d_kernels, *d_betas.sum(dim=(1, 2))
    for to, x in zip(results, computed, strict=True):
        to.copy_(x)
    return results


register(forward_op, backward_op, "triton", _allocate)
