"""The same images in several forms, and what was said of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchcaps.checks import check_shapes
from torchcaps.explain.canvas import INK, MUTED, SMALL, new_figure, pixels, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Inches of a picture, and of a letter below it.
_SIDE, _LETTER = 0.95, 0.062


def draw_examples(images: Tensor, columns: Sequence[str], notes: Sequence[Sequence[str]]) -> Figure:
    """A row an image, a column a form of it, and under each picture a note.

    Args:
        images: ``[R, K, C, H, W]``, values 0 … 1.
        columns: names of the K forms.
        notes: R rows of K notes, of one line or more.

    Raises:
        ValueError: other numbers of names or notes than of pictures.
    """
    sizes = check_shapes(images=(images, "R K C H W"))
    got = (len(notes), *{len(row) for row in notes}, len(columns))
    if got != (sizes["R"], sizes["K"], sizes["K"]):
        raise ValueError(f"columns and notes must be for R={sizes['R']}, K={sizes['K']} pictures, got {got}")
    n_lines = max(note.count("\n") + 1 for row in notes for note in row)
    height = _SIDE * sizes["H"] / sizes["W"] + 0.16 * n_lines + 0.06
    head = 0.16 * max(name.count("\n") + 1 for name in columns) + 0.1
    longest = max(
        len(line) for text in (*columns, *(note for row in notes for note in row)) for line in text.split("\n")
    )
    figure = new_figure((max(_SIDE, _LETTER * longest) + 0.12) * sizes["K"], height * sizes["R"] + head)
    grid = figure.subplots(sizes["R"], sizes["K"], squeeze=False)
    for i, row in enumerate(grid):
        for k, axes in enumerate(row):
            show(axes, pixels(images[i, k]), columns[k] if i == 0 else "", MUTED, SMALL)
            axes.set_xlabel(notes[i][k], fontsize=SMALL, color=INK, labelpad=3)
    return figure
