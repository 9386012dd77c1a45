"""Dynamic routing (Sabour, Frosst, Hinton 2017), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torchcaps.checks import check_flag, check_number, check_positive
from torchcaps.layers.init import routing_std, step_scale, truncated_normal_, votes_reach
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.options import check_iterated, check_weight_std, known_sizes
from torchcaps.ops import Capsules, dynamic_routing


@dataclass(frozen=True)
class DynamicRouting(Routing):
    """Dynamic routing by agreement, see :func:`torchcaps.ops.dynamic_routing`.

    Attributes:
        n_iters: Passes.
        leaky: Let lower capsules route to nothing.
        bias: Learn a bias ``[J, d_out]``.
        bias_init: Its initial value; the authors of CapsNet took 0.1.
        learned_logits: Learn the initial logits ``[I, J]``.
        weight_std: Standard deviation of the initial transformation matrices. By default stacked layers train, see
            :mod:`torchcaps.layers.init`.
        vote_scale: Fixed factor on the poses below. The papers have none, which is 1. By default it is a power of two
            such that a step of 1e-3 moves no capsule far: 1, except where many capsules vote for few; and 1 where
            ``weight_std`` is given.
        backprop: "full", or "last" for the gradient of the last pass alone.
        backend: What computes it, see :func:`torchcaps.ops.which_backend`.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> DenseCaps(6, 3, 8, 16, routing=DynamicRouting(n_iters=2, leaky=True)).routing.n_iters
        2

    Source: Sabour, Frosst, Hinton 2017, section 2, procedure 1.
    """

    name: ClassVar[str] = "dynamic"
    squashes: ClassVar[bool] = True

    n_iters: int = 3
    _: KW_ONLY
    leaky: bool = False
    bias: bool = True
    bias_init: float = 0.0
    learned_logits: bool = False
    weight_std: float | None = None
    vote_scale: float | None = None
    backprop: str = "full"
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_iterated(n_iters=self.n_iters, backprop=self.backprop, backend=self.backend)
        check_weight_std(self.weight_std)
        check_number("bias_init", self.bias_init)
        for name in ("bias", "learned_logits", "leaky"):
            check_flag(name, getattr(self, name))
        if self.vote_scale is not None:
            check_positive("vote_scale", self.vote_scale)

    def vote_scale_for(self, sizes: Sizes) -> float:
        """Return ``vote_scale``; where it is None, the factor with which training starts well."""
        if self.vote_scale is not None:
            return self.vote_scale
        reach = votes_reach(sizes.n_children, sizes.n_out, sizes.d_in)
        return step_scale(reach, sizes.d_out) if self.weight_std is None else 1.0

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight and, where the options ask for them, the bias and the initial logits."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        std = self.weight_std
        if std is None:
            std = routing_std(sizes.n_children, n_out, d_out, n_out + self.leaky) / self.vote_scale_for(sizes)
        return {
            "weight": Init((n_in, n_out, d_in, d_out), partial(truncated_normal_, std=std), per_child=True),
            "bias": Init.constant((n_out, d_out), self.bias_init) if self.bias else None,
            "initial_logits": Init.constant((n_in, n_out), 0.0)._replace(per_child=True)
            if self.learned_logits
            else None,
        }

    def with_full_gradient(self) -> Self:
        """Return this routing with a gradient through every iteration."""
        return replace(self, backprop="full")

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the deviation of poses of length ½."""
        return 0.5 / math.sqrt(sizes.d_out)  # of length ½

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
    ) -> Capsules:
        """Route by :func:`torchcaps.ops.dynamic_routing`."""
        return dynamic_routing(
            capsules.pose,
            **parts,
            n_iters=self.n_iters if n_iters is None else n_iters,
            leaky=self.leaky,
            backprop=self.backprop,
            backend=self.backend,
            return_coupling=return_coupling,
        )
