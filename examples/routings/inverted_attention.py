"""Inverted dot-product attention (Tsai, Srivastava, Goh, Salakhutdinov 2020): upper capsules ask, lower ones choose.

DenseCaps(800, 10, 36, 36, routing=InvertedAttention(n_iters=2))  # 6×6 matrices
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from torchcaps import Capsules
from torchcaps.layers import Init, Part, Routing, Sizes
from torchcaps.layers.base import RoutedLayer


@dataclass(frozen=True)
class InvertedAttention(Routing):
    """Route square matrices by their agreement with the upper capsules of the pass before.

    With votes V_ij = M_i W_ij and the upper poses p_j of the pass before,

        r_ij = softmax_j(⟨V_ij, p_j⟩ / √d),    p_j ← LN(Σ_i r_ij V_ij).

    In the first pass r_ij = 1/J, unless a call hands over a ``state``. The layer norm is a module of the layer. The
    activations are logits: one linear map of each pose, the same for all upper capsules. Train with cross-entropy.

    Attributes:
        n_iters: Passes of a layer before the next one begins, which is the paper's sequential routing. For its
            concurrent routing see :func:`concurrent`.

    Source: Tsai et al., ICLR 2020, section 3, algorithm 1.
    """

    name: ClassVar[str] = "inverted attention"
    pose = "matrix"

    n_iters: int = 1

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight, the normalization of upper poses, and weight and bias of the scores."""
        side = math.isqrt(sizes.d_in)
        if sizes.n_in is None or sizes.d_in != sizes.d_out or side * side != sizes.d_in:
            raise ValueError(f"d_in and d_out must be one square number, got {sizes.d_in} and {sizes.d_out}")
        std = math.sqrt(sizes.n_out / (side * sizes.n_children))
        return {
            "weight": Init((sizes.n_in, sizes.n_out, side, side), partial(nn.init.normal_, std=std), per_child=True),
            "norm": partial(nn.LayerNorm, sizes.d_out),
            "score_weight": Init((sizes.d_out,), partial(nn.init.normal_, std=sizes.d_out**-0.5)),
            "score_bias": Init.constant((), 0.0),
        }

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
        state: Capsules | None = None,
    ) -> Capsules:
        """Route all at once, from the state of the pass before where there is one."""
        weight = parts["weight"]
        side = weight.shape[-1]
        matrices = capsules.pose.unflatten(-1, (side, side))
        votes = torch.einsum("bimk,ijkn->bijmn", matrices, weight).flatten(-2)  # [B, I, J, d]
        upper = None if state is None else state.pose.reshape(len(votes), -1, side * side)  # [B, J, d]
        share = votes.new_full(votes.shape[:3], 1 / votes.shape[2])
        for _ in range(self.n_iters if n_iters is None else n_iters):
            if upper is not None:
                share = (torch.einsum("bijd,bjd->bij", votes, upper) / side).softmax(dim=2)  # √d = side
            upper = parts["norm"](torch.einsum("bij,bijd->bjd", share, votes))
        assert upper is not None
        logit = upper @ parts["score_weight"] + parts["score_bias"]
        return Capsules(upper.unflatten(-1, (side, side)), logit, share if return_coupling else None)


def concurrent(layers: Sequence[RoutedLayer], capsules: Capsules, n_passes: int) -> list[Capsules]:
    """Update all layers at once in every pass but the first, each from what the pass before left.

    Args:
        layers: Capsule layers with :class:`InvertedAttention`, the lowest first.
        capsules: Below the lowest.
        n_passes: Passes over all layers, at least 1.

    Returns:
        The capsules of each layer.

    Source: Tsai et al. 2020, section 3, concurrent routing.
    """
    upper: list[Capsules] = []
    for layer in layers:  # bottom to top
        upper.append(layer([capsules, *upper][-1], n_iters=1))
    for _ in range(n_passes - 1):
        below = [capsules, *upper[:-1]]
        upper = [layer(x, state=y, n_iters=1) for layer, x, y in zip(layers, below, upper, strict=True)]
    return upper
