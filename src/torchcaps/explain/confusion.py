"""The confusion matrix, and the images that are misclassified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_classes, check_shapes
from torchcaps.explain.canvas import (
    INK,
    LINES,
    MUTED,
    TEXT,
    TITLE,
    check_names,
    check_pictures,
    new_figure,
    numbers,
    pixels,
    shortened,
    show,
    verdict,
)
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@typed
def confusion_matrix(labels: Tensor, predicted: Tensor, n_classes: int) -> Tensor:
    """Count how often each class was predicted for each true one.

    Args:
        labels: true classes, ``[B]``, integers.
        predicted: predicted classes, ``[B]``, integers.
        n_classes: J.

    Returns:
        Counts ``[J, J]`` int64: the row is the true class, the column the predicted one.

    Raises:
        ValueError: shapes that do not fit, or a class that is not in 0 … J − 1.

    Example:
        >>> import torch
        >>> confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2)
        tensor([[1, 1],
                [0, 1]])
    """
    check_shapes(labels=(labels, "B"), predicted=(predicted, "B"))
    check_at_least("n_classes", n_classes, 1)
    for name, classes in (("labels", labels), ("predicted", predicted)):
        check_classes(name, classes, n_classes)
    return torch.bincount(labels.long() * n_classes + predicted.long(), minlength=n_classes**2).view(
        n_classes, n_classes
    )


#: With more classes than this the counts would be too small to read.
_MOST_COUNTS = 30


@typed
def draw_confusion(matrix: Tensor, classes: Sequence[str]) -> Figure:
    """Draw the counts of predictions: blue on the diagonal for correct ones, red elsewhere for mistakes.

    Red deepens up to the most frequent mistake, so that few mistakes among many images are seen.

    Args:
        matrix: counts from :func:`confusion_matrix`, ``[J, J]``.
        classes: J names.

    Raises:
        ValueError: the number of names is not that of the classes.
    """
    n = len(classes)
    if list(matrix.shape) != [n, n]:
        raise ValueError(f"matrix must be [J, J] with J={n} as there are classes, got shape {list(matrix.shape)}")
    if matrix.is_meta or matrix.is_complex() or matrix.dtype == torch.bool:
        raise ValueError(f"matrix must hold counts, got {matrix.dtype} on {matrix.device}")
    counts = numbers(matrix) if matrix.is_floating_point() else matrix.cpu().numpy()
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
    """Scale mistakes from 0 (none) to 1 (the most frequent one, or three if none is as frequent)."""
    mistakes = counts - np.diag(np.diag(counts))
    return np.where(mistakes > 0, 0.15 + 0.85 * mistakes / max(3, mistakes.max()), 0)


def _colours(counts: np.ndarray) -> np.ndarray:
    """Colour the matrix, RGB ``[J, J, 3]``: shares of each row on the diagonal, mistakes by their number."""
    red = _shares_of_mistakes(counts)[..., None]
    white, full_red, full_blue = np.ones(3), np.array([0.78, 0.16, 0.10]), np.array([0.62, 0.75, 0.95])
    blue = np.diag(np.diag(counts) / np.maximum(1, counts.sum(axis=1)))[..., None]
    return white + red * (full_red - white) + blue * (full_blue - white)


@typed
def draw_misclassified(
    images: Tensor, labels: Tensor, predicted: Tensor, classes: Sequence[str], n: int = 24
) -> Figure:
    """Draw the images that are misclassified.

    Args:
        images: ``[B, C, H, W]``; those that are classified correctly are left out.
        labels: true classes ``[B]``.
        predicted: predicted classes ``[B]``.
        classes: J names.
        n: largest number of images to show.
    """
    check_shapes(images=(images, "B C H W"), labels=(labels, "B"), predicted=(predicted, "B"))
    check_at_least("n", n, 1)
    check_names(classes, labels=labels, predicted=predicted)
    if len(images):
        check_pictures(images=(images, "B C H W"))
    wrong = (labels != predicted).nonzero().squeeze(1)[:n].tolist()
    n_columns = min(8, max(1, len(wrong)))
    n_rows = max(1, -(-len(wrong) // n_columns))
    height, width = images.shape[2:]
    figure = new_figure(max(3.0, 1.15 * n_columns), n_rows * (1.15 * height / width + 0.65))
    for k, axes in enumerate(figure.subplots(n_rows, n_columns, squeeze=False).flat):
        if k < len(wrong):
            text, colour = verdict(int(labels[wrong[k]]), int(predicted[wrong[k]]), classes)
            show(axes, pixels(images[wrong[k]]), text, colour)
        else:
            axes.set_visible(False)
    if not wrong:
        figure.text(0.5, 0.5, "no image is misclassified", ha="center", va="center", color=INK)
    return figure
