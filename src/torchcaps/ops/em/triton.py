"""EM routing between 4×4 matrix capsules on CUDA devices, as operators that torch knows.

The algebra is in ``ops/em/operator.py``. As in FlashAttention the softmax over parents is split: a pass over the
children finds the highest logit of each and the sum of exponentials beside it; a pass over the parents makes the
responsibilities from these. Every pass makes the votes anew; small kernels compute what is of the parents' size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.em.operator import Numbers, gradients, outputs, places, register
from torchcaps.ops.em.passes import Passes


@torch.library.custom_op("torchcaps::em_routing_triton", mutates_args=())
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """EM routing in float32, or in float64 where pose or weight has it.

    Args:
        pose: ``[B, T, H, W, 4, 4]``. The others are those of :func:`torchcaps.ops.conv_em_routing`; all but weight
            are of the dtype that is computed in.
        choices: whether positions compete, whether R starts at 1 over the number of types, whether the gradient
            is that of the last iteration only.
        numbers: :class:`~torchcaps.ops.em.operator.Numbers`, and λ of every iteration.

    Returns:
        pose ``[B, J, H', W', 4, 4]``, activation ``[B, J, H', W']``, coupling ``[B, H', W', T·K_h·K_w, J]`` or
        ``[0]`` unless asked for. For the backward pass, of every iteration: how far the mean moved, what is left of
        Σ r (V − μ) / mass by damping and rounding, and variance, ``[n_iters, 3, B, P, J, 16]``; logit, mass and the
        next logits' constant, ``[n_iters, 3, B, P, J]``.
    """
    refuse_forward_derivative(pose, activation, weight, beta_u, beta_a, offset)
    made = _made(pose, weight, stride, numbers, return_coupling)
    out_pose, out_activation, coupling, states, masses = made
    if not out_activation.numel():
        return made
    passes = Passes.of(pose, activation, weight, offset, stride, choices)
    given, lambdas = _split(numbers)
    again = torch.empty(masses.shape[2:], dtype=torch.int32, device=pose.device)
    log_ap = torch.empty(masses.shape[2:], dtype=torch.float64, device=pose.device)
    last = len(lambdas) - 1
    for t, inverse_temperature in enumerate(lambdas):
        asked, kept = (coupling if return_coupling and t == last else None), (states[t], masses[t])
        if t:
            passes.children()
            passes.mean(passes.parents(coupling=asked), *kept, again, given, first=False)
            # Where the mean moved so far that the variance cancels, it is summed again around the new mean.
            sums = passes.parents(again=again)
        else:
            if asked is not None:
                asked.copy_(passes.first_coupling(choices[1]))
            passes.mean(passes.parents(first=True, around=False), *kept, again, given, first=True)
            sums = passes.parents(first=True)
        results, betas = (out_pose, out_activation), (beta_u, beta_a)
        passes.fit(sums, again, *kept, log_ap, betas, results, inverse_temperature, given, first=t == 0, last=t == last)
    return made


def _made(
    pose: Tensor, weight: Tensor, stride: list[int], numbers: list[float], return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_iters = len(numbers) - len(Numbers._fields)
    parents = (pose.shape[0], math.prod(places(pose, weight, stride)), weight.shape[3])
    kept = (n_iters, 3, *parents, 16), (n_iters, 3, *parents)
    mu, a, coupling, states, masses = outputs(pose, weight, stride, return_coupling, *kept)
    return mu, a, coupling, states, masses


@torch.library.custom_op("torchcaps::em_routing_triton_backward", mutates_args=())
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
    masses: Tensor,
    stride: list[int],
    choices: list[bool],
    numbers: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of :func:`routed`: pose, activation, weight, beta_u and beta_a."""
    if not d_a.numel():
        return tuple(x.zero_() for x in gradients(pose, activation, weight, beta_u, beta_a))  # type: ignore[return-value]
    passes = Passes.of(pose, activation, weight, offset, stride, choices, backward=True)
    d_coupling = None if d_coupling is None else d_coupling.contiguous()
    (given, lambdas), stop = _split(numbers), choices[2]
    last = len(lambdas) - 1
    d_results = d_mu.contiguous(), d_a.contiguous()
    carried, d_betas = torch.empty_like(states[0, 0]), torch.empty_like(masses[0, :2])
    d_pose, d_activation = torch.empty_like(passes.pose), torch.empty_like(passes.activation)
    d_weight = passes.pose.new_empty(passes.weight_parts()[0], *passes.weight[0].shape)
    sums = None
    for t in range(last, -1, -1):
        passes.slopes(sums, d_results, (states, masses), carried, d_betas, beta_u, t, lambdas[t], given)
        into, more = (d_pose, d_activation, d_weight), t < last
        if t == 0:
            passes.gradients(*into, first=True, types=choices[1], more=more)
            break
        outside = d_coupling if t == last else None
        passes.children(backward=not stop, d_coupling=outside)
        passes.gradients(*into, stop=stop, more=more, d_coupling=outside)
        if stop:
            break
        sums = passes.parents(backward=True, d_coupling=outside)
    d_kernels = d_weight.sum(dim=0).permute(3, 0, 1, 2, 4).unflatten(1, weight.shape[1:3])
    made = gradients(pose, activation, weight, beta_u, beta_a)
    found = d_pose.permute(0, 4, 1, 2, 3, 5), d_activation.permute(0, 3, 1, 2), d_kernels, *d_betas.sum(dim=(1, 2))
    for to, x in zip(made, found, strict=True):
        to.copy_(x)
    return made


register(routed, routed_backward, "triton", _made)


def _split(numbers: list[float]) -> tuple[Numbers, list[float]]:
    """The settings, and λ of every iteration."""
    n = len(Numbers._fields)
    return Numbers(*numbers[:n]), numbers[n:]
