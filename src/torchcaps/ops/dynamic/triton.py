"""Dynamic routing on CUDA devices, as operators that torch knows; the algebra is in ``ops/dynamic/operator.py``.

Kept for the backward pass are the weighted sums of all iterations and the sums of outputs that their logits came
from, V: 2·n_iters times the size of the result. Votes are never made. While an iteration runs, its logits ``[B, I, J]``
take memory, and in the backward pass two such tensors of each iteration.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import refuse_forward_derivative
from torchcaps.ops.backends.triton import LIMITS, allows_tf32, load, on
from torchcaps.ops.dynamic.operator import gradients, outputs, register
from torchcaps.ops.dynamic.tiles import Sizes, launch, rows, too_large
from torchcaps.ops.precision import computed_in

#: Tensors of the pose's size that are kept of each iteration: s and V.
KEPT = 2


@torch.library.custom_op("torchcaps::dynamic_routing_triton", mutates_args=())
def forward_op(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    b0: Tensor | None,
    n_iters: int,
    leaky: bool,
    full: bool,  # noqa: ARG001 (for the backward pass)
    return_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Route in float32, or in float64 where u or weight has it.

    Arguments are those of :func:`torchcaps.ops.dynamic_routing`; ``full`` says whether its gradient is "full".
    bias and b0 are of the dtype that is computed in.

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]``, coupling ``[B, I, J]`` or ``[0]`` unless asked for,
        and s and V of all iterations ``[2, n_iters, B, J, d_out]``, which the backward pass needs.
    """
    refuse_forward_derivative(u, weight, bias, b0)
    made = outputs(u, weight, n_iters, return_coupling, KEPT)
    pose, activation, coupling, states = made
    if not pose.numel():
        return made
    bias = None if bias is None else bias.contiguous()
    passes = _Passes(u, weight, b0, pose.dtype, leaky)
    (sums, so_far), coupled = states, passes.coupled
    so_far[0].zero_()
    if return_coupling and n_iters == coupled:
        coupling.fill_(1 / (passes.sizes.upper + leaky))
    with on(u.device):
        logits = passes.empty(1, passes.sizes.upper)[0] if n_iters > coupled else None
        for t in range(n_iters):
            last, given = t == n_iters - 1, logits if t >= coupled else None
            softmax = None if given is None else passes.logits(so_far[t], None, None, given)
            parts = passes.sums(given, softmax, coupling if last and return_coupling and t >= coupled else None)
            passes.squash(
                parts,
                bias,
                so_far[t],
                sums[t],
                pose if last else so_far[t + 1],
                activation if last else None,
            )
    return made


