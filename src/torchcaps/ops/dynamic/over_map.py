"""Dynamic routing in which a lower type chooses among all upper types and all places at once: DeepCaps' 3-D routing."""

from __future__ import annotations

from torch import Tensor

from torchcaps.checks import check_floating, check_shapes
from torchcaps.ops.dynamic.locally_constrained import route_types
from torchcaps.ops.dynamic.routing import check_passes
from torchcaps.ops.dynamic.votes import choose, route_compiled
from torchcaps.ops.precision import without_autocast
from torchcaps.ops.squash import safe_norm, squash
from torchcaps.types import Capsules


def dynamic_routing_3d(
    votes: Tensor,
    *,
    n_iters: int = 3,
    bias: Tensor | None = None,
    backprop: str = "full",
    backend: str = "auto",
    return_coupling: bool = False,
) -> Capsules:
    """Route T lower types to the J·H·W upper capsules of a map, by agreement.

    A lower type has one coupling for each upper type and place, and their sum over all of them is 1. The poses of an
    upper type are one long vector for squash: with S_j its poses at all places, v_j(p) = s_j(p) · ‖S_j‖ / (1 + ‖S_j‖²).
    So Σ_p ‖v_j(p)‖² ≤ 1, and one place is the shorter the more others are long. On a map of one place this is
    :func:`~torchcaps.ops.dynamic_routing_from_votes`. Computed in float32 at least.

    Args:
        votes: û, ``[B, T, J, d_out, H, W]``: as a convolution makes them of each type.
        n_iters: passes over the votes, at least 1.
        bias: added to the weighted sum before squashing, ``[J, d_out]``, the same at all places.
        backprop: "full" or "last", see :func:`~torchcaps.ops.dynamic_routing`.
        backend: "auto", "reference" or "cpu", see :func:`~torchcaps.ops.locally_constrained_routing`.
        return_coupling: fill the result's ``coupling``.

    Returns:
        pose ``[B, J, H, W, d_out]``, activation ``[B, J, H, W]`` (the length of the pose at that place, 0 … 1), and
        coupling ``[B, H, W, T, J]``, or None unless asked for: Σ_{j,h,w} c = 1 for every t.

    Raises:
        ValueError: shapes that do not fit, integers, ``n_iters`` or a size of J, d_out, H or W below 1, an unknown
            ``backprop`` or ``backend``, couplings of "cpu".
        Unavailable: ``backend="cpu"`` where nothing can be compiled; a RuntimeError.

    Example:
        >>> import torch
        >>> votes = torch.tensor([6.0, 8.0]).view(1, 1, 1, 1, 1, 2)  # one type, and a map of two places
        >>> dynamic_routing_3d(votes, n_iters=1).pose.flatten()  # S = ½ · (6, 8) is of length 5: 25/26 remain
        tensor([0.5769, 0.7692])

    Source: Rajasegaran et al. 2019, DeepCaps, arXiv 1904.09546, and its code.
    """
    sizes = check_shapes(votes=(votes, "B T J d_out H W"))
    check_floating("votes", votes)
    check_passes(sizes, n_iters, backprop, False, return_coupling)
    for name in ("J", "H", "W"):
        if sizes[name] < 1:
            raise ValueError(f"{name} of votes must be at least 1, got {sizes[name]}")
    if bias is not None:
        check_shapes(votes=(votes, "B T J d_out H W"), bias=(bias, "J d_out"))
    chosen = choose(backend, votes, bias, return_coupling=return_coupling)
    with without_autocast(votes):
        if chosen == "cpu":
            return route_compiled(votes, n_iters, bias, leaky=False, together=True, backprop=backprop)
        return route_types(votes, n_iters, bias, backprop, _softmax, squash_over_map, return_coupling=return_coupling)


def _softmax(b: Tensor) -> Tensor:
    """Take the softmax of ``[B, J, H, W]`` over upper types and places together."""
    return b.flatten(1).softmax(dim=1).view_as(b)


def squash_over_map(s: Tensor) -> tuple[Tensor, Tensor]:
    """Squash ``[B, J, d_out, H, W]`` by the norm over pose and places; return the length at every place, too."""
    v = squash(s.flatten(2), dim=2).view_as(s)
    return v, safe_norm(v, dim=2).clamp_max(1)  # beyond 1 by rounding alone
