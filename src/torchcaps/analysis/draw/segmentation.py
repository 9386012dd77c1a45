"""Pairs of overlapping images and their segmentation, in red and green."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcaps.analysis.draw.canvas import FIRST, MUTED, RIGHT, SECOND, TEXT, WRONG, new_figure, pixels, shortened, show
from torchcaps.analysis.segment import Segmentation, red_and_green

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_segmentation(found: Segmentation, classes: Sequence[str]) -> Figure:
    """A column for each pair: the input, its two true parts, and the two reconstructions.

    Args:
        found: as :func:`torchcaps.analysis.segment` gives it; up to about 10 pairs are legible.
        classes: J names.
    """
    n = len(found.images)
    rows = (
        ("input", pixels(found.images)),
        ("the two\ntrue parts", red_and_green(found.parts).clamp(0, 1).cpu().numpy()),
        ("the two\nreconstructions", red_and_green(found.reconstructions).clamp(0, 1).cpu().numpy()),
    )
    height, width = found.images.shape[2:]
    figure = new_figure(1.3 + 0.8 * n, 0.3 + (0.8 * height / width + 0.26) * 3)
    grid = figure.subplots(3, n, squeeze=False)
    for axes, (name, pictures) in zip(grid, rows, strict=True):
        axes[0].set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
        for k in range(n):
            show(axes[k], pictures[k])
    for k in range(n):
        for axes, pair in ((grid[1, k], found.labels[k]), (grid[2, k], found.predicted[k])):
            _name(axes, classes[int(pair[0])], classes[int(pair[1])])
        right = bool(found.right[k])
        grid[0, k].set_title("✓" if right else "✗", color=RIGHT if right else WRONG, fontsize=TEXT + 2, pad=2)
    return figure


def _name(axes: Any, first: str, second: str) -> None:
    """The two names over a picture, in the colours of their parts."""
    axes.set_title(" ", fontsize=TEXT + 1, pad=3)
    for x, text, colour, side in ((0.46, first, FIRST, "right"), (0.54, second, SECOND, "left")):
        axes.text(
            x, 1.04, shortened(text, 6), transform=axes.transAxes, ha=side, va="bottom", fontsize=TEXT + 1, color=colour
        )
