"""Homogeneous vector capsules: votes number by number and no routing, as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import nn

from torchcaps.layers.init import truncated_normal_
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.options import known_sizes
from torchcaps.ops import Capsules, elementwise_sum, safe_norm


@dataclass(frozen=True)
class ElementwiseRouting(Routing):
    """Vote number by number and add up, without routing, see :func:`torchcaps.ops.elementwise_sum`.

    v_j = ReLU(BN(Σ_i w_ij ⊙ u_i)). The batch normalization ``norm`` has a shift and no scale. It normalizes each of the
    D numbers over the batch, all upper capsules and all places: in training images depend on each other.

    The activation is the length ‖v_j‖, a logit of 0 or more: train with cross-entropy. Every vote counts in full, so
    all couplings are 1.

    Raises:
        ValueError: Lower and upper poses of different size.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(100, 10, 8, 8, routing=ElementwiseRouting())
        >>> layer.weight.shape, layer.bias.shape
        (torch.Size([100, 10, 8]), torch.Size([8]))

    Source: Byerly, Kalganova, Dear 2021, No Routing Needed Between Capsules, arXiv 2001.09136, and its code.
    """

    name: ClassVar[str] = "elementwise"
    bounded: ClassVar[bool] = False

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight ``[I, J, D]``, the batch normalization and its shift ``[D]``."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        if d_in != d_out:
            raise ValueError(f"d_in and d_out must be equal for elementwise votes, got {d_in} and {d_out}")
        std = 1 / math.sqrt(sizes.n_children)  # whose scale the normalization forgets
        return {
            "weight": Init((n_in, n_out, d_out), partial(truncated_normal_, std=std), per_child=True),
            "norm": partial(nn.BatchNorm1d, d_out, affine=False),
            "bias": Init.constant((d_out,), 0.0),
        }

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the root mean square of rectified numbers of deviation 1."""
        del sizes
        return math.sqrt(0.5)

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Add up, normalize and rectify."""
        weight, bias = parts["weight"], parts["bias"]
        s = elementwise_sum(capsules.pose, weight)
        pose = F.relu(parts["norm"](s.flatten(0, 1)).unflatten(0, s.shape[:2]) + bias)
        coupling = pose.new_ones(len(pose), *weight.shape[:2]) if return_coupling else None
        return Capsules(pose, safe_norm(pose), coupling)
