"""Self-routing (Hahn, Pyeon, Kim 2019), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import nn

from torchcaps.checks import check_flag, check_positive
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.options import check_weight_std, known_sizes
from torchcaps.ops import Capsules, self_routing


@dataclass(frozen=True)
class SelfRouting(Routing):
    """Let each lower capsule decide alone where its vote goes, see :func:`torchcaps.ops.self_routing`.

    Activations are probabilities that sum to one over the upper capsules, at every place. Train with cross-entropy of
    their logarithms.

    Attributes:
        poses: Make poses. False for a layer of classes as the authors have it: without W, ``d_out`` is 1 and the pose
            is the activation.
        pose_scale: Standard deviation of the poses below at first, which those above then have, too.
        weight_std: Standard deviation of the initial transformation matrices; by default the mean of the votes spreads
            as far as the poses below.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(288, 10, 8, 16, routing=SelfRouting())
        >>> bool(layer.route_weight.any())  # all shares are equal at first
        False

    Source: Hahn, Pyeon, Kim 2019, Self-Routing Capsule Networks, NeurIPS, section 3.
    """

    name: ClassVar[str] = "self_routing"
    needs_activations: ClassVar[bool] = True

    _: KW_ONLY
    poses: bool = True
    pose_scale: float = 1.0
    weight_std: float | None = None

    def __post_init__(self) -> None:
        check_flag("poses", self.poses)
        check_positive("pose_scale", self.pose_scale)
        check_weight_std(self.weight_std)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the votes' weight, and weight and bias of the linear layers that share out the votes."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        if not self.poses and d_out != 1:
            raise ValueError(f"d_out must be 1 for self_routing without poses, got {d_out}")
        std = math.sqrt(sizes.n_children / d_in) if self.weight_std is None else self.weight_std
        weight = Init((n_in, n_out, d_in, d_out), partial(nn.init.normal_, std=std), per_child=True)
        return {
            "weight": weight if self.poses else None,
            "route_weight": Init((n_in, n_out, d_in), nn.init.zeros_, per_child=True),
            "route_bias": Init((n_in, n_out), nn.init.zeros_, per_child=True),
        }

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the deviation of the poses below."""
        del sizes
        return self.pose_scale

    def above(self, pose_scale: float) -> Self:
        """Return this routing for poses of this deviation."""
        return replace(self, pose_scale=pose_scale)

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Route by :func:`torchcaps.ops.self_routing`."""
        return self_routing(capsules.pose, capsules.activation, **parts, return_coupling=return_coupling)
