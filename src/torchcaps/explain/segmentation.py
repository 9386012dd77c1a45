"""Segmentation of two overlapping images, each reconstructed from its own capsule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_floating, check_shapes
from torchcaps.explain.canvas import (
    FIRST,
    MUTED,
    RIGHT,
    SECOND,
    TEXT,
    WRONG,
    check_names,
    check_pictures,
    new_figure,
    numbers,
    pixels,
    shortened,
    show,
)
from torchcaps.explain.models import Decode, class_capsules, decode_each, decoding, inspects_model
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Segmentation(NamedTuple):
    """Pairs of images and their segmentation.

    Attributes:
        images: the pairs that the network sees, ``[B, C, H, W]``.
        labels: the two true classes ``[B, 2]``.
        parts: the two images, ``[B, 2, C, H, W]``.
        predicted: the two predicted classes ``[B, 2]``; a correct one stands in the place of its label.
        reconstructions: decoded from the predicted capsules, ``[B, 2, C, H, W]``.
    """

    images: Tensor
    labels: Tensor
    parts: Tensor
    predicted: Tensor
    reconstructions: Tensor

    @property
    def right(self) -> Tensor:
        """Mark pairs of which both classes are predicted, ``[B]`` bool."""
        return (self.predicted == self.labels).all(dim=1)


@typed
@inspects_model
def segment(
    model: nn.Module, images: Tensor, labels: Tensor, parts: Tensor, *, decoder: Decode | None = None
) -> Segmentation:
    """Find the two classes in each pair, and reconstruct each from its own capsule alone.

    Args:
        model: any network that returns its class capsules, see :func:`~torchcaps.explain.class_capsules`.
        images: pairs ``[B, C, H, W]``, values 0 … 1; see :class:`torchcaps.data.Pairs`.
        labels: their two different classes ``[B, 2]`` int64.
        parts: the two images alone, ``[B, 2, C, H, W]``.
        decoder: maps class poses ``[B, J, D]`` and a class of each image ``[B]`` to images; by default the model's own.

    Returns:
        :class:`Segmentation`.

    Raises:
        ValueError: there is no decoder, the model returns no capsules, the shapes do not fit, or there is one class.

    Source: Sabour et al. 2017, section 6, figure 5.
    """
    with decoding(model, decoder) as decode:
        check_shapes(images=(images, "B C H W"), labels=(labels, "B K"), parts=(parts, "B K C H W"))
        if labels.shape[1] != 2:
            raise ValueError(f"labels must be [B, 2], got shape {list(labels.shape)}")
        scores, pose = class_capsules(model, images)
        check_at_least("the number of classes", scores.shape[1], 2)
        predicted = scores.topk(2, dim=1).indices
        crossed = (predicted == labels.flip(1)).any(dim=1, keepdim=True)
        predicted = torch.where(crossed, predicted.flip(1), predicted)
        return Segmentation(images, labels, parts, predicted, decode_each(decode, pose, predicted))


@typed
def red_and_green(parts: Tensor) -> Tensor:
    """Lay two images over each other in two colours: yellow where both are bright.

    Args:
        parts: ``[..., 2, C, H, W]``, values 0 … 1.

    Returns:
        ``[..., H, W, 3]``: red is the first (the mean of its channels), green the second, no blue.
    """
    check_floating("parts", parts)
    if parts.dim() < 4 or parts.shape[-4] != 2:
        raise ValueError(f"parts must be [..., 2, C, H, W], got shape {list(parts.shape)}")
    red, green = parts.mean(dim=-3).unbind(dim=-3)
    return torch.stack((red, green, torch.zeros_like(red)), dim=-1)


#: Names of at most so many characters stand side by side.
_SHORT = 3


@typed
def draw_segmentation(segmentation: Segmentation, classes: Sequence[str]) -> Figure:
    """Draw a column for each pair: the input, its two true parts, and the two reconstructions.

    Args:
        segmentation: that of :func:`segment`; up to about 10 pairs are legible.
        classes: J names.
    """
    of = "segmentation."
    check_pictures(**{of + "images": (segmentation.images, "B C H W"), of + "parts": (segmentation.parts, "B 2 C H W")})
    check_pictures(**{of + "reconstructions": (segmentation.reconstructions, "B 2 C H W")})
    of_labels = {of + "labels": segmentation.labels, of + "predicted": segmentation.predicted}
    check_shapes(
        **{of + "images": (segmentation.images, "B C H W")},
        **{name: (labels, "B 2") for name, labels in of_labels.items()},
    )
    check_names(classes, **of_labels)
    n = len(segmentation.images)
    rows = (
        ("input", pixels(segmentation.images)),
        ("the two\ntrue parts", numbers(red_and_green(segmentation.parts).clamp(0, 1))),
        ("the two\nreconstructions", numbers(red_and_green(segmentation.reconstructions).clamp(0, 1))),
    )
    height, width = segmentation.images.shape[2:]
    names = 0.26 if max(map(len, classes)) <= _SHORT else 0.44
    figure = new_figure(1.3 + 0.8 * n, 0.3 + (0.8 * height / width + names) * 3)
    grid = figure.subplots(3, n, squeeze=False)
    for axes, (name, pictures) in zip(grid, rows, strict=True):
        axes[0].set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
        for k in range(n):
            show(axes[k], pictures[k])
    for k in range(n):
        for axes, pair in ((grid[1, k], segmentation.labels[k]), (grid[2, k], segmentation.predicted[k])):
            _name(axes, classes[int(pair[0])], classes[int(pair[1])])
        right = bool(segmentation.right[k])
        grid[0, k].set_title("✓" if right else "✗", color=RIGHT if right else WRONG, fontsize=TEXT + 2, pad=2)
    return figure


def _name(axes: Any, first: str, second: str) -> None:
    """Write two names above a picture, in the colours of their parts: in one line if they are short."""
    short = max(len(first), len(second)) <= _SHORT
    axes.set_title(" " if short else " \n ", fontsize=TEXT + 1, pad=3)  # takes the room
    places = ((0.46, 3, "right"), (0.54, 3, "left")) if short else ((0.5, 14, "center"), (0.5, 2, "center"))
    for (x, up, side), name, colour in zip(places, (first, second), (FIRST, SECOND), strict=True):
        text = axes.annotate(shortened(name, 10), (x, 1), (0, up), "axes fraction", "offset points", ha=side)
        text.set(color=colour, fontsize=TEXT + 1 if short else TEXT, in_layout=False)
