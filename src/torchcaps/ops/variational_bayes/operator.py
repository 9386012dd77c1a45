"""The operator of the moments of votes as torch registers it, the same for every backend.

With d = V − mean of the new means, the gradient of a share r_ij, times what is given for the results of j, is

    dr = k + Σ_h d_h (g₁_h + g₂_h d_h),    dV_h = r (g₁_h + 2 g₂_h d_h),
    k = d mass,    g₁ = (d mean − 2 prior mean d spread) / mass,    g₂ = d spread,

as a spread is around a mean beside the prior. With x = R (a dr − Σ_j R a dr) and e = V − m of the old means,

    dV_h = −x p_h e_h,    dm_h = Σ_i x p_h e_h,    dp_h = −½ Σ_i x e_h²,    dc = Σ_i x,

or, where logits are linear in the votes, dV_h = x p_h, dm = 0 and dp_h = Σ_i x V_h.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchcaps.ops.backends.errors import refuse_second_derivative
from torchcaps.ops.em.operator import places

_GIVEN = "Tensor pose, Tensor activation, Tensor weight, Tensor? offset, Tensor mean, Tensor precision, Tensor constant"
FORWARD = (
    f"({_GIVEN}, SymInt[] stride, bool return_coupling, float prior, bool linear) -> (Tensor, Tensor, Tensor, Tensor)"
)
BACKWARD = (
    f"(Tensor d_mean, Tensor d_spread, Tensor d_mass, Tensor? d_coupling, {_GIVEN}, Tensor new_mean, Tensor mass, "
    "SymInt[] stride, float prior, bool linear) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def allocate(
    pose: Tensor, weight: Tensor, stride: list[int], return_coupling: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate mean, spread ``[B, P, 16, J]``, mass ``[B, P, J]``, and R ``[B, H', W', T·K_h·K_w, J]`` or ``[0]``."""
    upper, n_out = places(pose, weight, stride), weight.shape[3]
    mass = pose.shape[0], upper[0] * upper[1], n_out
    state = *mass[:2], 16, n_out
    n_children = weight.shape[0] * weight.shape[1] * weight.shape[2]
    coupling = (pose.shape[0], *upper, n_children, n_out) if return_coupling else (0,)
    return pose.new_empty(state), pose.new_empty(state), pose.new_empty(mass), pose.new_empty(coupling)


def gradients(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Allocate a gradient of pose, activation, weight and the shares, contiguous whatever these are."""
    pose, activation, weight, *shares = (x.new_empty(x.shape) for x in tensors)
    mean, precision, constant = shares
    return pose, activation, weight, mean, precision, constant


def register(forward_op: Any, backward_op: Any, backend: str) -> None:
    """Tell torch what the operator of a backend returns, and that ``backward_op`` is its gradient."""

    @forward_op.register_fake
    def _(
        pose: Tensor, _a: Any, weight: Tensor, _o: Any, _m: Any, _p: Any, _c: Any, stride: Any, coupling: Any, *_: Any
    ) -> Any:
        return allocate(pose, weight, stride, coupling)

    @backward_op.register_fake
    def _(_dm: Any, _ds: Any, _dn: Any, _dc: Any, pose: Tensor, a: Tensor, w: Tensor, _o: Any, *rest: Any) -> Any:
        return gradients(pose, a, w, *rest[:3])

    def differentiate(
        ctx: Any, d_mean: Tensor, d_spread: Tensor, d_mass: Tensor, d_coupling: Tensor
    ) -> tuple[Any, ...]:
        asked = d_coupling if ctx.return_coupling else None  # else one of shape [0]
        d_pose, d_a, d_weight, *d_shares = backward_op(
            d_mean, d_spread, d_mass, asked, *ctx.saved_tensors, ctx.stride, ctx.prior, ctx.linear
        )
        return d_pose, d_a, d_weight, None, *d_shares, None, None, None, None

    forward_op.register_autograd(differentiate, setup_context=_keep)
    refuse_second_derivative(backward_op, backend)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.stride, ctx.return_coupling, ctx.prior, ctx.linear = inputs
    ctx.save_for_backward(*tensors, output[0], output[2])
