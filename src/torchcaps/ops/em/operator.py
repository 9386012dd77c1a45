"""The operator of EM routing as torch registers it, the same for every backend.

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


class Settings(NamedTuple):
    """The settings of a call.

    An operator takes the choices by name and all numbers as one list: torch's work for an operator that is
    differentiated grows with the square of the number of its arguments.

    Attributes:
        compete_positions: whether responsibilities are shared among places, instead of among all parents.
        start_types: whether they start at 1 over the number of types, instead of 1 over the number of parents.
        last_only: whether the gradient is that of the last iteration only.
        damping: share of the old mean in the new one.
        variance_floor: added to every variance.
        mass_floor: added to every parent's mass.
        ratio: parents to children where costs are normalized, else 1.
        scale_a: factor of β_a.
        scale_u: factor of β_u.
        scale_variance: factor of Σ log σ.
        lambdas: inverse temperature of every iteration.
    """

    compete_positions: bool
    start_types: bool
    last_only: bool
    damping: float
    variance_floor: float
    mass_floor: float
    ratio: float
    scale_a: float
    scale_u: float
    scale_variance: float
    lambdas: list[float]

    @property
    def n_iters(self) -> int:
        """Count the M-steps."""
        return len(self.lambdas)

    def pack(self) -> tuple[bool, bool, bool, list[float]]:
        """Write the arguments of an operator."""
        numbers = [self.damping, self.variance_floor, self.mass_floor, self.ratio, self.scale_a, self.scale_u]
        flags = self.compete_positions, self.start_types, self.last_only
        return *flags, [*numbers, self.scale_variance, *self.lambdas]

    @classmethod
    def unpack(cls, compete_positions: bool, start_types: bool, last_only: bool, numbers: list[float]) -> Settings:
        """Read the arguments of an operator."""
        n = len(cls._fields) - 4
        return cls(compete_positions, start_types, last_only, *numbers[:n], lambdas=numbers[n:])


_INPUTS = "Tensor pose, Tensor activation, Tensor weight, Tensor beta_u, Tensor beta_a, Tensor? offset"
_SETTINGS = "SymInt[] stride, bool compete_positions, bool start_types, bool last_only, float[] numbers"


def schemas(n_kept: int) -> tuple[str, str]:
    """Write the signatures of an operator and of its gradient, as torch reads them.

    Args:
        n_kept: how many tensors the backward pass needs of the forward pass.
    """
    kept = ", ".join(f"Tensor kept_{k}" for k in range(n_kept))
    results = ", ".join(["Tensor"] * (3 + n_kept))
    forward = f"({_INPUTS}, {_SETTINGS}, bool return_coupling) -> ({results})"
    gradients = "Tensor d_mu, Tensor d_a, Tensor? d_coupling"
    backward = f"({gradients}, {_INPUTS}, {kept}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    return forward, backward


def places(pose: Tensor, weight: Tensor, stride: list[int] | tuple[int, ...]) -> tuple[int, int]:
    """Compute H' and W' of the parents' map."""
    height, width = (
        (extent - kernel) // step + 1
        for extent, kernel, step in zip(pose.shape[2:4], weight.shape[1:3], stride, strict=True)
    )
    return height, width


def outputs(
    pose: Tensor, weight: Tensor, stride: list[int], return_coupling: bool, *kept: tuple[int, ...]
) -> list[Tensor]:
    """Allocate the results, and tensors of the shapes that are kept for the backward pass.

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
    """Allocate the gradients of pose, activation, weight, beta_u and beta_a."""
    pose, activation, weight, beta_u, beta_a = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors)
    return pose, activation, weight, beta_u, beta_a


def register(forward_op: Any, backward_op: Any, backend: str, allocate: Callable[..., tuple[Tensor, ...]]) -> None:
    """Tell torch what the operator of a backend returns, and that ``backward_op`` is its gradient.

    Args:
        forward_op: the operator; after its first three results come the tensors that ``backward_op`` needs.
        backward_op: takes the results' gradients, the tensors, what was kept, stride and settings.
        backend: the backend's name.
        allocate: makes memory for the results, from pose, weight, stride, n_iters and return_coupling.
    """

    @forward_op.register_fake
    def _(pose: Tensor, _a: Any, weight: Tensor, _u: Any, _b: Any, _o: Any, stride: Any, *rest: Any) -> Any:
        *settings, return_coupling = rest
        return allocate(pose, weight, stride, Settings.unpack(*settings).n_iters, return_coupling)

    @backward_op.register_fake
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
        computed = backward_op(d_mu, d_a, asked, *saved, ctx.stride, *ctx.settings)
        return *computed, None, None, *(None for _ in ctx.settings), None

    forward_op.register_autograd(backward, setup_context=_keep)
    refuse_second_derivative(backward_op, backend)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # zeros for all that is kept
    tensors, (ctx.stride, *ctx.settings, ctx.return_coupling) = inputs[:6], inputs[6:]
    ctx.save_for_backward(*tensors, *output[3:])
