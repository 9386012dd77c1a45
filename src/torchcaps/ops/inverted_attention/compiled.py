"""Inverted attention of 4×4 matrices by compiled moments of the votes, which are never stored."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from torchcaps.ops.variational_bayes.moments import Shares, moments


def further_passes(
    m: Tensor,
    weight: Tensor,
    upper: Tensor,
    n_iters: int,
    normalize: Callable[[Tensor], Tensor],
    return_coupling: bool,
    *,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Route matrices from the upper poses of a pass, by tensors of one dtype, float32 or float64.

    Logits are linear in the votes, and Σ_i r_ij V_ij is a mean and its mass.

    Args:
        m: M, ``[B, I, 4, 4]``.
        weight: W, ``[I, J, 4, 4]``.
        upper: p, ``[B, J, 16]``.
        n_iters: passes.
        normalize: takes sums of votes ``[B, J, 16]`` to poses.
        return_coupling: return r of the last pass.
        backend: of the moments, "cpu" or "triton".

    Returns:
        r ``[B, I, J]``, or ``[0]`` unless asked for, and poses ``[B, J, 16]``.
    """
    place = m[:, :, None, None], m.new_ones(*m.shape[:2], 1, 1), weight[:, None, None]
    none, coupling = m.new_zeros(m.shape[0], 1, weight.shape[1]), m
    for t in range(n_iters):
        queries = (upper / 4).transpose(1, 2)[:, None]  # ⟨V, p⟩ / √16
        wanted = return_coupling and t == n_iters - 1
        shares = Shares(queries, queries, none)
        found, coupling = moments(*place, None, (1, 1), shares, wanted, linear=True, backend=backend)
        upper = normalize((found.mean * found.mass[:, :, None])[:, 0].transpose(1, 2))
    return coupling[:, 0, 0] if return_coupling else coupling, upper
