"""EM routing between 4×4 matrix capsules on CUDA devices, as operators that torch knows.

The algebra is in ``ops/fused/em.py``. As in FlashAttention the softmax over parents is split: a pass over the
children finds the highest logit of each and the sum of exponentials beside it; a pass over the parents makes the
responsibilities from these. Every pass makes the votes anew. What is of the parents' size is computed in torch, whose
logarithms are exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchcaps.ops.fused.em_operator import Numbers, gradients, outputs, places, register
from torchcaps.ops.fused.operators import refuse_forward_derivative
from torchcaps.ops.fused.triton.em_passes import Passes


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
        numbers: :class:`~torchcaps.ops.fused.em_operator.Numbers`, and λ of every iteration.

    Returns:
        pose ``[B, J, H', W', 4, 4]``, activation ``[B, J, H', W']``, coupling ``[B, H', W', T·K_h·K_w, J]`` or
        ``[0]`` unless asked for. For the backward pass, of every iteration: how far the mean moved, what is left of
        Σ r (V − μ) / mass by damping and rounding, and variance, ``[n_iters, 3, B, P, J, 16]``; logit and mass,
        ``[n_iters, 2, B, P, J]``.
    """
    refuse_forward_derivative(pose, activation, weight, beta_u, beta_a, offset)
    made = _made(pose, weight, stride, numbers, return_coupling)
    out_pose, out_activation, coupling, states, masses = made
    if not out_activation.numel():
        return made
    passes = Passes.of(pose, activation, weight, offset, stride, choices)
    given, lambdas = _split(numbers)
    mu = torch.zeros_like(states[0, 0])
    for t, inverse_temperature in enumerate(lambdas):
        asked = coupling if return_coupling and t == len(lambdas) - 1 else None
        mass, moved, left, squares = _later(passes, given, mu, asked) if t else _first(passes, given, asked)
        mu = mu + moved
        variance = squares / mass[..., None] + given.floor
        cost = _cost(beta_u, variance, given) * (given.ratio * mass)
        logit = inverse_temperature * (given.scale_a * beta_a - cost)
        states[t, 0], states[t, 1], states[t, 2] = moved, left / mass[..., None], variance
        masses[t, 0], masses[t, 1] = logit, mass
        passes.ready(mu, variance, logit)
    out_pose.copy_(mu.permute(0, 2, 1, 3).reshape(out_pose.shape))
    out_activation.copy_(masses[-1, 0].sigmoid().transpose(1, 2).reshape(out_activation.shape))
    return made


def _first(passes: Passes, given: Numbers, coupling: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first M-step: mass, how far the mean moved from 0, and Σ r (V − μ) and Σ r (V − μ)² around the new mean."""
    if coupling is not None:
        coupling.copy_(passes.first_coupling())
    s0, s1, _ = passes.parents(first=True)
    mass = s0 + given.mass_floor
    moved = (1 - given.damping) * s1 / mass[..., None]
    passes.tiles[0] = moved
    _, left, squares = passes.parents(first=True)
    return mass, moved, left, squares


def _later(
    passes: Passes, given: Numbers, mu: Tensor, coupling: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An E-step and the M-step after it: what :func:`_first` gives, the mean having moved from ``mu``."""
    passes.children()
    s0, s1, s2 = passes.parents(coupling=coupling)
    mass = s0 + given.mass_floor
    moved = (1 - given.damping) * ((s1 - given.mass_floor * mu) / mass[..., None])
    left = s1 - moved * s0[..., None]
    squares = s2 + moved * (moved * s0[..., None] - 2 * s1)
    # Where the mean moved so far that the variance cancels, it is summed again around the new mean.
    lost = s2 > 4 * (squares + given.floor * mass[..., None])
    again = lost.any(dim=-1)
    passes.tiles[2] = moved
    _, left_again, squares_again = passes.parents(again=again.to(torch.int32))
    left = torch.where(again[..., None], left_again, left)
    return mass, moved, left, torch.where(again[..., None], squares_again, squares)


def _made(
    pose: Tensor, weight: Tensor, stride: list[int], numbers: list[float], return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_iters = len(numbers) - len(Numbers._fields)
    parents = (pose.shape[0], math.prod(places(pose, weight, stride)), weight.shape[3])
    kept = (n_iters, 3, *parents, 16), (n_iters, 2, *parents)
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
    d_mu = d_mu.flatten(4).flatten(2, 3).transpose(1, 2).contiguous()  # [B, P, J, 16]
    logit = masses[last, 0]
    d_logit = d_a.flatten(2).transpose(1, 2) * logit.sigmoid() * (-logit).sigmoid()  # [B, P, J]
    d_variance = torch.zeros_like(d_mu)
    d_beta_u, d_beta_a = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (beta_u, beta_a))
    for t in range(last, -1, -1):
        (moved, left, variance), mass = states[t], masses[t, 1]
        before = torch.zeros_like(moved)
        for earlier in states[:t, 0]:  # by the same sums as in the forward pass
            before = before + earlier
        scale = lambdas[t] * given.ratio
        d_beta_a += lambdas[t] * given.scale_a * d_logit.sum(dim=(0, 1))
        d_beta_u -= scale * given.scale_u * 16 * (d_logit * mass).sum(dim=(0, 1))
        apart = left - given.mass_floor * (before + moved) / mass[..., None]  # mean − μ
        d_variance = d_variance - (scale * given.scale_variance / 2 * mass * d_logit)[..., None] / variance
        g2 = d_variance / mass[..., None]
        d_mu = d_mu - 2 * g2 * mass[..., None] * left
        g1 = (1 - given.damping) * d_mu / mass[..., None]
        k = -scale * _cost(beta_u, variance, given) * d_logit - (g2 * (variance - given.floor) + g1 * apart).sum(dim=-1)
        passes.slopes(moved, g1, g2, k)
        if t == 0:
            passes.tiles[0] = moved
            passes.children(first=True, backward=True)
            passes.gradients(first=True)
            break
        earlier_variance, earlier_logit = states[t - 1, 2], masses[t - 1, 0]
        passes.ready(before, earlier_variance, earlier_logit)
        outside = d_coupling if t == last else None
        passes.children(backward=True, d_coupling=outside)
        passes.gradients(stop=stop, d_coupling=outside)
        if stop:
            break
        s0, s1, s2 = passes.parents(backward=True, d_coupling=outside)
        d_logit = s0 * (-earlier_logit).sigmoid()
        d_mu = given.damping * d_mu + s1 / earlier_variance
        d_variance = (s2 / earlier_variance - s0[..., None]) / (2 * earlier_variance)
    d_pose, d_activation, d_weight = passes.d_pose, passes.d_activation, passes.d_weight
    assert isinstance(d_pose, Tensor)  # as the others are, backward
    assert isinstance(d_activation, Tensor)
    assert isinstance(d_weight, Tensor)
    return d_pose.to(pose.dtype), d_activation, d_weight.sum(dim=0).to(weight.dtype), d_beta_u, d_beta_a


register(routed, routed_backward, "triton", _made)


def _split(numbers: list[float]) -> tuple[Numbers, list[float]]:
    """The settings, and λ of every iteration."""
    n = len(Numbers._fields)
    return Numbers(*numbers[:n]), numbers[n:]


def _cost(beta_u: Tensor, variance: Tensor, given: Numbers) -> Tensor:
    """Of describing one vote, ``[B, P, J]``."""
    return given.scale_u * 16 * beta_u + given.scale_variance / 2 * variance.log().sum(dim=-1)
