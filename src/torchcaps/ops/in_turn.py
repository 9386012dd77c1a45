"""Upper capsules that do not compete, routed a few at a time: the votes for few stay in a processor's caches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.ops.backends.tracing import is_plain

#: Numbers of votes that are made at once, at least: about what a core has in its second cache.
_AT_ONCE = 2**19
#: Takes poses, and the matrices of some upper capsules; returns their poses ``[B, J, d_out]``, activations ``[B, J]``
#: and couplings ``[B, I, J]``.
Route = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def in_turn(route: Route, u: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Route to a few upper capsules at a time on a CPU where all votes are many, and make their votes anew backward.

    Args:
        route: routes to upper capsules that do not see each other.
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: W, ``[I, J, d_in, d_out]``.

    Returns:
        Poses ``[B, J, d_out]``, activations ``[B, J]`` and couplings ``[B, I, J]``.
    """
    # No size is asked for of a program that is exported, which would then insist on it.
    if u.device.type != "cpu" or not is_plain():
        return route(u, weight)
    each = u.shape[0] * u.shape[1] * weight.shape[3]
    if each * weight.shape[1] <= 2 * _AT_ONCE:
        return route(u, weight)
    parts, again = weight.split(max(1, _AT_ONCE // each), dim=1), torch.is_grad_enabled()
    some = [_again_backward(route, u, part) if again else route(u, part) for part in parts]
    poses, activations, couplings = zip(*some, strict=True)
    return torch.cat(poses, dim=1), torch.cat(activations, dim=1), torch.cat(couplings, dim=2)


def _again_backward(route: Route, u: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(route, u, weight, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
