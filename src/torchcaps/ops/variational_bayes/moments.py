"""The moments of the votes for each upper capsule, in compiled code: what a mixture of Gaussians is fitted by.

With V_ij = M_i W_ij, the shares of a lower capsule i among all upper ones j that see it, wherever they stand, are

    R_ij = softmax_j(c_j − ½ Σ_h p_jh (V_ijh − m_jh)²),    or 1/J at first, and r_ij = R_ij a_i;

or, where logits are linear in the votes, softmax_j(c_j + Σ_h p_jh V_ijh).

Beside a prior, a vote of 0 that counts so much, the next state is

    mass_j = prior + Σ_i r_ij,    mean_j = Σ_i r_ij V_ij / mass_j,    spread_j = Σ_i r_ij (V_ij − mean_j)².

Votes are never stored. What follows from the moments is a few numbers of each upper capsule, and left to torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from torchcaps.ops.variational_bayes import cpu, triton

_OPERATORS: dict[str, Any] = {"cpu": cpu.forward_op, "triton": triton.forward_op}


class Moments(NamedTuple):
    """Hold mean and spread ``[B, P, 16, J]``, and mass ``[B, P, J]``, of the votes for upper capsules at P places."""

    mean: Tensor
    spread: Tensor
    mass: Tensor


class Shares(NamedTuple):
    """Hold what shares follow from: m and p ``[B, P, 16, J]``, and c ``[B, P, J]``."""

    mean: Tensor
    precision: Tensor
    constant: Tensor


def moments(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    stride: tuple[int, int],
    shares: Shares | None,
    return_coupling: bool = False,
    *,
    prior: float = 1.0,
    linear: bool = False,
    backend: str,
) -> tuple[Moments, Tensor]:
    """Compute the moments of votes, of tensors of one dtype, float32 or float64.

    Args:
        pose: M, ``[B, T, H, W, 4, 4]``.
        activation: a, ``[B, T, H, W]``.
        weight: W, ``[T, K_h, K_w, J, 4, 4]``.
        offset: added to the votes, ``[T, K_h, K_w, 4, 4]`` or None; it gets no gradient.
        stride: of rows and of columns.
        shares: what the shares follow from; None where they are 1/J.
        return_coupling: return the shares, too.
        prior: what the vote of 0 counts, above 0.
        linear: logits are linear in the votes: there have to be shares, their m is not looked at, and the spread says
            nothing.
        backend: "cpu" or "triton".

    Returns:
        The moments, and R ``[B, H', W', T·K_h·K_w, J]``, or ``[0]`` unless asked for.
    """
    known = shares or Shares(*(pose.new_empty(0) for _ in Shares._fields))
    given = pose, activation, weight, offset, *known, list(stride), prior, linear, return_coupling
    *found, coupling = _OPERATORS[backend](*given)
    return Moments(*found), coupling
