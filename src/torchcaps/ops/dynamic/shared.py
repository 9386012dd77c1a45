"""Dynamic routing of lower capsules that share their matrices, without ever making a vote.

With û_ij = u_i W_j both products of procedure 1 need the poses alone:

    Σ_i c_ij û_ij = (Σ_i c_ij u_i) W_j,    û_ij · v_j = u_i · (W_j v_j).

A pass costs some 4·B·I·J·d_in operations instead of 2·B·I·J·d_in·d_out, and keeps B·I·J numbers instead of
B·I·J·d_out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.ops.dynamic.reference import run_procedure
from torchcaps.types import Capsules


def route_shared(
    u: Tensor,
    weight: Tensor,
    n_out: int,
    n_iters: int,
    bias: Tensor | None,
    initial_logits: Tensor | None,
    leaky: bool,
    backprop: str,
) -> Capsules:
    """Route poses ``[B, I, d_in]`` by checked matrices ``[1, J or 1, d_in, d_out]``."""
    w = weight[0].expand(n_out, -1, -1)  # [J, d_in, d_out]
    return run_procedure(
        u.new_zeros(*u.shape[:2], n_out),
        lambda c: torch.einsum("bjd,jde->bje", torch.einsum("bij,bid->bjd", c, u), w),
        lambda v: torch.einsum("bid,bjd->bij", u, torch.einsum("jde,bje->bjd", w, v)),
        n_iters,
        bias,
        initial_logits,
        leaky,
        backprop,
    )
