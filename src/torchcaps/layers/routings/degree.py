"""Degree-centrality routing (Venkataraman, Balasubramanian, Sarma 2020), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar

from torchcaps.layers.init import truncated_normal_
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.options import check_weight_std, known_sizes
from torchcaps.ops import Capsules, degree_routing


@dataclass(frozen=True)
class DegreeRouting(Routing):
    """Route by how central a vote is among all votes for a capsule, see :func:`torchcaps.ops.degree_routing`.

    Upper capsules do not compete: couplings sum to one over the lower ones.

    Attributes:
        weight_std: Standard deviation of the initial transformation matrices; by default one lower capsule of length ½
            makes an upper one of length ½.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> DenseCaps(288, 10, 8, 16, routing=DegreeRouting()).weight.shape
        torch.Size([288, 10, 8, 16])

    Source: Venkataraman, Balasubramanian, Sarma 2020, Building Deep Equivariant Capsule Networks, ICLR, arXiv
    1908.01300.
    """

    name: ClassVar[str] = "degree"
    squashes: ClassVar[bool] = True

    _: KW_ONLY
    weight_std: float | None = None

    def __post_init__(self) -> None:
        check_weight_std(self.weight_std)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight of the votes."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        std = 2 / math.sqrt(d_out) if self.weight_std is None else self.weight_std
        return {"weight": Init((n_in, n_out, d_in, d_out), partial(truncated_normal_, std=std), per_child=True)}

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the deviation of poses of length ½."""
        return 0.5 / math.sqrt(sizes.d_out)

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Route by :func:`torchcaps.ops.degree_routing`."""
        return degree_routing(capsules.pose, parts["weight"], return_coupling=return_coupling)
