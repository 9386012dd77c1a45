"""Inverted dot-product attention (Tsai, Srivastava, Goh, Salakhutdinov 2020), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from torchcaps.checks import check_at_least, check_choice, check_flag
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.em import POSES
from torchcaps.layers.routings.options import known_sizes, shaped
from torchcaps.ops import Capsules, inverted_attention_routing
from torchcaps.ops.inverted_attention.routing import BACKENDS


@dataclass(frozen=True)
class InvertedAttentionRouting(Routing):
    """Route square matrices or vectors by inverted attention, see :func:`torchcaps.ops.inverted_attention_routing`.

    Activations are logits: one linear map of a pose, the same for all upper capsules. Train with cross-entropy.

    Attributes:
        n_iters: Passes of a layer before the next one begins, which is the paper's sequential routing. For its
            concurrent routing see :func:`torchcaps.layers.route_concurrently`.
        pose: "matrix" for n×n of any n, or "vector".
        scores: Learn the linear map. None for dense layers alone, as in the paper; without it all activations are 1.
        backend: What computes it: "auto", "reference", "cpu", or "triton" on CUDA devices. Compiled code, which stores
            no votes, is for 4×4 matrices.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(800, 20, 36, 36, routing=InvertedAttentionRouting(n_iters=2))  # 6×6 matrices
        >>> layer.weight.shape
        torch.Size([800, 20, 6, 6])

    Source: Tsai, Srivastava, Goh, Salakhutdinov 2020, ICLR, arXiv 2002.04764, section 3.
    """

    name: ClassVar[str] = "inverted_attention"
    bounded: ClassVar[bool] = False

    n_iters: int = 1
    _: KW_ONLY
    pose: str = "matrix"
    scores: bool | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_at_least("n_iters", self.n_iters, 1)
        check_choice("pose", self.pose, POSES)
        check_choice("backend", self.backend, BACKENDS)
        if self.scores is not None:
            check_flag("scores", self.scores)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight, scale and shift of the normalization, and weight and bias of the scores."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        side = math.isqrt(d_in)
        if self.pose == "matrix" and (d_in != d_out or side * side != d_in):
            raise ValueError(
                f"d_in and d_out must be one square number for matrices, got {d_in} and {d_out}; or take pose='vector'"
            )
        inner = (side, side) if self.pose == "matrix" else (d_in, d_out)
        std = math.sqrt(n_out / (inner[0] * sizes.n_children))
        scores = sizes.dense if self.scores is None else self.scores
        return {
            "weight": Init((n_in, n_out, *inner), partial(nn.init.normal_, std=std), per_child=True),
            "norm_weight": Init.constant((d_out,), 1.0),
            "norm_bias": Init.constant((d_out,), 0.0),
            "score_weight": Init((d_out,), partial(nn.init.normal_, std=d_out**-0.5)) if scores else None,
            "score_bias": Init.constant((), 0.0) if scores else None,
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
        """Route all at once, from the upper poses of ``state`` where there are any."""
        return inverted_attention_routing(
            shaped(capsules.pose, self.pose),
            **parts,
            n_iters=self.n_iters if n_iters is None else n_iters,
            initial=None if state is None else state.pose,
            backend=self.backend,
            return_coupling=return_coupling,
        )
