"""Upper capsules that do not compete, routed a few at a time: the votes for few stay in a processor's caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.ops.backends.tracing import in_dispatch_mode, in_functorch

#: Numbers of votes that are made at once, at least: about what a core has in its second cache.
_AT_ONCE = 2**19
#: Takes poses and parts of some upper capsules; returns their poses ``[B, J, d]``, activations ``[B, J]`` and couplings
#: ``[B, I, J]``.
Route = Callable[..., tuple[Tensor, Tensor, Tensor]]


def in_turn(
    route: Route, u: Tensor, parts: Sequence[Tensor | None], axes: Sequence[int], d_out: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Route to a few upper capsules at a time on a CPU where all votes are many, and make their votes anew backward.

    Args:
        route: routes to upper capsules that do not see each other.
        u: poses of the lower capsules, ``[B, I, d_in]``.
        parts: what it takes besides; of each upper capsule its own.
        axes: where the upper capsules are in each of the parts.
        d_out: numbers of a vote.

    Returns:
        Poses ``[B, J, d_out]``, activations ``[B, J]`` and couplings ``[B, I, J]``.
    """
    if not _is_ours(u):  # before any size is asked for, which a program that is exported would then insist on
        return route(u, *parts)
    n_out = next(x.shape[axis] for x, axis in zip(parts, axes, strict=True) if x is not None)
    each = u.shape[0] * u.shape[1] * d_out
    if each * n_out <= 2 * _AT_ONCE:
        return route(u, *parts)
    at_once = max(1, _AT_ONCE // each)

    def some(first: int) -> tuple[Tensor, Tensor, Tensor]:
        n = min(at_once, n_out - first)
        own = [x if x is None else x.narrow(axis, first, n) for x, axis in zip(parts, axes, strict=True)]
        return _again_backward(route, u, *own) if torch.is_grad_enabled() else route(u, *own)

    poses, activations, couplings = zip(*map(some, range(0, n_out, at_once)), strict=True)
    return torch.cat(poses, dim=1), torch.cat(activations, dim=1), torch.cat(couplings, dim=2)


def _is_ours(u: Tensor) -> bool:
    """Tell whether it is plain code on a CPU: programs that are compiled or exported would get longer and longer."""
    if u.device.type != "cpu" or torch.compiler.is_compiling() or is_tracing():
        return False
    return not in_dispatch_mode() and not in_functorch()


def _again_backward(route: Route, *given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(route, *given, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
