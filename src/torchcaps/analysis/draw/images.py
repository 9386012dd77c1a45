"""Images in columns: with their reconstructions, or only the mistaken ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchcaps.analysis.draw.canvas import INK, MUTED, RIGHT, TEXT, WRONG, bare, new_figure, pixels, shortened, show
from torchcaps.analysis.reconstruct import Reconstructions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LONGEST = 9  # characters of a name


def verdict(label: int, predicted: int, classes: Sequence[str]) -> tuple[str, str]:
    """What stands over an image, and its colour: "✓ 7" or, in red, "✗ 7 read as 1" in three lines."""
    true, taken = shortened(classes[label], _LONGEST), shortened(classes[predicted], _LONGEST)
    return (f"✓ {true}", RIGHT) if label == predicted else (f"✗ {true}\nread as\n{taken}", WRONG)


def draw_reconstructions(found: Reconstructions, classes: Sequence[str]) -> Figure:
    """Inputs over what the decoder makes of them, one image a column.

    Under a wrong prediction a third picture shows the same image as seen by the true class's capsule.

    Args:
        found: as :func:`torchcaps.analysis.reconstruct` gives it; up to about 12 images are legible.
        classes: J names.
    """
    n, wrong = len(found.images), found.labels != found.predicted
    rows = [("input", found.images), ("decoded from the\npredicted capsule", found.from_predicted)]
    if bool(wrong.any()):
        rows.append(("decoded from the\ntrue capsule", found.from_true))
    height, width = found.images.shape[2:]
    column = max(0.68, 0.085 * (2 + min(_LONGEST, max(map(len, classes)))))
    figure = new_figure(1.6 + column * n, 0.7 + (column * height / width + 0.12) * len(rows))
    grid = figure.subplots(len(rows), n, squeeze=False)
    for axes, (name, images) in zip(grid, rows, strict=True):
        for k, picture in enumerate(pixels(images)):
            if images is found.from_true and not wrong[k]:
                bare(axes[k])
            else:
                show(axes[k], picture)
        axes[0].set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
    for k in range(n):
        text, colour = verdict(int(found.labels[k]), int(found.predicted[k]), classes)
        grid[0, k].set_title(text, fontsize=TEXT, color=colour, pad=4)
    return figure


def draw_mistakes(images: Tensor, labels: Tensor, predicted: Tensor, classes: Sequence[str], n: int = 24) -> Figure:
    """The images that were taken for another class.

    Args:
        images: ``[B, C, H, W]``; the right ones among them are left out.
        labels: true classes ``[B]``.
        predicted: predicted classes ``[B]``.
        classes: J names.
        n: at most so many are shown.
    """
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
        figure.text(0.5, 0.5, "no image was taken for another class", ha="center", va="center", color=INK)
    return figure