@torch.library.custom_op("torchcaps::dynamic_routing_triton_backward", mutates_args=())
def backward_op(
    d_pose: Tensor,
    d_activation: Tensor,
    d_coupling: Tensor | None,
    u: Tensor,
    weight: Tensor,
    b0: Tensor | None,
    states: Tensor,
    leaky: bool,
    full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward_op`: u, weight, bias and b0, the last ``[0]`` where there is none."""
    if not d_pose.numel():
        return tuple(x.zero_() for x in gradients(u, weight, b0))  # type: ignore[return-value]
    passes = _Passes(u, weight, b0, states.dtype, leaky)
    d_pose, d_activation = d_pose.contiguous(), d_activation.contiguous()
    d_coupling = None if d_coupling is None else d_coupling.contiguous()
    (sums, so_far), last = states, states.shape[1] - 1
    first = 0 if full else last
    coupled = max(first, passes.coupled)
    with on(u.device):
        ds, dv = torch.empty_like(sums), torch.zeros_like(d_pose)
        passes.squash_backward(None, sums[last], d_pose, d_activation, ds[last])
        couplings = passes.empty(last + 1 - coupled, 2, passes.sizes.upper)  # b and dc, then c and db
        for t in range(last, coupled - 1, -1):
            here, asked = couplings[t - coupled], d_coupling if t == last else None
            softmax = passes.logits(so_far[t], ds[t], asked, here)
            parts = passes.sums(here, softmax, None, backward=True)
            if full and t > 0:
                passes.squash_backward(parts, sums[t - 1], dv, None, ds[t - 1])
        span = {"FIRST": first, "COUPLED": coupled, "N_ITERS": last + 1, "FULL": full}
        du = passes.pose(so_far, ds, couplings, span)
        return du, *passes.weight(so_far, ds, couplings, span)


register(forward_op, backward_op, "triton", KEPT)


class _Passes:
    """The kernels, started on one problem.

    Attributes:
        coupled: the first iteration whose couplings differ.
    """

    def __init__(self, u: Tensor, weight: Tensor, b0: Tensor | None, dtype: torch.dtype, leaky: bool) -> None:
        (n_images, n_in, d_in), (n_out, d_out) = u.shape, weight.shape[1::2]
        self.u, self.w = u.contiguous(), weight.contiguous()
        self.b0 = None if b0 is None else b0.contiguous()
        self.coupled = 1 if b0 is None else 0
        self.dtype = dtype
        self.kernels = load("dynamic")
        mode = precision(u, weight)
        self.sizes = Sizes(n_images, n_in, n_out, d_in, d_out, dtype.itemsize, mode == "bfloat16")
        self.options = {"LEAKY": leaky, "PRECISION": mode}

    def empty(self, *shape: int) -> Tensor:
        """Allocate numbers of each image and lower capsule, ``[*shape, B, I]``."""
        return self.memory(*shape, self.sizes.images, self.sizes.lower)

    def memory(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.u.device)

    def logits(self, v: Tensor, ds: Tensor | None, d_coupling: Tensor | None, logits: Tensor) -> Tensor:
        """Fill ``logits`` with b ``[J, B, I]``, or b and dc where ds is given; gives what makes couplings of them."""
        cuts, softmax = launch("logits_pass", self.sizes), self.empty(3)
        if cuts.chunks:
            self.kernels.logits_pass[(cuts.blocks * cuts.chunks,)](
                self.u,
                self.w,
                self.b0,
                v,
                ds,
                d_coupling,
                logits,
                softmax,
                self.sizes.images,
                self.sizes.lower,
                cuts.blocks,
                **cuts.constants,
                **self.options,
            )
        return softmax

    def sums(
        self, logits: Tensor | None, softmax: Tensor | None, coupling: Tensor | None, backward: bool = False
    ) -> Tensor:
        """Sum parts ``[., B, J, d_out]`` of Σ_i c û; backward, of Σ_i db û, and ``logits`` becomes c and db."""
        cuts = launch("sums_pass", self.sizes)
        n_parts, per_part = cuts.parts(cuts.chunks, cuts.blocks * self.sizes.upper)
        parts = self.memory(n_parts, self.sizes.images, self.sizes.upper, self.sizes.d_out)
        if n_parts:
            self.kernels.sums_pass[cuts.blocks, n_parts, self.sizes.upper](
                self.u,
                self.w,
                logits,
                softmax,
                coupling,
                parts,
                self.sizes.images,
                self.sizes.lower,
                per_part,
                **cuts.constants,
                **self.options,
                BACKWARD=backward,
            )
        return parts

    def squash(self, parts: Tensor, bias: Tensor | None, *rest: Tensor | None) -> None:
        """Compute s of an iteration from its parts, and v."""
        grid, constants = rows(self.sizes, len(parts))
        n_rows = self.sizes.images * self.sizes.upper
        self.kernels.squash_pass[grid](parts, bias, *rest, len(parts), n_rows, J=self.sizes.upper, **constants)

    def squash_backward(self, parts: Tensor | None, *rest: Tensor | None) -> None:
        """Compute ds of an iteration, from dv and the parts that are added to it."""
        n_parts = 0 if parts is None else len(parts)
        grid, constants = rows(self.sizes, n_parts)
        n_rows = self.sizes.images * self.sizes.upper
        self.kernels.squash_backward_pass[grid](parts, *rest, n_parts, n_rows, **constants)

    def pose(self, v: Tensor, ds: Tensor, couplings: Tensor, span: dict[str, int]) -> Tensor:
        """Compute du of all iterations in ``span``."""
        cuts, du = launch("pose_gradient_pass", self.sizes), torch.empty_like(self.u)
        if cuts.chunks:
            self.kernels.pose_gradient_pass[(cuts.blocks * cuts.chunks,)](
                self.w,
                v,
                ds,
                couplings,
                du,
                self.sizes.images,
                self.sizes.lower,
                cuts.blocks,
                **cuts.constants,
                **self.options,
                **span,
            )
        return du

    def weight(self, v: Tensor, ds: Tensor, couplings: Tensor, span: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute dW, and the gradients of bias and b0, the last ``[0]`` where there is none."""
        if not self.sizes.lower:
            d_b0 = self.memory(0) if self.b0 is None else torch.empty_like(self.b0)
            return torch.empty_like(self.w), ds[span["FIRST"] :].sum(dim=(0, 1)), d_b0
        cuts = launch("weight_gradient_pass", self.sizes)
        others = cuts.chunks * self.sizes.upper
        n_parts, per_part = cuts.parts(cuts.blocks, others)
        d_weight = self.memory(n_parts, *self.w.shape, dtype=self.w.dtype if n_parts == 1 else self.dtype)
        d_bias = self.memory(n_parts, *self.w.shape[1::2])
        d_b0 = None if self.b0 is None else self.memory(n_parts, *self.b0.shape)
        self.kernels.weight_gradient_pass[cuts.chunks, self.sizes.upper, n_parts](
            self.u,
            v,
            ds,
            couplings,
            d_weight,
            d_b0,
            d_bias,
            self.sizes.images,
            self.sizes.lower,
            per_part,
            **cuts.constants,
            **self.options,
            **span,
        )
        made = d_weight, d_bias, self.memory(1, 0) if d_b0 is None else d_b0
        d_weight, d_bias, d_b0 = (x[0] if len(x) == 1 else x.sum(0) for x in made)
        return d_weight.to(self.w.dtype), d_bias, d_b0


def precision(u: Tensor, weight: Tensor) -> str:
    """Say how matrices are multiplied: as exactly as in float32, unless torch is set to multiply in TF32."""
    if computed_in(u, weight) == torch.float64:
        return "ieee"
    if u.dtype == weight.dtype == torch.bfloat16:
        return "bfloat16"
    return "tf32" if allows_tf32() else "tf32x3"


def _limit(poses: Tensor, matrices: Tensor) -> str | None:
    """Describe why the kernels do not take such tensors; None where they do."""
    if matrices.dim() != 4:
        return None
    d_in, d_out = map(int, matrices.shape[2:])  # not symbols, of which no power can be found
    wrong = too_large(d_in, d_out, computed_in(poses, matrices).itemsize)
    return None if wrong is None else f"the kernels of dynamic routing take {wrong}"


LIMITS["dynamic"] = _limit
