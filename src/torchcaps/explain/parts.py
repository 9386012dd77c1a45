"""Parts of an image that a class capsule is made of, traced down to the first capsules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_floating, check_shapes
from torchcaps.explain.canvas import (
    INK,
    MUTED,
    TEXT,
    check_names,
    check_pictures,
    colour_bar,
    new_figure,
    numbers,
    overlay,
    pixels,
    shortened,
    show,
    verdict,
)
from torchcaps.explain.models import inspects_model
from torchcaps.explain.receptive_fields import Extent, map_extent
from torchcaps.explain.trace import trace_routing
from torchcaps.layers import ConvCaps
from torchcaps.ops.votes import Fields
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Parts(NamedTuple):
    """Parts of the class capsules of one or more images, on the map of primary capsules.

    Attributes:
        maps: ``[B, J, H, W]``: how much of class j comes from each place. Its sum over places is Σ_i R_ij a_i, the
            activity that routing gives to the class from the capsules below it.
        scores: activations of the class capsules (their lengths, in a CapsNet), ``[B, J]``.
        extent: (left, right, bottom, top) of the map in pixels of the image.
    """

    maps: Tensor
    scores: Tensor
    extent: Extent


@typed
@inspects_model
def part_maps(model: nn.Module, images: Tensor, *, extent: Extent | None = None) -> Parts:
    """Trace the class capsules back to the places of the image that they were made of.

    A class receives R_ij a_i from each capsule i of the map below it. That amount is divided among the children of i
    in proportion to their R a in the routing to i, and so on down through all layers of convolutional capsules. There,
    at the primary capsules, the types of each place are added up.

    Args:
        model: any network whose last routed layer makes its class capsules of a map of capsules.
        images: ``[B, C, H, W]``, values 0 … 1.
        extent: (left, right, bottom, top) of the map of primary capsules in pixels of the image; by default that of the
            receptive fields of a CapsNet or MatrixCapsNet, and all of the image for a network of your own.

    Returns:
        :class:`Parts`.

    Raises:
        ValueError: the model routes no map of capsules to its classes, or has capsules with padding; the images do not
            fit it.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> part_maps(build("matrix_capsnet_small", (1, 28, 28), 5), torch.rand(1, 1, 28, 28)).maps.shape
        torch.Size([1, 5, 12, 12])
    """
    check_shapes(images=(images, "B C H W"))
    found = trace_routing(model, images)
    coupling = found.classes.again().coupling  # [B, I, J]
    assert coupling is not None
    activation = found.classes.lower.activation.flatten(1)
    amount = (activation[..., None] * coupling).mT.unflatten(2, found.map_shape())  # [B, J, T, H, W]
    for call in reversed(found.calls[:-1]):
        layer, routed = call.layer, call.again()
        if not isinstance(layer, ConvCaps) or routed.activation.shape[1:] != amount.shape[2:]:
            raise ValueError(f"model must have ConvCaps alone below its class capsules, one after another; got {layer}")
        if any(layer.padding):
            raise ValueError(f"model must have no padding between its capsules, got {layer.padding}")
        assert routed.coupling is not None
        amount = propagate_responsibility(
            amount, call.lower.activation, routed.coupling, layer.kernel_size, layer.stride
        )
    return Parts(amount.sum(dim=2), found.scores, extent or map_extent(model, images, 0))


@typed
def propagate_responsibility(
    amount: Tensor, activation: Tensor, coupling: Tensor, kernel_size: tuple[int, int], stride: tuple[int, int]
) -> Tensor:
    """Divide the amounts of the capsules of a map among their children, in proportion to R a.

    Nothing is lost: a capsule whose children all have R a = 0 shares its amount equally.

    Args:
        amount: amount of each upper capsule for each class, ``[B, J, T', H', W']``.
        activation: activations of the children, ``[B, T, H, W]``.
        coupling: coupling that :func:`torchcaps.ops.conv_em_routing` returns, ``[B, H', W', N, T']`` with
            N = T·K_h·K_w.
        kernel_size: rows and columns of a receptive field.
        stride: rows and columns from one receptive field to the next.

    Returns:
        ``[B, J, T, H, W]``, with the same sum over capsules.

    Raises:
        ValueError: the shapes do not fit each other.
    """
    sizes = check_shapes(
        amount=(amount, "B J T' H' W'"), coupling=(coupling, "B H' W' N T'"), activation=(activation, "B T H W")
    )
    for name, tensor in (("amount", amount), ("activation", activation), ("coupling", coupling)):
        check_floating(name, tensor)
    fields = Fields(activation.shape[1:], kernel_size, stride)
    if fields.places != (sizes["H'"], sizes["W'"]):
        raise ValueError(f"amount must be of {fields.places} places as activation's fields, got {list(amount.shape)}")
    if sizes["N"] != fields.n_children:
        raise ValueError(f"coupling must be of N=T·K_h·K_w={fields.n_children} children, got {sizes['N']}")
    dtype = torch.promote_types(amount.dtype, torch.promote_types(activation.dtype, coupling.dtype))
    amount, activation, coupling = amount.to(dtype), activation.to(dtype), coupling.to(dtype)
    weight = fields.gather(activation)[..., None] * coupling.flatten(1, 2)  # [B, P, N, T']
    total = weight.sum(dim=2, keepdim=True)
    share = torch.where(total > 0, weight / total.where(total > 0, 1), 1 / fields.n_children)
    each = torch.einsum("bjtp,bpnt->bjpn", amount.flatten(3), share)
    return fields.total(each.movedim(1, 3)).movedim(4, 1)


_ROWS = ("parts of the\nwinning class", "parts of the\nrunner-up")


@typed
def draw_parts(images: Tensor, parts: Parts, labels: Tensor, classes: Sequence[str]) -> Figure:
    """Draw a column for each image: itself, and the parts of its winning class and of the runner-up.

    The maps of one image share one scale, from 0 to its brightest place. Under each stand the class and its capsule's
    activation.

    Args:
        images: ``[B, C, H, W]``; up to about 8 are legible.
        parts: those of :func:`part_maps`, for these images.
        labels: true classes ``[B]``.
        classes: J names, at least 2.

    Raises:
        ValueError: the shapes do not fit each other, or there is only one class.
    """
    sizes = check_shapes(
        **{"images": (images, "B C H W"), "labels": (labels, "B"), "parts.scores": (parts.scores, "B J")}
    )
    check_pictures(images=(images, "B C H W"))
    check_pictures(**{"parts.scores": (parts.scores, "B J"), "parts.maps": (parts.maps, "B J h w")})
    if sizes["J"] != len(classes) or len(classes) < 2:
        raise ValueError(f"classes must be J={sizes['J']} names, at least 2, got {len(classes)}")
    check_names(classes, labels=labels)
    maps, scores = parts.maps.cpu(), parts.scores.cpu()
    n, ratio = sizes["B"], sizes["H"] / sizes["W"]
    figure = new_figure(1.15 * n + 1.9, 3 * (1.15 * ratio + 0.3) + 0.35)
    grid = figure.subplots(3, n, squeeze=False)
    for axes, name in zip(grid[:, 0], ("image", *_ROWS), strict=True):
        axes.set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
    drawn = None
    for k in range(n):
        likeliest: list[int] = scores[k].topk(2).indices.tolist()
        text, colour = verdict(int(labels[k]), likeliest[0], classes)
        show(grid[0, k], pixels(images[k]), text, colour)
        largest = float(maps[k, likeliest].max()) or 1.0
        for axes, j in zip(grid[1:, k], likeliest, strict=True):
            drawn = overlay(axes, images[k], numbers(maps[k, j]) / largest, parts.extent, 1.0)
            axes.set_xlabel(f"{shortened(classes[j], 9)}: {scores[k, j]:.2f}", fontsize=TEXT, color=INK, labelpad=2)
    colour_bar(figure, drawn, grid, "given to the class (1: most in the image)")
    return figure
