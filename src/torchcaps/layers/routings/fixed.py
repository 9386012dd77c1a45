"""Controls: couplings that no image changes, as objects that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from torchcaps.checks import check_flag, check_number
from torchcaps.layers.routing import Init, Part, Sizes
from torchcaps.layers.routings.options import known_sizes
from torchcaps.layers.routings.vote_sum import VoteSum
from torchcaps.ops import Capsules, fixed_routing


@dataclass(frozen=True)
class UniformRouting(VoteSum):
    """Route nothing: every lower capsule gives 1/J to each upper one, see :func:`torchcaps.ops.fixed_routing`.

    The control that says what a routing is for. It equals :class:`~torchcaps.layers.DynamicRouting` with one iteration,
    and begins with the same initial values.

    Attributes:
        shared: Let all lower capsules share one matrix for each upper one, ``[1, J, d_in, d_out]``, as Aff-CapsNet
            does. They count through their sum alone then: CapsNet's classes have 1,280 weights instead of 1,474,560.
        bias: Learn a bias ``[J, d_out]``.
        weight_std: Standard deviation of the initial transformation matrices; None for that of dynamic routing.
        vote_scale: Fixed factor on the poses below; None for that of dynamic routing.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> DenseCaps(1152, 10, 8, 16, routing=UniformRouting(shared=True)).weight.shape
        torch.Size([1, 10, 8, 16])

    Source: Sabour et al. 2017, procedure 1 with one iteration; Gu, Tresp 2020, Improving the Robustness of Capsule
    Networks to Image Affine Transformations, arXiv 1911.07968 (``shared``).
    """

    name: ClassVar[str] = "uniform"

    _: KW_ONLY
    shared: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("shared", self.shared)
        check_flag("bias", self.bias)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight and, where it is asked for, the bias."""
        weight, bias = self.initial(sizes, bias=self.bias)
        if self.shared:
            weight = weight._replace(shape=(1, *weight.shape[1:]), per_child=False)
        return {"weight": weight, "bias": bias}

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Route by :func:`torchcaps.ops.fixed_routing`."""
        return fixed_routing(capsules.pose, **parts, return_coupling=return_coupling)


@dataclass(frozen=True)
class RandomRouting(UniformRouting):
    """Route at random: couplings are drawn once, and stay, see :func:`torchcaps.ops.fixed_routing`.

    c_ij = r_ij / Σ_k r_ik with r_ij uniform between ``low`` and ``high``. They are a buffer: saved with the weights,
    drawn again by ``reset_parameters``, and the same for every image. (The baseline of Paik et al. is reported to draw
    anew in each pass, between 0.8 and 1.2; we did not see its code.)

    Attributes:
        low: The least that is drawn.
        high: The most.
        shared: Share matrices among lower capsules, see :class:`UniformRouting`.
        bias: Learn a bias ``[J, d_out]``.
        weight_std: Standard deviation of the initial transformation matrices; None for that of dynamic routing.
        vote_scale: Fixed factor on the poses below; None for that of dynamic routing.

    Raises:
        ValueError: A value out of range; ``low`` not above 0, or ``high`` below it.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(6, 3, 8, 16, routing=RandomRouting(0.5, 1.5))
        >>> layer.coupling.shape, layer.coupling.requires_grad
        (torch.Size([6, 3]), False)

    Source: Paik, Kwak, Kim 2019, Capsule Networks Need an Improved Routing Algorithm, arXiv 1907.13327.
    """

    name: ClassVar[str] = "random"

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            check_number(name, getattr(self, name))
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(f"low and high must be 0 < low ≤ high, got {self.low} and {self.high}")

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight, the bias, and the couplings ``[I, J]``, which are not learned."""
        n_in, n_out, _, _ = known_sizes(sizes)
        draw = partial(_draw_couplings, low=self.low, high=self.high)
        return {**super().parts(sizes), "coupling": Init((n_in, n_out), draw, per_child=True, learned=False)}


def _draw_couplings(coupling: Tensor, low: float, high: float) -> None:
    """Fill ``[I, J]`` in place with positive numbers that sum to one over J."""
    nn.init.uniform_(coupling, low, high)
    coupling.div_(coupling.sum(dim=1, keepdim=True))
