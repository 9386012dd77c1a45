"""What routings of vector votes have in common that squash one weighted sum of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.dynamic import DynamicRouting


@dataclass(frozen=True)
class VoteSum(Routing):
    """Base of routings without iterations, whose vector votes are summed and squashed.

    Initial values are those of :class:`~torchcaps.layers.DynamicRouting` with one iteration, so that a comparison
    differs in the routing alone.

    Attributes:
        weight_std: Standard deviation of the initial transformation matrices; None for that of dynamic routing.
        vote_scale: Fixed factor on the poses below; None for that of dynamic routing.

    Raises:
        ValueError: A value out of range.
    """

    squashes: ClassVar[bool] = True

    _: KW_ONLY
    weight_std: float | None = None
    vote_scale: float | None = None

    def __post_init__(self) -> None:
        self._one_pass()  # which refuses what is out of range

    def _one_pass(self, *, bias: bool = False) -> DynamicRouting:
        return DynamicRouting(1, bias=bias, weight_std=self.weight_std, vote_scale=self.vote_scale)

    def vote_scale_for(self, sizes: Sizes) -> float:
        """Return the fixed factor on the poses below, as dynamic routing has it."""
        return self._one_pass().vote_scale_for(sizes)

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the deviation of poses of length ½."""
        return self._one_pass().pose_scale_out(sizes)

    def initial(self, sizes: Sizes, *, bias: bool = False) -> tuple[Init, Part]:
        """Describe the weight ``[I, J, d_in, d_out]`` and, on demand, the bias ``[J, d_out]``."""
        parts: Mapping[str, Part] = self._one_pass(bias=bias).parts(sizes)
        weight = parts["weight"]
        assert isinstance(weight, Init)
        return weight, parts["bias"]
