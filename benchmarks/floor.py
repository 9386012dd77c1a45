"""The floor: the same networks without routing. Votes are summed with equal weights, which takes one product.

What a step costs more than this is what routing costs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops import Capsules


def equal_votes(u: Tensor, weight: Tensor, bias: Tensor | None, n_iters: int) -> Tensor:
    """Dynamic routing's first iteration, whatever ``n_iters``; arguments as in :mod:`.textbook`."""
    del n_iters
    n_in, n_out, d_in, d_out = weight.shape
    matrix = weight.transpose(1, 2).reshape(n_in * d_in, n_out * d_out)
    s = (u.flatten(1) @ matrix).unflatten(1, (n_out, d_out)) / n_out
    s = s if bias is None else s + bias
    square = s.square().sum(dim=-1, keepdim=True)
    return s * (square.sqrt() / (1 + square))


def in_place_of_votes(weight: Tensor) -> Tensor:
    """The same numbers, laid out in memory so that :func:`equal_votes` need not copy them."""
    return weight.transpose(1, 2).contiguous().transpose(1, 2)


def conv_equal_votes(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | tuple[int, int] = 1,
    offset: Tensor | None = None,
) -> Capsules:
    """The mean of the votes that active children have, as in EM routing's first M-step; a convolution.

    Arguments are those of :func:`torchcaps.ops.conv_em_routing`.

    Returns:
        pose ``[B, J, H', W', 4, 4]``; activation ``[B, J, H', W']``, some function of it that uses β.
    """
    (n_images, types, height, width), (rows, columns, n_out) = pose.shape[:4], weight.shape[1:4]
    active = (pose * activation[..., None, None]).permute(0, 4, 1, 5, 2, 3)  # [B, 4, T, 4, H, W]
    kernel = weight.permute(3, 5, 0, 4, 1, 2).reshape(n_out * 4, types * 4, rows, columns)
    total = F.conv2d(active.reshape(n_images * 4, types * 4, height, width), kernel, stride=stride)
    ones = activation.new_ones(1, types, rows, columns)
    mass = F.conv2d(activation, ones, stride=stride)  # [B, 1, H', W']
    mean = total.unflatten(0, (n_images, 4)).unflatten(2, (n_out, 4)).permute(0, 2, 4, 5, 1, 3)
    if offset is not None:
        shift = F.conv2d(activation, offset.flatten(3).permute(3, 0, 1, 2), stride=stride)  # [B, 16, H', W']
        mean = mean + shift.permute(0, 2, 3, 1).unflatten(3, (4, 4)).unsqueeze(1)
    mean = mean / (mass + 1e-7)[..., None, None]
    cost = beta_u[:, None, None] * mean.square().mean(dim=(-2, -1))
    return Capsules(mean, torch.sigmoid(beta_a[:, None, None] - cost))
