"""Couplings of the class capsules laid out over the image, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.explain.canvas import (
    INK,
    MUTED,
    TEXT,
    check_pictures,
    colour_bar,
    new_figure,
    numbers,
    overlay,
    pixels,
    shortened,
    show,
)
from torchcaps.explain.models import inspects_model
from torchcaps.explain.receptive_fields import Extent, map_extent
from torchcaps.explain.trace import trace_routing
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Couplings(NamedTuple):
    """Couplings of one or more images in iterations 1 … r, on the map of lower capsules.

    Attributes:
        maps: ``[r, B, J, H, W]``: mean over types of a_i c_ij, the part of each place's activity that goes to class j.
            Its sum over j is the mean activity, in every iteration (less with leaky routing).
        scores: activations of the class capsules (their lengths, in a CapsNet), ``[r, B, J]``.
        extent: (left, right, bottom, top) of the map in pixels of the image.
    """

    maps: Tensor
    scores: Tensor
    extent: Extent


@typed
@inspects_model
def coupling_maps(
    model: nn.Module, images: Tensor, n_iters: int | None = None, *, extent: Extent | None = None
) -> Couplings:
    """Lay the couplings of the class capsules out over the image.

    Args:
        model: any network whose last routed layer makes its class capsules of a map of capsules.
        images: ``[B, C, H, W]``, values 0 … 1.
        n_iters: number of iterations r of the class capsules, by default their own; the layers below keep theirs.
        extent: (left, right, bottom, top) of that map in pixels of the image; by default that of the receptive fields
            of a CapsNet or MatrixCapsNet, and all of the image for a network of your own.

    Returns:
        :class:`Couplings`.

    Raises:
        ValueError: the model routes no map of capsules to its classes, the images do not fit it, or ``n_iters`` is
            below 1.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> model = build("capsnet_small", (1, 28, 28), 10)
        >>> coupling_maps(model, torch.rand(1, 1, 28, 28)).maps.shape  # iterations, images, classes, rows, columns
        torch.Size([3, 1, 10, 6, 6])
    """
    check_shapes(images=(images, "B C H W"))
    found = trace_routing(model, images)
    classes, map_shape = found.classes, found.map_shape()
    n_iters = classes.layer.n_iters if n_iters is None else n_iters
    check_at_least("n_iters", n_iters, 1)
    maps, scores = [], []
    for t in range(1, n_iters + 1):
        routed = classes.again(t)
        assert routed.coupling is not None
        weighted = classes.lower.activation.flatten(1)[:, :, None] * routed.coupling  # [B, I, J]
        maps.append(weighted.unflatten(1, map_shape).mean(dim=1).permute(0, 3, 1, 2))  # [B, J, H, W]
        scores.append(routed.activation)
    return Couplings(torch.stack(maps), torch.stack(scores), extent or map_extent(model, images))


@typed
def draw_couplings(
    image: Tensor, couplings: Couplings, classes: Sequence[str], index: int = 0, n_classes: int = 10
) -> Figure:
    """Draw a row for each iteration and a column for each class: a place is brighter the more it votes for the class.

    All maps share one scale. Under each stands the class capsule's activation (its length, in a CapsNet).

    Args:
        image: ``[C, H, W]``.
        couplings: those of :func:`coupling_maps`, for this image among others.
        classes: J names.
        index: index of this image in ``couplings``.
        n_classes: largest number of classes; the likeliest are shown, in their own order.

    Raises:
        ValueError: ``image`` is a batch, the number of names is not that of the classes, or ``index`` is of no image.
    """
    check_pictures(image=(image, "C H W"))
    check_pictures(**{"couplings.maps": (couplings.maps, "r B J h w"), "couplings.scores": (couplings.scores, "r B J")})
    check_at_least("n_classes", n_classes, 1)
    n, n_images = couplings.scores.shape[2], couplings.scores.shape[1]
    if len(classes) != n:
        raise ValueError(f"classes must be {n} names, got {len(classes)}")
    if index not in range(n_images):
        raise ValueError(f"index must be one of 0 … {n_images - 1}, got {index!r}")
    maps, scores = couplings.maps[:, index].cpu(), couplings.scores[:, index].cpu()  # [r, J, H, W], [r, J]
    shown: list[int] = scores[-1].topk(min(n_classes, len(classes))).indices.sort().values.tolist()
    height, width = image.shape[1:]
    n_iters = len(maps)
    figure = new_figure(0.75 * (len(shown) + 1) + 1.1, (0.75 * height / width + 0.24) * n_iters + 0.25)
    grid = figure.subplots(n_iters, len(shown) + 1, squeeze=False)
    largest, drawn = float(maps[:, shown].max()) or 1.0, None
    for t, row in enumerate(grid):
        show(row[0], pixels(image), "input" if t == 0 else "", MUTED)
        row[0].set_ylabel(f"iteration {t + 1}", fontsize=TEXT, color=MUTED)
        best = int(scores[t].argmax())
        for axes, j in zip(row[1:], shown, strict=True):
            drawn = overlay(axes, image, numbers(maps[t, j]), couplings.extent, largest)
            if t == 0:
                axes.set_title(
                    shortened(classes[j], 8), fontsize=TEXT + (2 if len(classes[j]) < 4 else 0), color=INK, pad=4
                )
            weight = "bold" if j == best else "normal"
            axes.set_xlabel(f"{scores[t, j]:.2f}", fontsize=TEXT, color=INK, labelpad=2, fontweight=weight)
    colour_bar(figure, drawn, grid, "activity × coupling")
    return figure
