"""Variational-Bayes routing (De Sousa Ribeiro, Leontidis, Kollias 2020), as an object that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_flag, check_positive
from torchcaps.layers.init import truncated_normal_
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.em import POSES
from torchcaps.layers.routings.options import check_weight_std, known_sizes, shaped
from torchcaps.ops import Capsules, conv_variational_bayes_routing, variational_bayes_routing
from torchcaps.ops.variational_bayes.routing import BACKENDS


@dataclass(frozen=True)
class VariationalBayesRouting(Routing):
    """Route square matrices or vectors by Gaussians with priors, see :func:`torchcaps.ops.variational_bayes_routing`.

    Activations are probabilities. In convolutional layers upper capsules at different places compete for the lower ones
    that they all see.

    Attributes:
        n_iters: Passes.
        pose: "matrix" for n×n of any n, or "vector".
        normalize: Normalize poses and logits of activations over the batch at the end, for each type of upper capsule,
            as the authors do: in training images depend on each other. Nothing is learned in it.
        pose_scale: Standard deviation of the poses below at first.
        weight_std: Standard deviation of the initial transformation matrices; by default Xavier's for the capsules of a
            layer, about as in the authors' code. Votes are far narrower than the prior then, and all shares near even.
        backend: What computes it: "auto", "reference", "cpu", or "triton" on CUDA devices; see
            :func:`torchcaps.ops.which_backend`.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import ConvCaps
        >>> layer = ConvCaps(8, 16, 16, 16, 3, stride=2, routing=VariationalBayesRouting())
        >>> sum(p.numel() for p in layer.parameters())  # 8·9·16 matrices of 4×4, and two costs for each type
        18464

    Source: De Sousa Ribeiro, Leontidis, Kollias 2020, Capsule Routing via Variational Bayes, AAAI.
    """

    name: ClassVar[str] = "variational_bayes"
    needs_activations: ClassVar[bool] = True

    n_iters: int = 3
    _: KW_ONLY
    pose: str = "matrix"
    normalize: bool = True
    pose_scale: float = 1.0
    weight_std: float | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_at_least("n_iters", self.n_iters, 1)
        check_choice("pose", self.pose, POSES)
        check_flag("normalize", self.normalize)
        check_positive("pose_scale", self.pose_scale)
        check_weight_std(self.weight_std)
        check_choice("backend", self.backend, BACKENDS)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the weight, the two learned costs of each upper capsule, and the normalizations."""
        n_in, n_out, d_in, d_out = known_sizes(sizes)
        side = math.isqrt(d_in)
        if self.pose == "matrix" and (d_in != d_out or side * side != d_in):
            raise ValueError(
                f"d_in and d_out must be one square number for matrices, got {d_in} and {d_out}; or take pose='vector'"
            )
        inner = (side, side) if self.pose == "matrix" else (d_in, d_out)
        norm = partial(nn.BatchNorm1d, n_out, affine=False) if self.normalize else None
        return {
            "weight": Init((n_in, n_out, *inner), partial(truncated_normal_, std=self._std(sizes)), per_child=True),
            "beta_u": Init.constant((n_out,), 0.0),
            "beta_a": Init.constant((n_out,), 0.0),
            "norm_pose": norm,
            "norm_logit": norm,
        }

    def pose_scale_out(self, sizes: Sizes) -> float:
        """Return the deviation of the means: 1 if they are normalized."""
        if self.normalize:
            return 1.0
        inner = math.isqrt(sizes.d_in) if self.pose == "matrix" else sizes.d_in
        votes = self._std(sizes) * math.sqrt(inner) * self.pose_scale
        # Of lower capsules that are half active, and in maps shared with other places.
        mass = sizes.n_children / ((2 if sizes.dense else 6) * sizes.n_out)
        return votes * mass / (1 + mass) / math.sqrt(sizes.n_children)

    def _std(self, sizes: Sizes) -> float:
        """Return the deviation of the initial weights."""
        n_in, n_out, _, d_out = known_sizes(sizes)
        # With votes as wide as the prior each lower capsule has chosen before training, and a network hardly learned.
        return math.sqrt(2 / ((n_in + n_out) * d_out)) / self.pose_scale if self.weight_std is None else self.weight_std

    def above(self, pose_scale: float) -> Self:
        """Return this routing for poses of this deviation."""
        return replace(self, pose_scale=pose_scale)

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
        offset: Tensor | None = None,
    ) -> Capsules:
        """Route by :func:`torchcaps.ops.variational_bayes_routing`."""
        return variational_bayes_routing(
            shaped(capsules.pose, self.pose),
            capsules.activation,
            **parts,
            n_iters=self.n_iters if n_iters is None else n_iters,
            offset=None if offset is None else shaped(offset, self.pose),
            backend=self.backend,
            return_coupling=return_coupling,
        )

    def route_map(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        kernel_size: tuple[int, int],
        stride: tuple[int, int],
        state: Capsules | None = None,
        return_coupling: bool = False,
        n_iters: int | None = None,
        **_: Any,
    ) -> Capsules:
        """Route a map among all fields that see a capsule, by :func:`torchcaps.ops.conv_variational_bayes_routing`."""
        del state
        weight = parts["weight"].unflatten(0, (capsules.pose.shape[1], *kernel_size))
        return conv_variational_bayes_routing(
            shaped(capsules.pose, self.pose),
            capsules.activation,
            **{**parts, "weight": weight},
            stride=stride,
            n_iters=self.n_iters if n_iters is None else n_iters,
            backend=self.backend,
            return_coupling=return_coupling,
        )
