"""EM routing between matrix capsules, or vectors of 16 numbers, that never stores the votes.

They are computed anew in each iteration. Between iterations live the means, variances and logits of
the parents; the responsibilities of a child are a function of these and of its votes. With d = V − μ, the backward
pass of an M-step is, for gradients of μ, σ² and the logit that are summed into k, g₁ and g₂ of each parent,

    dr = k + Σ_h d_h (g₁_h + g₂_h d_h),    dV_h = r (g₁_h + 2 g₂_h d_h),

and that of the E-step before it, with x = R (a dr − Σ_j R a dr) the gradient of its logits and e = V − μ_before,

    dV_h = −x e_h / σ²_h,    dμ_h = Σ_i x e_h / σ²_h,    dσ²_h = Σ_i x (e_h² / σ²_h − 1) / 2σ²_h.
"""

from __future__ import annotations

import math

from torch import Tensor

from torchcaps.ops.em_settings import EMSettings
from torchcaps.ops.fused.cpu import em as cpu
from torchcaps.ops.fused.em_operator import Numbers, places
from torchcaps.ops.fused.operators import computed_in
from torchcaps.ops.fused.triton import em as triton
from torchcaps.ops.routed import Routed

_OPERATORS = {"cpu": cpu.routed, "triton": triton.routed}


def fused_em_routing(
    impl: str,
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
    """:func:`torchcaps.ops.conv_em_routing` of checked arguments by the operator of ``impl``.

    "cpu" wants pose and weight of one dtype, float32 or float64; "triton" widens half precision as it reads it.
    """
    dtype = computed_in(pose, weight)
    activation, beta_u, beta_a = activation.to(dtype), beta_u.to(dtype), beta_a.to(dtype)
    offset = None if offset is None else offset.to(dtype)
    parents = len(beta_u) * math.prod(places(pose, weight, stride))
    numbers = Numbers(
        settings.damping,
        settings.variance_floor,
        settings.mass_floor,
        parents / max(1, math.prod(pose.shape[1:4])) if settings.normalise else 1.0,
        settings.beta_a_scale,
        settings.beta_u_scale,
        settings.cost_scale,
    )
    scales = [*numbers, *(settings.lambda_at(t) for t in range(n_iters))]
    choices = [settings.compete == "positions", settings.start == "types", gradient == "last"]
    tensors = pose, activation, weight, beta_u, beta_a, offset
    mu, a, coupling, *_ = _OPERATORS[impl](*tensors, list(stride), choices, scales, return_coupling)
    if not return_coupling:
        return Routed(mu, a, None)
    # Without an E-step, or with one that is taken as a constant, the responsibilities are constants.
    return Routed(mu, a, coupling if n_iters > 1 and gradient == "full" else coupling.detach())
