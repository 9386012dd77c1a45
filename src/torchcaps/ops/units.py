"""Numbers so large that their squares overflow, measured in units of the largest of them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.ops.backends.tracing import has_values

#: Numbers beyond this are large: of float32, the square of their square would overflow.
LARGE = 2.0**20
#: The least that a constant of plain numbers, such as a prior or an ε, counts beside squares in units.
LEAST = 1e-15
#: Products of the largest numbers of poses and of matrices from which on compiled code leaves votes to plain PyTorch.
_LARGE_VOTES = 1e10


def have_large_votes(pose: Tensor, weight: Tensor) -> bool:
    """Tell whether squares of squares of votes may be beyond all numbers of float32; no where values cannot be read."""
    if not (has_values(pose) and pose.numel() and weight.numel()):
        return False
    largest = [float(x.detach().abs().max()) for x in (pose, weight)]
    return largest[0] * largest[1] > _LARGE_VOTES


def in_units(x: Tensor, dim: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Divide by the largest number along axes where that is large, and by 1 elsewhere.

    Args:
        x: any shape.
        dim: the axis, or axes.

    Returns:
        The quotient, and the unit that it was divided by, with ``dim`` of size 1. No gradient goes through the unit:
        what is computed in units must not depend on it.
    """
    axes = (dim,) if isinstance(dim, int) else dim
    known = x.detach()
    if has_values(known) and _is_small(known):
        rest = [axis % x.dim() for axis in axes]
        return x, x.new_ones([1 if axis in rest else size for axis, size in enumerate(x.shape)])
    of_nothing = any(x.shape[axis] == 0 for axis in axes)  # of which there is no largest number, but a sum
    largest = (
        known.sum(dim, keepdim=True) if of_nothing else torch.linalg.vector_norm(known, torch.inf, dim, keepdim=True)
    )
    unit = torch.where(largest > LARGE, largest, 1.0)
    return x / unit, unit


def _is_small(x: Tensor) -> bool:
    """Tell whether no number is large, in one pass; NaN is neither."""
    least, most = x.aminmax()
    return float(least) >= -LARGE and float(most) <= LARGE


def per_square_unit(constant: float, unit: Tensor) -> Tensor:
    """Express a constant that is added to squares in square units, :data:`LEAST` at least."""
    return (constant / unit / unit).clamp_min(LEAST)


def layer_norm(s: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """Normalize the last axis to mean 0 and variance 1, as :func:`torch.nn.functional.layer_norm` does.

    That gives 0 or NaN where squares overflow; here any finite numbers have a finite result.

    Args:
        s: ``[..., D]``.
        weight: ``[D]``; None for 1.
        bias: ``[D]``; None for 0.
        eps: added to the variance.
    """
    s, unit = in_units(s, -1)
    centred = s - s.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    s = centred * (variance + per_square_unit(eps, unit)).rsqrt()
    s = s if weight is None else s * weight
    return s if bias is None else s + bias
