"""Reconstructions of images from their class capsules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_int64, check_shapes
from torchcaps.explain.canvas import (
    MAX_NAME,
    MUTED,
    TEXT,
    bare,
    check_names,
    check_pictures,
    new_figure,
    pixels,
    show,
    verdict,
)
from torchcaps.explain.models import Decode, class_capsules, decode_each, decoding, inspects_model
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Reconstructions(NamedTuple):
    """Images and their reconstructions.

    Attributes:
        images: ``[B, C, H, W]``.
        labels: true classes ``[B]``.
        predicted: predicted classes ``[B]``.
        from_predicted: decoded from the predicted class's capsule, ``[B, C, H, W]``.
        from_true: decoded from the true class's capsule, ``[B, C, H, W]``.
    """

    images: Tensor
    labels: Tensor
    predicted: Tensor
    from_predicted: Tensor
    from_true: Tensor


@typed
@inspects_model
def reconstruct(model: nn.Module, images: Tensor, labels: Tensor, *, decoder: Decode | None = None) -> Reconstructions:
    """Decode each image twice: from the capsule of its predicted class, and from that of its true class.

    Args:
        model: any network that returns its class capsules, see :func:`~torchcaps.explain.class_capsules`.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: true classes ``[B]`` int64.
        decoder: maps class poses ``[B, J, D]`` and a class of each image ``[B]`` to images; by default the model's own.

    Returns:
        :class:`Reconstructions`.

    Raises:
        ValueError: there is no decoder, the model returns no capsules, or the shapes do not fit.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> model = build("capsnet_small", (1, 28, 28), 10)
        >>> reconstruct(model, torch.rand(2, 1, 28, 28), torch.tensor([3, 5])).from_true.shape
        torch.Size([2, 1, 28, 28])

    Source: Sabour et al. 2017, section 4.1, figure 3.
    """
    with decoding(model, decoder) as decode:
        check_shapes(images=(images, "B C H W"), labels=(labels, "B"))
        check_int64("labels", labels)
        scores, pose = class_capsules(model, images)
        predicted = scores.argmax(dim=1)
        both = decode_each(decode, pose, torch.stack((predicted, labels), dim=1))  # [B, 2, C, H, W]
    return Reconstructions(images, labels, predicted, both[:, 0], both[:, 1])


@typed
def draw_reconstructions(reconstructions: Reconstructions, classes: Sequence[str]) -> Figure:
    """Draw inputs above their reconstructions, a column for each image.

    Under a wrong prediction a third picture shows the same image decoded from the true class's capsule.

    Args:
        reconstructions: those of :func:`reconstruct`; up to about 12 images are legible.
        classes: J names.
    """
    of = "reconstructions."
    names = ("images", "from_predicted", "from_true")
    check_pictures(**{of + name: (getattr(reconstructions, name), "B C H W") for name in names})
    of_labels = {of + name: getattr(reconstructions, name) for name in ("labels", "predicted")}
    check_shapes(
        **{of + "images": (reconstructions.images, "B C H W")}, **{name: (x, "B") for name, x in of_labels.items()}
    )
    check_names(classes, **of_labels)
    n, wrong = len(reconstructions.images), reconstructions.labels != reconstructions.predicted
    rows = [("input", reconstructions.images), ("decoded from the\npredicted capsule", reconstructions.from_predicted)]
    if bool(wrong.any()):
        rows.append(("decoded from the\ntrue capsule", reconstructions.from_true))
    height, width = reconstructions.images.shape[2:]
    column = max(0.68, 0.085 * (2 + min(MAX_NAME, max(map(len, classes)))))
    figure = new_figure(1.6 + column * n, 0.7 + (column * height / width + 0.12) * len(rows))
    grid = figure.subplots(len(rows), n, squeeze=False)
    for axes, (name, images) in zip(grid, rows, strict=True):
        for k, picture in enumerate(pixels(images)):
            if images is reconstructions.from_true and not wrong[k]:
                bare(axes[k])
            else:
                show(axes[k], picture)
        axes[0].set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
    for k in range(n):
        text, colour = verdict(int(reconstructions.labels[k]), int(reconstructions.predicted[k]), classes)
        grid[0, k].set_title(text, fontsize=TEXT, color=colour, pad=4)
    return figure
