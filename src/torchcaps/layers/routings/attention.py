"""Attention routing (Choi, Seo, Im, Kang 2019), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import nn

from torchcaps.checks import check_positive
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.options import check_weight_std, known_sizes
from torchcaps.ops import Capsules, attention_routing


@dataclass(frozen=True)
class AttentionRouting(Routing):
    """Route by logits that are linear in all votes for a capsule, see :func:`torchcaps.ops.attention_routing`.

    The logits have I² · J · d_out weights, so this is for few lower capsules: the authors have 8 types. The activation
    is the length of the pose over √d_out, 0 … 1.

    Attributes:
        pose_scale: Standard deviation of the poses below at first.
        weight_std: Standard deviation of the initial transformation matrices; by default the mean of the votes has a
            deviation of 1.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(8, 10, 16, 16, routing=AttentionRouting())
        >>> sum(p.numel() for p in layer.parameters())  # votes, attention, and the maps at the end
        34720

    Source: Choi, Seo, Im, Kang 2019, Attention Routing Between Capsules, arXiv 1907.01750.
    """

    name: ClassVar[str] = "attention"

    _: KW_ONLY
    pose_scale: float = 1.0
    weight_std: float | None = None

    def __post_init__(self) -> None:
        check_positive("pose_scale", self.pose_scale)
        check_weight_std(self.weight_std)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name weight and bias of the votes, the attention, and weight and bias of the capsule activation."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        std = math.sqrt(sizes.n_children / d_in) / self.pose_scale if self.weight_std is None else self.weight_std
        # Votes have a deviation of √n then, and a logit reads n of them.
        attention = 0.5 / (sizes.n_children * math.sqrt(d_out))
        return {
            "weight": Init((n_in, n_out, d_in, d_out), partial(nn.init.normal_, std=std), per_child=True),
            "vote_bias": Init((n_in, n_out, d_out), nn.init.zeros_, per_child=True),
            "attention_weight": Init(
                (n_in, n_in, n_out, d_out), partial(nn.init.normal_, std=attention), per_child=True
            ),
            "activation_weight": Init((n_out, d_out, d_out), partial(nn.init.normal_, std=d_out**-0.5)),
            "activation_bias": Init.constant((n_out, d_out), 0.0),
        }

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the deviation of tanh of normal numbers."""
        del sizes
        return 0.63

    def above(self, pose_scale: float) -> Self:
        """Return this routing for poses of this deviation."""
        return replace(self, pose_scale=pose_scale)

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Route by :func:`torchcaps.ops.attention_routing`."""
        return attention_routing(capsules.pose, **parts, return_coupling=return_coupling)
