"""Self-routing (Hahn, Pyeon, Kim 2019): each lower capsule decides alone where its vote goes, without iterations.

DenseCaps(288, 10, 8, 16, routing=SelfRouting())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from torchcaps import Capsules
from torchcaps.layers import Init, Part, Routing, Sizes


@dataclass(frozen=True)
class SelfRouting(Routing):
    """Route by a small network in every lower capsule.

    With shares c_ij = softmax_j(R_i u_i + r_i) and votes û_ij = u_i W_ij,

        a_j = Σ_i c_ij a_i / Σ_i a_i,    v_j = Σ_i c_ij a_i û_ij / Σ_i c_ij a_i.

    The activations of the upper capsules sum to one. Where no lower capsule is active, the shares are equal and the
    poses are 0; the paper's code gives NaN there.

    Source: Hahn, Pyeon, Kim, NeurIPS 2019, section 3.
    """

    name: ClassVar[str] = "self"
    needs_activations: ClassVar[bool] = True

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        """Name the votes' weight, and weight and bias of the subordinate routing networks."""
        n_in, n_out, d_in, d_out = sizes.n_in, sizes.n_out, sizes.d_in, sizes.d_out
        assert n_in is not None  # as any_n_in is false
        # R and r start at 0, so that all shares are equal at first.
        return {
            "weight": Init((n_in, n_out, d_in, d_out), partial(nn.init.normal_, std=d_in**-0.5), per_child=True),
            "route_weight": Init((n_in, n_out, d_in), nn.init.zeros_, per_child=True),
            "route_bias": Init((n_in, n_out), nn.init.zeros_, per_child=True),
        }

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        """Let each lower capsule choose its parents by its own pose."""
        u, a = capsules.pose, capsules.activation
        logits = torch.einsum("bid,ijd->bij", u, parts["route_weight"]) + parts["route_bias"]
        share = logits.softmax(dim=2)
        votes = torch.einsum("bid,ijde->bije", u, parts["weight"])
        # A tiny activation more keeps black fields from 0 / 0.
        a = a + torch.finfo(a.dtype).tiny ** 0.5
        weighted = share * a.unsqueeze(2)  # [B, I, J]
        mass = weighted.sum(dim=1)
        pose = torch.einsum("bij,bije->bje", weighted, votes) / mass.unsqueeze(2)
        return Capsules(pose, mass / a.sum(dim=1, keepdim=True), share if return_coupling else None)
