"""Statistics of dynamic routing over its iterations: how decided the couplings are, and how well votes agree."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.explain import inspects_model, trace_routing
from torchcaps.layers import DenseCaps, DynamicRouting
from torchcaps.ops import Capsules, dense_votes


class RoutingStatistics(NamedTuple):
    """Statistics of the routing to the classes of B images, for R numbers of iterations.

    Attributes:
        n_iters: ``[R]``.
        entropy: of a lower capsule's couplings −Σ_j c log c, mean over the capsules, divided by that of equal
            couplings: 1 where nothing is decided, 0 where every capsule has one parent; ``[R, B]``.
        active_entropy: the same, weighted by the capsules' activations: those that see nothing have votes so
            short that they never decide, ``[R, B]``.
        agreement: mean cosine of votes and the poses they go to, weighted by coupling, ``[R, B]``: over all classes,
            of which an image shows one, and so near 0 as long as the couplings are even.
        scores: lengths of the class capsules, ``[R, B, J]``.
    """

    n_iters: Tensor
    entropy: Tensor
    active_entropy: Tensor
    agreement: Tensor
    scores: Tensor


@inspects_model
def routing_statistics(
    model: nn.Module, images: Tensor, n_iters: Iterable[int] = range(1, 11), batch_size: int = 50
) -> RoutingStatistics:
    """Route the same votes with 1, 2, … iterations.

    Args:
        model: any network whose class capsules are a DenseCaps with dynamic routing.
        images: ``[B, C, H, W]``, values 0 … 1.
        n_iters: numbers of iterations of the class capsules; the layers below keep their own.
        batch_size: number of images at a time; all their votes are held in memory.

    Returns:
        :class:`RoutingStatistics`. With leaky routing what goes to nothing counts as one more parent in the
        entropy.

    Raises:
        ValueError: the model does not route to its classes by dynamic routing, or to one class alone; the images do
            not fit it, or a number of iterations below 1.

    Source: Sabour et al. 2017, appendix A, asks how many iterations to take.
    """
    numbers = list(n_iters)
    classes = trace_routing(model, images[:1]).classes.layer
    if not isinstance(classes, DenseCaps) or not isinstance(classes.routing, DynamicRouting):
        raise ValueError(f"model must route to its classes by DenseCaps with dynamic routing, got {classes}")
    check_at_least("the number of images", check_shapes(images=(images, "B C H W"))["B"], 1)
    check_at_least("batch_size", batch_size, 1)
    check_at_least("the number of classes", classes.n_out, 2)
    if not numbers:
        raise ValueError("n_iters must hold at least one number, got none")
    for r in numbers:
        check_at_least("n_iters", r, 1)
    parts = []
    for some in images.split(batch_size):
        lower = trace_routing(model, some).classes.lower
        weight = classes.weight
        assert isinstance(weight, Tensor)  # a parameter, or, of pruned layers, what it is computed to
        directions = F.normalize(dense_votes(lower.pose.flatten(1, -2), weight), dim=3)  # [B, I, J, D]
        parts.append([_statistics(classes, lower, directions, r) for r in numbers])
    columns = zip(*(zip(*part, strict=True) for part in parts), strict=True)
    joined = (torch.cat([torch.stack(x) for x in column], dim=1) for column in columns)
    return RoutingStatistics(torch.tensor(numbers, device="cpu"), *joined)


def _statistics(classes: DenseCaps, lower: Capsules, directions: Tensor, n_iters: int) -> tuple[Tensor, ...]:
    """Compute both entropies ``[B]``, agreement ``[B]`` and scores ``[B, J]``."""
    routed = classes(lower, n_iters=n_iters, return_coupling=True)
    coupling, shares = routed.coupling, routed.coupling  # [B, I, J]
    assert isinstance(classes.routing, DynamicRouting)
    if classes.routing.leaky:
        shares = torch.cat((coupling, (1 - coupling.sum(dim=2, keepdim=True)).clamp_min(0)), dim=2)
    entropy = torch.special.entr(shares).sum(dim=2) / math.log(shares.shape[2])  # [B, I]
    activity = lower.activation.flatten(1)
    active = (activity * entropy).sum(dim=1) / activity.sum(dim=1).clamp_min(1e-12)
    cosine = torch.einsum("bije,bje->bij", directions, F.normalize(routed.pose, dim=2))
    agreement = (coupling * cosine).sum(dim=(1, 2)) / coupling.sum(dim=(1, 2))
    return entropy.mean(dim=1), active, agreement, routed.activation
