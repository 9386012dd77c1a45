"""Couplings over the image, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torchcaps.analysis.couplings import Couplings
from torchcaps.analysis.draw.canvas import INK, MUTED, SMALL, TEXT, bare, new_figure, pixels, shortened, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_couplings(
    image: Tensor, couplings: Couplings, classes: Sequence[str], index: int = 0, n_classes: int = 10
) -> Figure:
    """One row an iteration, one column a class: the brighter a place, the more it votes for the class.

    All maps have one scale. Under each stands the length of the class capsule.

    Args:
        image: ``[C, H, W]``.
        couplings: as :func:`torchcaps.analysis.coupling_maps` gives them for this image.
        classes: J names.
        index: which image of ``couplings`` this is.
        n_classes: show the likeliest so many, in their own order.
    """
    maps, scores = couplings.maps[:, index].cpu(), couplings.scores[:, index].cpu()  # [r, J, H, W], [r, J]
    shown: list[int] = scores[-1].topk(min(n_classes, len(classes))).indices.sort().values.tolist()
    grey = pixels(image).mean(axis=2)
    height, width = grey.shape
    n_iters = len(maps)
    figure = new_figure(0.75 * (len(shown) + 1) + 1.1, (0.75 * height / width + 0.24) * n_iters + 0.25)
    grid = figure.subplots(n_iters, len(shown) + 1, squeeze=False)
    largest = float(maps[:, shown].max()) or 1.0
    for t, row in enumerate(grid):
        show(row[0], pixels(image), "input" if t == 0 else "", MUTED)
        row[0].set_ylabel(f"iteration {t + 1}", fontsize=TEXT, color=MUTED)
        best = int(scores[t].argmax())
        for axes, j in zip(row[1:], shown, strict=True):
            axes.imshow(0.45 * grey, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            values = np.pad(maps[t, j].numpy(), 1)  # a margin in which the colours fade out
            inside = np.pad(np.full(maps.shape[2:], 0.85), 1)
            style = {"cmap": "inferno", "vmin": 0, "vmax": largest, "interpolation": "bilinear", "zorder": 2}
            axes.imshow(values, alpha=inside, extent=_wider(couplings.extent, *maps.shape[2:]), **style)
            axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
            bare(axes)
            if t == 0:
                axes.set_title(
                    shortened(classes[j], 8), fontsize=TEXT + (2 if len(classes[j]) < 4 else 0), color=INK, pad=4
                )
            weight = "bold" if j == best else "normal"
            axes.set_xlabel(f"{scores[t, j]:.2f}", fontsize=TEXT, color=INK, labelpad=2, fontweight=weight)
    bar = figure.colorbar(grid[-1, -1].images[-1], ax=grid, shrink=0.7, aspect=30, pad=0.01)
    bar.set_label("activity × coupling", fontsize=TEXT, color=MUTED)
    bar.ax.tick_params(labelsize=SMALL, colors=MUTED, length=0)
    bar.outline.set_visible(False)
    return figure


def _wider(extent: tuple[float, float, float, float], height: int, width: int) -> tuple[float, float, float, float]:
    """The extent of a map of this size with one more place on every side."""
    left, right, bottom, top = extent
    dy, dx = (bottom - top) / height, (right - left) / width
    return left - dx, right + dx, bottom + dy, top - dy
