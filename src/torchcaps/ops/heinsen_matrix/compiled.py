"""Heinsen's routing of 4×4 matrices by compiled moments of the votes, which are never stored."""

from __future__ import annotations

from torch import Tensor

from torchcaps.ops.log_sigmoid import log_sigmoid
from torchcaps.ops.variational_bayes.moments import Shares, moments


def route(
    m: Tensor,
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    beta_use: Tensor,
    beta_ign: Tensor,
    n_iters: int,
    return_coupling: bool,
    *,
    eps: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Route matrices, by tensors of one dtype, float32 or float64.

    The moments are those of M_i W_ij beside a prior of ε, as ε stands in the sums of use_ij. The shift B_j, the same
    for all lower capsules, moves all votes for an upper one.

    Args:
        m: M, ``[B, I, 4, 4]``.
        f: ``[B, I]``.
        weight: W, ``[I, J, 4, 4]``.
        bias: B, ``[1, J, 4, 4]``, or None for 0.
        beta_use: β^use, ``[I, J]`` or ``[1, J]``.
        beta_ign: β^ign, likewise.
        n_iters: passes.
        return_coupling: return R of the last pass, too.
        eps: ε.
        backend: of the moments, "cpu" or "triton".

    Returns:
        μ ``[B, J, 16]``, a ``[B, J]``, and R ``[B, I, J]`` or ``[0]``.
    """
    shared = len(beta_use) == len(beta_ign) == 1
    place = m[:, :, None, None], f[:, :, None, None], weight[:, None, None]
    shift = 0.0 if bias is None else bias.flatten(2).transpose(1, 2)  # [1, 16, J]
    shares, coupling = None, m.new_empty(0)
    mean = score = m
    for t in range(n_iters):
        wanted = not shared or (return_coupling and t == n_iters - 1)
        found, coupling = moments(*place, None, (1, 1), shares, wanted, prior=eps, backend=backend)
        around, spread, mass = (x[:, 0] for x in found)  # [B, 16, J], twice, and [B, J]
        if shared:
            used = mass - eps
            score = beta_use * used - beta_ign * (f.sum(dim=1, keepdim=True) - used)
        else:
            use = f[..., None] * coupling[:, 0, 0]
            score = (beta_use * use - beta_ign * (f[..., None] - use)).sum(dim=1)
        # ε has no shift, so all lies off by so much: the mean from the shifted votes', and squares with it.
        off = shift * (eps / mass[:, None])
        mean = around + shift - off
        used_squares = spread + 2 * eps * around * off + (mass[:, None] - eps) * off * off
        variance = used_squares / mass[:, None] + eps
        own = log_sigmoid(score) - variance.log().sum(dim=1) / 2
        shares = Shares(*(x[:, None] for x in (around - off, 1 / variance, own)))
    return mean.transpose(1, 2), score, coupling[:, 0, 0] if return_coupling else coupling
