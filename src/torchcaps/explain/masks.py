"""Images with the masks of their classes, true and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps.checks import check_shapes
from torchcaps.data.mask_file import colour_of
from torchcaps.explain.canvas import INK, MUTED, TEXT, check_pictures, new_figure, numbers, pixels, shortened, show
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How much of an image is seen through the masks that lie on it.
_THROUGH = 0.45


@typed
def colour_masks(images: Tensor, masks: Tensor) -> Tensor:
    """Lay the masks of classes over images, each in its colour; where several are, their colours are mixed.

    Args:
        images: ``[B, C, H, W]``, values 0 … 1. They are shown in grey.
        masks: ``[B, J, H, W]``; above ½ is inside.

    Returns:
        ``[B, H, W, 3]`` of red, green and blue, 0 … 1.

    Example:
        >>> import torch
        >>> colour_masks(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))[0, 0, 0]
        tensor([0.4961, 0.3429, 0.0000])
    """
    check_pictures(images=(images, "B C H W"))
    check_shapes(images=(images, "B C H W"), masks=(masks, "B J H W"))
    inside = (masks > 0.5).float()
    colours = torch.tensor([colour_of(k) for k in range(masks.shape[1])], device=masks.device) / 255  # [J, 3]
    n = inside.sum(dim=1).unsqueeze(-1)  # [B, H, W, 1]
    mixed = torch.einsum("bjhw,jc->bhwc", inside, colours) / n.clamp_min(1)
    grey = images.float().clamp(0, 1).mean(dim=1).unsqueeze(-1).expand_as(mixed)
    return torch.where(n > 0, _THROUGH * grey + (1 - _THROUGH) * mixed, 0.6 * grey)


@typed
def draw_masks(images: Tensor, masks: Tensor, predicted: Tensor, classes: Sequence[str]) -> Figure:
    """Draw a column for each image: the image, its true masks and the predicted ones, in the colours of a legend.

    Args:
        images: ``[B, C, H, W]``, values 0 … 1; up to about ten are legible.
        masks: true, ``[B, J, H, W]``; above ½ is inside.
        predicted: likewise, or scores.
        classes: J names.

    Raises:
        ValueError: shapes that do not fit, images that are no floats, another number of names.
    """
    check_pictures(images=(images, "B C H W"))
    sizes = check_shapes(images=(images, "B C H W"), masks=(masks, "B J H W"), predicted=(predicted, "B J H W"))
    if len(classes) != sizes["J"]:
        raise ValueError(f"classes must be {sizes['J']} names, one for each mask, got {len(classes)}")
    rows = (
        ("image", pixels(images)),
        ("true masks", numbers(colour_masks(images, masks))),
        ("predicted", numbers(colour_masks(images, predicted))),
    )
    n, (height, width) = len(images), images.shape[2:]
    figure = new_figure(1.2 + 0.95 * n, 0.55 + 3 * (0.95 * height / width + 0.06))
    grid = figure.subplots(3, n, squeeze=False)
    for axes, (name, pictures) in zip(grid, rows, strict=True):
        axes[0].set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
        for k in range(n):
            show(axes[k], pictures[k])
    _legend(figure, classes)
    return figure


def _hex(k: int) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour_of(k))


def _legend(figure: Any, classes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_hex(k), label=shortened(name)) for k, name in enumerate(classes)]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=min(len(patches), 8), fontsize=TEXT, labelcolor=INK,
        frameon=False, handlelength=1,
    )  # fmt: skip
