"""Dynamic routing (Sabour, Frosst, Hinton 2017), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_flag, check_number, check_positive
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
        learned_logits: Learn the initial logits ``[I, J]``; ``[1, J]`` of lower capsules that share their matrices.
        drawn_logits: Draw initial logits from N(0, 1) once, for so many lower capsules as come at most. They are a
            buffer: saved with the weights, drawn again by ``reset_parameters``, the same in every call. The first row
            is that of the first lower capsule, so that order counts. None for 0.
        shared: Let all lower capsules share one matrix for each upper one, ``[1, J, d_in, d_out]``. Any number of them
            may come then: give the layer ``n_in=None``, and as ``n_places`` how many come on average, for initial
            values. "pairs" for one matrix in all, ``[1, 1, d_in, d_out]``; upper capsules then differ by their initial
            logits alone (and by their bias).
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
        >>> import torch
        >>> layer = DenseCaps(None, 4, 16, 16, n_places=30, routing=DynamicRouting(shared=True))
        >>> words, there = torch.rand(2, 50, 16), torch.arange(50) < torch.tensor([[50], [7]])  # the second row has 7
        >>> layer(words, mask=there).pose.shape
        torch.Size([2, 4, 16])

    Source: Sabour, Frosst, Hinton 2017, section 2, procedure 1. ``shared`` and ``drawn_logits``: Li et al. 2019,
    Multi-Interest Network with Dynamic Routing (MIND), arXiv 1904.08030, which has "pairs" and draws.
    """

    name: ClassVar[str] = "dynamic"
    squashes: ClassVar[bool] = True

    n_iters: int = 3
    _: KW_ONLY
    leaky: bool = False
    bias: bool = True
    bias_init: float = 0.0
    learned_logits: bool = False
    drawn_logits: int | None = None
    shared: bool | str = False
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
        if not isinstance(self.shared, bool) and self.shared != "pairs":
            raise ValueError(f"shared must be True, False or 'pairs', got {self.shared!r}")
        if self.drawn_logits is not None:
            check_at_least("drawn_logits", self.drawn_logits, 1)
            if self.learned_logits:
                raise ValueError(f"drawn_logits must be None with learned_logits, got {self.drawn_logits}")

    @property
    def any_n_in(self) -> bool:  # type: ignore[override]
        """Whether any number of lower capsules may come."""
        return bool(self.shared)

    def vote_scale_for(self, sizes: Sizes) -> float:
        """Return ``vote_scale``; where it is None, the factor with which training starts well."""
        if self.vote_scale is not None:
            return self.vote_scale
        reach = votes_reach(sizes.n_children, sizes.n_out, sizes.d_in)
        return step_scale(reach, sizes.d_out) if self.weight_std is None else 1.0

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight and, where the options ask for them, the bias and the initial logits."""
        n_out, d_in, d_out = sizes.n_out, sizes.d_in, sizes.d_out
        n_rows = 1 if self.shared else known_sizes(sizes)[0]
        std = self.weight_std
        if std is None:
            std = routing_std(sizes.n_children, n_out, d_out, n_out + self.leaky) / self.vote_scale_for(sizes)
        shape = (n_rows, 1 if self.shared == "pairs" else n_out, d_in, d_out)
        return {
            "weight": Init(shape, partial(truncated_normal_, std=std), per_child=not self.shared),
            "bias": Init.constant((n_out, d_out), self.bias_init) if self.bias else None,
            "initial_logits": self._logits(sizes, n_rows),
        }

    def _logits(self, sizes: Sizes, n_rows: int) -> Init | None:
        """Describe the initial logits that the layer keeps."""
        if self.learned_logits:
            return Init.constant((n_rows, sizes.n_out), 0.0)._replace(per_child=not self.shared)
        if self.drawn_logits is None:
            return None
        if self.drawn_logits < (sizes.n_in or 0):
            raise ValueError(f"drawn_logits must be at least n_in={sizes.n_in}, got {self.drawn_logits}")
        return Init((int(self.drawn_logits), sizes.n_out), nn.init.normal_, learned=False)

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
        mask: Tensor | None = None,
        initial_logits: Tensor | None = None,
    ) -> Capsules:
        """Route by :func:`torchcaps.ops.dynamic_routing`; ``initial_logits`` take the place of the layer's."""
        n_in = capsules.pose.shape[1]
        given = dict(parts)
        if initial_logits is not None:
            given["initial_logits"] = initial_logits
        elif self.drawn_logits is not None:
            if n_in > self.drawn_logits:
                raise ValueError(f"capsules must be at most drawn_logits={self.drawn_logits} in number, got {n_in}")
            given["initial_logits"] = given["initial_logits"][:n_in]
        elif self.shared == "pairs" and given["initial_logits"] is None:
            raise ValueError(
                "initial_logits must be given where all pairs share one matrix, or all upper capsules are equal: take "
                "drawn_logits, or hand them over with the call; got None"
            )
        return dynamic_routing(
            capsules.pose,
            **given,
            mask=mask,
            n_iters=self.n_iters if n_iters is None else n_iters,
            leaky=self.leaky,
            backprop=self.backprop,
            backend=self.backend,
            return_coupling=return_coupling,
        )
