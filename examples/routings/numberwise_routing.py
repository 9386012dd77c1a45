"""Routing with a logit for each number of a pose, after Capsule-Forensics (Nguyen, Yamagishi, Echizen 2019).

DenseCaps(10, 2, 8, 4, routing=NumberwiseRouting())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from torchcaps import Capsules, squash
from torchcaps.checks import check_at_least
from torchcaps.layers import Init, Part, Routing, Sizes
from torchcaps.ops import dense_votes, safe_norm


@dataclass(frozen=True)
class NumberwiseRouting(Routing):
    """Route each number of a vote by itself.

    With votes û_ij = u_i W_ij and logits b_ijd of 0 at first, one pass has

        c_ijd = softmax_i(b_ijd),    v_j = squash(Σ_i c_ij ⊙ û_ij),    b_ij ← b_ij + û_ij ⊙ v_j.

    The softmax runs over *lower* capsules. The coupling that is returned is the mean of c_ijd over d. In training the
    authors add noise to W.

    Source: arXiv 1910.12467, and its code.
    """

    name: ClassVar[str] = "numberwise"
    squashes: ClassVar[bool] = True

    n_iters: int = 2

    def __post_init__(self) -> None:
        check_at_least("n_iters", self.n_iters, 1)

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the votes' weight."""
        assert sizes.n_in is not None  # as any_n_in is false
        shape = (sizes.n_in, sizes.n_out, sizes.d_in, sizes.d_out)
        return {"weight": Init(shape, partial(nn.init.normal_, std=sizes.d_in**-0.5), per_child=True)}

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
    ) -> Capsules:
        """Weigh each number of each vote."""
        votes = dense_votes(capsules.pose, parts["weight"])  # [B, I, J, D]
        share = (0 * votes).softmax(dim=1)
        pose = squash((share * votes).sum(dim=1))
        logits = 0 * votes
        for _ in range((n_iters or self.n_iters) - 1):
            logits = logits + votes * pose[:, None]
            share = logits.softmax(dim=1)
            pose = squash((share * votes).sum(dim=1))
        return Capsules(pose, safe_norm(pose).clamp_max(1), share.mean(dim=3) if return_coupling else None)
