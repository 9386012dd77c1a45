"""Degree-centrality routing, after SOVNET (Venkatraman et al. 2019): central votes count most.

DenseCaps(288, 10, 8, 16, routing=DegreeRouting())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from torchcaps import Capsules, squash
from torchcaps.layers import Init, Part, Routing, Sizes
from torchcaps.ops import safe_norm


@dataclass(frozen=True)
class DegreeRouting(Routing):
    """Route by how central a vote is in the graph of all votes for the same upper capsule.

    With votes û_ij = u_i W_ij and A_ik = û_ij · û_kj / ‖û_ij‖²,

        c_ij = softmax_i(Σ_k A_ik),    v_j = squash(Σ_i c_ij û_ij).

    The softmax runs over *lower* capsules. A is as the authors' code has it: it divides by one norm twice, so it is no
    cosine. As it is summed over k, it is never made. SOVNET's votes are group convolutions; here they are matrices.

    Source: arXiv 1908.01300, and its code.
    """

    name: ClassVar[str] = "degree"
    squashes: ClassVar[bool] = True

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the votes' weight."""
        assert sizes.n_in is not None  # as any_n_in is false
        shape = (sizes.n_in, sizes.n_out, sizes.d_in, sizes.d_out)
        return {"weight": Init(shape, partial(nn.init.normal_, std=sizes.d_in**-0.5), per_child=True)}

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Weigh each vote by its degree."""
        votes = torch.einsum("bid,ijde->bije", capsules.pose, parts["weight"])
        degree = (votes * votes.sum(dim=1, keepdim=True)).sum(dim=3) / votes.square().sum(dim=3).clamp_min(1e-8)
        share = degree.softmax(dim=1)  # [B, I, J]
        pose = squash(torch.einsum("bij,bije->bje", share, votes))
        return Capsules(pose, safe_norm(pose).clamp_max(1), share if return_coupling else None)
