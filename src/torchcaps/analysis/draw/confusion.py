"""The confusion matrix as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torchcaps.analysis.draw.canvas import INK, LINES, MUTED, TEXT, TITLE, new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: With more classes than this the counts would be too small to read.
_MOST_COUNTS = 30


def draw_confusion(matrix: Tensor, classes: Sequence[str]) -> Figure:
    """Counts of predictions: blue on the diagonal for right ones, red elsewhere for mistakes.

    Red deepens up to the most frequent mistake, so that few mistakes among many are seen.

    Args:
        matrix: as :func:`torchcaps.analysis.confusion_matrix` gives it, ``[J, J]``.
        classes: J names.

    Raises:
        ValueError: another number of names than classes.
    """
    n = len(classes)
    if list(matrix.shape) != [n, n]:
        raise ValueError(f"matrix must be [J, J] with J={n} as there are classes, got shape {list(matrix.shape)}")
    counts = matrix.cpu().numpy()
    side = min(9.5, max(4.2, 2.2 + 0.44 * n))
    figure = new_figure(side, side)
    axes = figure.subplots()
    axes.imshow(_colours(counts), interpolation="nearest")
    names = [shortened(name) for name in classes]
    size = min(TEXT, 370 / n)
    long = max(map(len, names)) > 3
    axes.set_xticks(range(n), names, fontsize=size, color=INK, rotation=90 if long else 0)
    axes.set_yticks(range(n), names, fontsize=size, color=INK)
    axes.set_xlabel("predicted class", fontsize=TEXT, color=MUTED)
    axes.set_ylabel("true class", fontsize=TEXT, color=MUTED)
    mistakes = int(counts.sum() - np.trace(counts))
    axes.set_title(f"{mistakes:,} of {int(counts.sum()):,} wrong", fontsize=TITLE, color=INK, loc="left")
    axes.tick_params(length=0, which="both")
    axes.spines[:].set_color(LINES)
    axes.set_xticks(np.arange(n - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(n - 1) + 0.5, minor=True)
    axes.grid(which="minor", color=LINES, linewidth=0.6)
    if n <= _MOST_COUNTS:
        size = min(TEXT, 260 / n / max(1, len(str(counts.max())) - 1))
        red = _shares_of_mistakes(counts)
        for i, j in zip(*np.nonzero(counts), strict=True):
            colour = "white" if red[i, j] > 0.6 else INK
            axes.text(j, i, str(counts[i, j]), ha="center", va="center", fontsize=size, color=colour)
    return figure


def _shares_of_mistakes(counts: np.ndarray) -> np.ndarray:
    """0 where there is no mistake, up to 1 for the most frequent one (a single one is not that bad)."""
    mistakes = counts - np.diag(np.diag(counts))
    return np.where(mistakes > 0, 0.15 + 0.85 * mistakes / max(3, mistakes.max()), 0)


def _colours(counts: np.ndarray) -> np.ndarray:
    """RGB ``[J, J, 3]``: shares of each row on the diagonal, mistakes by their number."""
    red = _shares_of_mistakes(counts)[..., None]
    white, full_red, full_blue = np.ones(3), np.array([0.78, 0.16, 0.10]), np.array([0.62, 0.75, 0.95])
    blue = np.diag(np.diag(counts) / np.maximum(1, counts.sum(axis=1)))[..., None]
    return white + red * (full_red - white) + blue * (full_blue - white)
