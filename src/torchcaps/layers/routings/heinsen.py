"""Heinsen's routings of matrices (2019) and of vectors (2022), as objects that layers are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_flag
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.layers.routings.em import POSES
from torchcaps.layers.routings.options import known_sizes, shaped
from torchcaps.ops import Capsules, heinsen_matrix_routing, heinsen_vector_routing
from torchcaps.ops.heinsen_matrix.routing import BACKENDS


@dataclass(frozen=True)
class HeinsenMatrixRouting(Routing):
    """Route square matrices or vectors by Heinsen's algorithm of 2019.

    See :func:`torchcaps.ops.heinsen_matrix_routing`.

    Attributes:
        n_iters: Passes.
        pose: "matrix" for n×n of any n, or "vector".
        shared: Share weights and costs among all lower capsules. Any number of them may come then, some masked.
        logits: Return the scores a_j as they are, for cross-entropy; else σ(a_j), the activations that a layer above
            reads. None for logits of dense layers alone.
        backend: What computes it: "auto", "reference", "cpu", or "triton" on CUDA devices. Compiled code, which stores
            no votes, is for 4×4 matrices and ``shared``.

    Raises:
        ValueError: A value out of range.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(None, 64, 16, 16, routing=HeinsenMatrixRouting(shared=True, logits=False))
        >>> sum(p.numel() for p in layer.parameters())  # 64 matrices and as many shifts of 4×4, and two costs for each
        2176

    Source: Heinsen 2019, An Algorithm for Routing Capsules in All Domains, arXiv 1911.00792.
    """

    name: ClassVar[str] = "heinsen_matrix"
    needs_activations: ClassVar[bool] = True

    n_iters: int = 3
    _: KW_ONLY
    pose: str = "matrix"
    shared: bool = False
    logits: bool | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_at_least("n_iters", self.n_iters, 1)
        check_choice("pose", self.pose, POSES)
        check_choice("backend", self.backend, BACKENDS)
        check_flag("shared", self.shared)
        if self.logits is not None:
            check_flag("logits", self.logits)

    @property
    def any_n_in(self) -> bool:  # type: ignore[override]
        """Whether any number of lower capsules may come."""
        return self.shared

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Whether activations are σ of the scores."""
        return not self.logits

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name weight and bias of the votes, and what use and neglect of a lower capsule cost."""
        if not self.shared:
            known_sizes(sizes)
        n_in, n_out, d_in, d_out = 1 if self.shared else sizes.n_in, sizes.n_out, sizes.d_in, sizes.d_out
        assert n_in is not None
        side = math.isqrt(d_in)
        if self.pose == "matrix" and (d_in != d_out or side * side != d_in):
            raise ValueError(
                f"d_in and d_out must be one square number for matrices, got {d_in} and {d_out}; or take pose='vector'"
            )
        inner = (side, side) if self.pose == "matrix" else (d_in, d_out)
        vote = (side, side) if self.pose == "matrix" else (d_out,)
        per_child = not self.shared
        cost = Init.constant((n_in, n_out), 0.0)._replace(per_child=per_child)
        return {
            "weight": Init((n_in, n_out, *inner), partial(nn.init.normal_, std=1 / inner[0]), per_child=per_child),
            "bias": Init.constant((n_in, n_out, *vote), 0.0)._replace(per_child=per_child),
            "beta_use": cost,
            "beta_ign": cost,
        }

    def resolve(self, sizes: Sizes) -> Self:
        """Return this routing with ``logits`` filled in."""
        return replace(self, logits=sizes.dense if self.logits is None else self.logits)

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
        mask: Tensor | None = None,
    ) -> Capsules:
        """Route by :func:`torchcaps.ops.heinsen_matrix_routing`."""
        pose, score, coupling = heinsen_matrix_routing(
            shaped(capsules.pose, self.pose),
            capsules.activation,
            **parts,
            n_iters=self.n_iters if n_iters is None else n_iters,
            mask=mask,
            backend=self.backend,
            return_coupling=return_coupling,
        )
        return Capsules(pose, score if self.logits else score.sigmoid(), coupling)


@dataclass(frozen=True)
class HeinsenVectorRouting(Routing):
    """Route vectors by Heinsen's algorithm of 2022, see :func:`torchcaps.ops.heinsen_vector_routing`.

    No vote is ever stored, and all pairs share the weights, apart from factors. Activations are logits: the sum of
    the credit that an upper vector got, or the pose itself where it is one number. Train with cross-entropy.

    Attributes:
        n_iters: Passes.
        shared: Share what belongs to each lower vector among them all. Any number may come then, some masked, and the
            costs are linear functions of the vectors.

    Raises:
        ValueError: A value out of range; fewer than two upper vectors.

    Example:
        >>> from torchcaps import DenseCaps
        >>> layer = DenseCaps(100, 10, 16, 8, routing=HeinsenVectorRouting())
        >>> sum(p.numel() for p in layer.parameters())  # where a matrix for each pair would have 128,000
        6516

    Source: Heinsen 2022, An Algorithm for Routing Vectors in Sequences, arXiv 2211.11754.
    """

    name: ClassVar[str] = "heinsen_vector"
    bounded: ClassVar[bool] = False

    n_iters: int = 2
    _: KW_ONLY
    shared: bool = False

    def __post_init__(self) -> None:
        check_at_least("n_iters", self.n_iters, 1)
        check_flag("shared", self.shared)

    @property
    def any_n_in(self) -> bool:  # type: ignore[override]
        """Whether any number of lower vectors may come."""
        return self.shared

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the parameters of activations, votes, predictions, similarities and costs."""
        if not self.shared:
            known_sizes(sizes)
        n_in, n_out, d_in, d_out = 1 if self.shared else sizes.n_in, sizes.n_out, sizes.d_in, sizes.d_out
        assert n_in is not None
        check_at_least("n_out", n_out, 2)

        def drawn(*shape: int, std: float, lower: bool = False) -> Init:
            return Init(shape, partial(nn.init.normal_, std=std), per_child=lower and not self.shared)

        def zeros(*shape: int, lower: bool = False) -> Init:
            return Init(shape, nn.init.zeros_, per_child=lower and not self.shared)

        parts: dict[str, Part] = {
            "activation_weight": drawn(n_in, d_in, std=2 * d_in**-0.5, lower=True),
            "activation_bias": zeros(n_in, lower=True),
            "vote_factor": drawn(n_out, d_in, std=1.0),
            "vote_weight": drawn(d_in, d_out, std=2 * d_in**-0.5),
            "vote_bias": zeros(n_out, d_out),
            "prediction_weight": drawn(d_out, d_in, std=d_out**-0.5),
            "prediction_factor": drawn(n_out, d_in, std=1.0),
            "prediction_bias": zeros(n_out, d_in),
            "similarity_weight": drawn(n_in, n_out, std=d_in**-0.5, lower=True),
            "similarity_bias": zeros(n_in, n_out, lower=True),
        }
        for name in ("beta_use", "beta_ign"):
            linear = partial(nn.Linear, d_in, n_out)
            parts[name] = linear if self.shared else drawn(n_in, n_out, std=1.0, lower=True)
        return parts

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
        mask: Tensor | None = None,
    ) -> Capsules:
        """Route by :func:`torchcaps.ops.heinsen_vector_routing`."""
        given = dict(parts)
        if self.shared:
            for name in ("beta_use", "beta_ign"):
                given[name] = parts[name](capsules.pose)
        return heinsen_vector_routing(
            capsules.pose,
            **given,
            n_iters=self.n_iters if n_iters is None else n_iters,
            mask=mask,
            return_coupling=return_coupling,
        )
