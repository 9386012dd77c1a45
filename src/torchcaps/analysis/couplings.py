"""Which places of an image vote for which class, iteration by iteration."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import capsnet, observing
from torchcaps.analysis.places import map_edges
from torchcaps.checks import check_at_least, check_shapes


class Couplings(NamedTuple):
    """Couplings of one or more images in iterations 1 … r, on the map of lower capsules.

    Attributes:
        maps: ``[r, B, J, H, W]``: mean over types of a_i c_ij, the part of each place's activity
            that goes to class j. Summed over j it is the mean activity, in every iteration (less
            with leaky routing).
        scores: activations of the class capsules (their lengths, in a CapsNet), ``[r, B, J]``.
        extent: (left, right, bottom, top) of the map in pixels of the image.
    """

    maps: Tensor
    scores: Tensor
    extent: tuple[float, float, float, float]


@observing
def coupling_maps(model: nn.Module, images: Tensor, n_iters: int | None = None) -> Couplings:
    """Lay the couplings of the class capsules out over the image.

    Args:
        model: a CapsNet or MatrixCapsNet.
        images: ``[B, C, H, W]``, values 0 … 1.
        n_iters: iterations r of the class capsules to look at, by default as many as they have; the layers below keep
            their own.

    Returns:
        :class:`Couplings`.

    Raises:
        ValueError: the model has no capsules, the images do not fit it, or ``n_iters`` is below 1.
    """
    model = capsnet(model)
    n_iters = model.classes.n_iters if n_iters is None else n_iters
    check_at_least("n_iters", n_iters, 1)
    check_shapes(images=(images, "B C H W"))
    lower = model(images).capsules[-2]
    maps, scores = [], []
    for t in range(1, n_iters + 1):
        routed = model.classes(lower, n_iters=t, return_coupling=True)
        weighted = lower.activation.flatten(1)[:, :, None] * routed.coupling  # [B, I, J]
        maps.append(weighted.unflatten(1, model.map_shape).mean(dim=1).permute(0, 3, 1, 2))  # [B, J, H, W]
        scores.append(routed.activation)
    return Couplings(torch.stack(maps), torch.stack(scores), map_edges(model))
