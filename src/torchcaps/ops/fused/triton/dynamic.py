"""Dynamic routing on CUDA devices, as operators that torch knows; the algebra is in ``ops/fused/dynamic.py``.

Kept for the backward pass are the weighted sums of all iterations and the sums of outputs that their logits came
from, V: 2·n_iters times the size of the result.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.fused.dynamic_operator import gradients, outputs, register
from torchcaps.ops.fused.operators import refuse_forward_derivative
from torchcaps.ops.fused.triton.cuts import FUSED, cut, power
from torchcaps.ops.fused.triton.library import load, on

#: Numbers of a tile, and how many of them a warp holds: the five tiles of the last pass are to stay in registers.
TILE, OF_WARP = 4096, 512
#: Of the capsules of one image, which a tile holds at the least: larger ones would be compiled for minutes, and spill.
LARGEST = 16384
#: Tensors of the pose's size that are kept of each iteration: s and V.
KEPT = 2


@torch.library.custom_op("torchcaps::dynamic_routing_triton", mutates_args=())
def routed(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prior: Tensor | None,
    n_iters: int,
    leaky: bool,
    full: bool,  # noqa: ARG001 (for the backward pass)
    return_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Dynamic routing in float32, or in float64 where u or weight has it.

    Args:
        u: ``[B, I, d_in]``. The others are those of :func:`torchcaps.ops.dynamic_routing`; ``full`` says
            whether its gradient is "full". bias and prior are of the dtype that is computed in.

    Returns:
        pose ``[B, J, d_out]``, activation ``[B, J]``, coupling ``[B, I, J]`` or ``[0]`` unless asked for,
        and s and V of all iterations ``[2, n_iters, B, J, d_out]``, which the backward pass needs.
    """
    refuse_forward_derivative(u, weight, bias, prior)
    made = outputs(u, weight, n_iters, return_coupling, KEPT)
    pose, activation, coupling, states = made
    u, weight = u.contiguous(), weight.contiguous()
    bias, prior = (None if x is None else x.contiguous() for x in (bias, prior))
    if not pose.numel():
        return made
    kernels, blocks = load("dynamic"), _Blocks.of(u, weight)
    sums, so_far = states
    parts = torch.empty((blocks.parts, *pose.shape), dtype=pose.dtype, device=pose.device)
    so_far[0].zero_()
    with on(u.device):
        for t in range(n_iters):
            last = t == n_iters - 1
            if blocks.parts:
                kernels.forward_pass[blocks.images, blocks.parts](
                    u,
                    weight,
                    prior,
                    so_far[t],
                    parts,
                    coupling if last and return_coupling else None,
                    *blocks.sizes,
                    **blocks.tile,
                    LEAKY=leaky,
                )
            kernels.squash_pass[blocks.rows](
                parts,
                bias,
                so_far[t],
                sums[t],
                pose if last else so_far[t + 1],
                activation if last else None,
                blocks.parts,
                activation.numel(),
                weight.shape[1],
                **blocks.row_tile,
            )
    return made


@torch.library.custom_op("torchcaps::dynamic_routing_triton_backward", mutates_args=())
def routed_backward(
    d_pose: Tensor,
    d_activation: Tensor,
    d_coupling: Tensor | None,
    u: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    states: Tensor,
    leaky: bool,
    full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of :func:`routed`: u, weight, bias and prior, the last ``[0]`` where there is none."""
    made = gradients(u, weight, prior)
    if not d_pose.numel():
        return tuple(x.zero_() for x in made)  # type: ignore[return-value]
    given = d_pose, d_activation, d_coupling, u, weight, prior
    d_pose, d_activation, d_coupling, u, weight, prior = (None if x is None else x.contiguous() for x in given)  # type: ignore[assignment]
    kernels, blocks, n_iters = load("dynamic"), _Blocks.of(u, weight), states.shape[1]
    (sums, so_far), n_rows = states, d_activation.numel()
    ds, dv = torch.empty(sums.shape, dtype=sums.dtype, device=sums.device), torch.zeros_like(d_pose)
    parts = torch.empty((blocks.parts, *d_pose.shape), dtype=ds.dtype, device=ds.device)
    # In the dtype of the sums: rounded to that of the inputs once, at the end.
    du, d_weight = (torch.empty(x.shape, dtype=ds.dtype, device=ds.device) for x in (u, weight))
    d_prior = None if prior is None else made[3]
    with on(u.device):
        last = n_iters - 1
        kernels.squash_backward_pass[blocks.rows](
            None, sums[last], d_pose, d_activation, ds[last], 0, n_rows, **blocks.row_tile
        )
        for t in range(last, 0, -1) if full else ():
            if blocks.parts:
                kernels.backward_pass[blocks.images, blocks.parts](
                    u,
                    weight,
                    prior,
                    so_far[t],
                    ds[t],
                    d_coupling if t == last else None,
                    parts,
                    *blocks.sizes,
                    **blocks.tile,
                    LEAKY=leaky,
                )
            kernels.squash_backward_pass[blocks.rows](
                parts, sums[t - 1], dv, None, ds[t - 1], blocks.parts, n_rows, **blocks.row_tile
            )
        if blocks.parts:
            kernels.final_pass[(u.shape[1],)](
                u,
                weight,
                prior,
                so_far,
                ds,
                d_coupling,
                du,
                d_weight,
                d_prior,
                *blocks.sizes[:2],
                **blocks.tile,
                N_ITERS=n_iters,
                FULL=full,
                LEAKY=leaky,
            )
    d_bias = (ds if full else ds[-1:]).sum(dim=(0, 1))
    return du.to(u.dtype), d_weight.to(weight.dtype), d_bias, made[3]


register(routed, routed_backward, "triton", KEPT)


class _Blocks(NamedTuple):
    """How the work is cut: by the sizes alone, so that results depend on nothing else.

    Attributes:
        images: blocks of images.
        parts: cuts of the sum over lower capsules.
        rows: programs over rows (image, upper capsule).
        sizes: B, I, and lower capsules of a part.
        tile: constants of the passes over lower capsules.
        row_tile: those of the passes over rows.
    """

    images: int
    parts: int
    rows: tuple[int]
    sizes: tuple[int, int, int]
    tile: dict[str, int]
    row_tile: dict[str, int]

    @classmethod
    def of(cls, u: Tensor, weight: Tensor) -> _Blocks:
        (n_images, n_in, d_in), (n_out, d_out) = u.shape, weight.shape[1::2]
        upper, elements = power(n_out), power(d_out)
        if upper * elements > LARGEST:
            raise ValueError(
                f"impl='triton' takes at most {LARGEST:,} numbers of upper capsules an image, J and d_out each rounded "
                f"up to a power of two, got J={n_out}, d_out={d_out}: take impl='reference'"
            )
        block = min(max(1, TILE // (upper * elements)), power(n_images), 64)
        images = math.ceil(n_images / block)
        per_part = cut(n_in, images)
        parts = math.ceil(n_in / per_part)
        tile = {"D": d_in, "J": n_out, "E": d_out, "N": block, "JP": upper, "EP": elements}
        warps = min(max(block * upper * elements // OF_WARP, 1), 16)
        together = min(max(1, 1024 // elements), power(parts), 64)
        row_tile = {"E": d_out, "R": 4, "PP": together, "EP": elements, "num_warps": 4 if together > 4 else 1}
        rows = (math.ceil(n_images * n_out / 4),)
        return cls(
            images, parts, rows, (n_images, n_in, per_part), tile | {"num_warps": warps} | FUSED, row_tile | FUSED
        )
