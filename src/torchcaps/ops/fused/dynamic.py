"""Dynamic routing that never stores the votes.

They are computed anew in each iteration, in registers. With V^(t) = Σ_{τ<t} v^(τ), the sum of the outputs so far,
the logits are b⁰_ij + û_ij · V_j^(t): V is all that lives between iterations. Backward, for each iteration, last to
first, with û and c computed anew:

    dc_ij = û_ij · ds_j, db = softmax-backward(c, dc), dV_j = Σ_i db_ij û_ij,
    dû_ij = Σ_t (c_ij^(t) ds_j^(t) + db_ij^(t) V_j^(t)), from which du and dW follow.
"""

from __future__ import annotations

from torch import Tensor

from torchcaps.ops.fused.cpu import dynamic as cpu
from torchcaps.ops.fused.operators import computed_in
from torchcaps.ops.fused.triton import dynamic as triton
from torchcaps.ops.routed import Routed

_OPERATORS = {"cpu": cpu.routed, "triton": triton.routed}


def fused_dynamic_routing(
    impl: str,
    u: Tensor,
    weight: Tensor,
    n_iters: int,
    bias: Tensor | None,
    prior: Tensor | None,
    leaky: bool,
    gradient: str,
    return_coupling: bool,
) -> Routed:
    """:func:`torchcaps.ops.dynamic_routing` of checked arguments by the operator of ``impl``.

    "cpu" wants u and weight of one dtype, float32 or float64; "triton" widens half precision as it reads it.
    """
    dtype = computed_in(u, weight)
    bias, prior = (None if x is None else x.to(dtype) for x in (bias, prior))
    full = gradient == "full"
    pose, activation, coupling, _ = _OPERATORS[impl](u, weight, bias, prior, n_iters, leaky, full, return_coupling)
    if not return_coupling:
        return Routed(pose, activation, None)
    # What does not depend on the votes has no gradient, as in the reference.
    return Routed(pose, activation, coupling.detach() if prior is None and (n_iters == 1 or not full) else coupling)
