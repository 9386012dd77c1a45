"""Pairs of overlapping images and their segmentation, in red and green."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcaps.analysis.draw.canvas import (
    FIRST,
    MUTED,
    RIGHT,
    SECOND,
    TEXT,
    WRONG,
    new_figure,
    numbers,
    pixels,
    shortened,
    show,
)
from torchcaps.analysis.segment import Segmentation, red_and_green

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Names of at most so many characters stand side by side.
_SHORT = 3


def draw_segmentation(found: Segmentation, classes: Sequence[str]) -> Figure:
    """A column for each pair: the input, its two true parts, and the two reconstructions.

    Args:
        found: as :func:`torchcaps.analysis.segment` gives it; up to about 10 pairs are legible.
        classes: J names.
    """
    n = len(found.images)
    rows = (
        ("input", pixels(found.images)),
        ("the two\ntrue parts", numbers(red_and_green(found.parts).clamp(0, 1))),
        ("the two\nreconstructions", numbers(red_and_green(found.reconstructions).clamp(0, 1))),
    )
    height, width = found.images.shape[2:]
    names = 0.26 if max(map(len, classes)) <= _SHORT else 0.44
    figure = new_figure(1.3 + 0.8 * n, 0.3 + (0.8 * height / width + names) * 3)
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
    """The two names over a picture, in the colours of their parts: in one line if they are short."""
    short = max(len(first), len(second)) <= _SHORT
    axes.set_title(" " if short else " \n ", fontsize=TEXT + 1, pad=3)  # takes the room
    places = ((0.46, 3, "right"), (0.54, 3, "left")) if short else ((0.5, 14, "center"), (0.5, 2, "center"))
    for (x, up, side), name, colour in zip(places, (first, second), (FIRST, SECOND), strict=True):
        text = axes.annotate(shortened(name, 10), (x, 1), (0, up), "axes fraction", "offset points", ha=side)
        text.set(color=colour, fontsize=TEXT + 1 if short else TEXT, in_layout=False)
