"""Votes: what each lower capsule predicts for each upper one."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.ops.checks import check_at_least, check_shapes


def dense_votes(u: Tensor, weight: Tensor) -> Tensor:
    """Every lower capsule votes for every upper one: û_ij = u_i W_ij.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: transformation matrices, ``[I, J, d_in, d_out]``.

    Returns:
        Votes, ``[B, I, J, d_out]``.

    Raises:
        ValueError: the shapes do not fit each other.

    Source: Sabour et al. 2017, section 2, equation 2 (left).
    """
    check_shapes(u=(u, "B I d_in"), weight=(weight, "I J d_in d_out"))
    return torch.einsum("bid,ijde->bije", u, weight)


def receptive_fields(capsules: Tensor, kernel_size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Gather the lower capsules that each place of the next map sees.

    Args:
        capsules: a map, ``[B, T, H, W, D]``.
        kernel_size: rows and columns of a receptive field.
        stride: rows and columns from one field to the next.

    Returns:
        ``[B, H', W', T·K_h·K_w, D]`` with H' = (H − K_h) // stride_h + 1, W' likewise. The children
        stand in the order type, row, column, as in ``capsules.flatten(1, 3)``.

    Raises:
        ValueError: not a capsule map, a size below 1, or a kernel larger than the map.
    """
    sizes = check_shapes(capsules=(capsules, "B T H W D"))
    for axis, extent, kernel, step in zip("HW", (sizes["H"], sizes["W"]), kernel_size, stride, strict=True):
        check_at_least("kernel_size", kernel, 1)
        check_at_least("stride", step, 1)
        if kernel > extent:
            raise ValueError(f"kernel_size must fit into the map, got {kernel} where {axis}={extent}")
    fields = capsules.unfold(2, kernel_size[0], stride[0]).unfold(3, kernel_size[1], stride[1])
    # [B, T, H', W', D, K_h, K_w]
    return fields.permute(0, 2, 3, 1, 5, 6, 4).flatten(3, 5)  # [B, H', W', I, D]
