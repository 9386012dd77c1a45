"""Maps of capsules laid over the image that they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchcaps.analysis.draw.canvas import MUTED, SMALL, TEXT, bare, pixels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def overlay(axes: Any, image: Tensor, values: np.ndarray, extent: tuple[float, ...], largest: float) -> Any:
    """Lay a map of capsules over the image that they see, and return it (for a colour bar).

    Args:
        axes: where.
        image: ``[C, H, W]``.
        values: of the map, ``[H', W']``.
        extent: (left, right, bottom, top) of the map in pixels of the image.
        largest: the value that is brightest.
    """
    height, width = image.shape[1:]
    axes.imshow(0.45 * pixels(image).mean(axis=2), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    left, right, bottom, top = extent
    dy, dx = (bottom - top) / values.shape[0], (right - left) / values.shape[1]
    drawn = axes.imshow(
        np.pad(values, 1),  # a margin in which the colours fade out
        alpha=np.pad(np.full(values.shape, 0.85), 1),
        extent=(left - dx, right + dx, bottom + dy, top - dy),
        cmap="inferno",
        vmin=0,
        vmax=largest,
        interpolation="bilinear",
        zorder=2,
    )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    bare(axes)
    return drawn


def colour_bar(figure: Figure, drawn: Any, axes: Any, label: str) -> None:
    """What the colours of an overlay mean, beside all these axes."""
    bar = figure.colorbar(drawn, ax=axes, shrink=0.7, aspect=30, pad=0.01)
    bar.set_label(label, fontsize=TEXT, color=MUTED)
    bar.ax.tick_params(labelsize=SMALL, colors=MUTED, length=0)
    bar.outline.set_visible(False)
