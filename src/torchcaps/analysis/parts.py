"""Which parts of an image a class capsule is made of, down to the first capsules."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import capsnet, observing
from torchcaps.analysis.places import map_edges
from torchcaps.checks import check_shapes
from torchcaps.layers import ConvCaps
from torchcaps.ops.votes import Fields


class Parts(NamedTuple):
    """What the class capsules of one or more images are made of, on the map of primary capsules.

    Attributes:
        maps: ``[B, J, H, W]``: how much of class j comes from each place. Summed over places it is
            Σ_i R_ij a_i, the activity that routing gives to the class from the capsules below it.
        scores: activations of the class capsules (their lengths, in a CapsNet), ``[B, J]``.
        extent: (left, right, bottom, top) of the map in pixels of the image.
    """

    maps: Tensor
    scores: Tensor
    extent: tuple[float, float, float, float]


@observing
def part_maps(model: nn.Module, images: Tensor) -> Parts:
    """Trace the class capsules back to the places of the image that they were made of.

    A class has R_ij a_i from each capsule i of the map below it. That amount is shared out among the
    children of i as their R a in the routing to i, and so on down to the primary capsules; there the
    types of each place are added up.

    Args:
        model: a CapsNet or MatrixCapsNet.
        images: ``[B, C, H, W]``, values 0 … 1.

    Returns:
        :class:`Parts`.

    Raises:
        ValueError: the model has no capsules, or some with padding; or the images do not fit it.
    """
    model = capsnet(model)
    check_shapes(images=(images, "B C H W"))
    scores, capsules = model(images)
    lower = capsules[-2]
    coupling = model.classes(lower, return_coupling=True).coupling  # [B, I, J]
    amount = (lower.activation.flatten(1)[..., None] * coupling).mT.unflatten(2, model.map_shape)  # [B, J, T, H, W]
    below = list(zip(model.hidden, capsules, strict=False))  # layers of capsules, and what goes into each
    for layer, lower in reversed(below):
        assert isinstance(layer, ConvCaps)
        if any(layer.padding):
            raise ValueError(f"model must have no padding between its capsules, got {layer.padding}")
        coupling = layer(lower, return_coupling=True).coupling
        amount = hand_down(amount, lower.activation, coupling, layer.kernel_size, layer.stride)
    return Parts(amount.sum(dim=2), scores, map_edges(model, 0))


def hand_down(
    amount: Tensor, activation: Tensor, coupling: Tensor, kernel_size: tuple[int, int], stride: tuple[int, int]
) -> Tensor:
    """Share out what the capsules of a map stand for among their children, in proportion to R a.

    Nothing is lost: a capsule whose children all have R a = 0 shares its amount equally.

    Args:
        amount: of each upper capsule, on behalf of each class, ``[B, J, T', H', W']``.
        activation: of the children, ``[B, T, H, W]``.
        coupling: as :func:`torchcaps.ops.conv_em_routing` returns it, ``[B, H', W', N, T']`` with
            N = T·K_h·K_w.
        kernel_size: rows and columns of a receptive field.
        stride: rows and columns from one field to the next.

    Returns:
        ``[B, J, T, H, W]``, with the same sum over capsules.

    Raises:
        ValueError: shapes that do not fit each other.
    """
    fields = Fields(activation.shape[1:], kernel_size, stride)
    sizes = check_shapes(
        amount=(amount, "B J T' H' W'"), coupling=(coupling, "B H' W' N T'"), activation=(activation, "B T H W")
    )
    if sizes["N"] != fields.n_children:
        raise ValueError(f"coupling must be of N=T·K_h·K_w={fields.n_children} children, got {sizes['N']}")
    weight = fields.gather(activation)[..., None] * coupling.flatten(1, 2)  # [B, P, N, T']
    total = weight.sum(dim=2, keepdim=True)
    share = torch.where(total > 0, weight / total.where(total > 0, 1), 1 / fields.n_children)
    each = torch.einsum("bjtp,bpnt->bjpn", amount.flatten(3), share)
    return fields.total(each.movedim(1, 3)).movedim(4, 1)
