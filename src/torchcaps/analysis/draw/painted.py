"""What auto-encoders of capsules paint, in rows and sheets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.analysis.draw.canvas import INK, MUTED, TEXT, new_figure, pixels, show, tiled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMN = 0.8  # inches of an image


def draw_painted(rows: Sequence[tuple[str, Tensor]], titles: Sequence[str] = ()) -> Figure:
    """Images in columns: what is seen, what is asked for, what is painted.

    Args:
        rows: name and images ``[K, C, H, W]`` of each row, values 0 … 1, equally many in all.
        titles: what stands over each column.

    Raises:
        ValueError: no images, or rows of different lengths.
    """
    lengths = {len(images) for _, images in rows}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"rows must hold equally many images, at least one, got {[len(each) for _, each in rows]}")
    n = lengths.pop()
    figure = new_figure(1.5 + _COLUMN * n, 0.3 + 0.25 * bool(titles) + (_COLUMN + 0.06) * len(rows))
    grid = figure.subplots(len(rows), n, squeeze=False)
    for axes, (name, images) in zip(grid, rows, strict=True):
        for each, picture in zip(axes, pixels(images), strict=True):
            show(each, picture)
        axes[0].set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
    for axes, title in zip(grid[0], titles, strict=False):
        axes.set_title(title, fontsize=TEXT, color=INK, pad=4)
    return figure


def draw_sweep(true: Tensor, painted: Tensor, titles: Sequence[str], within: Sequence[bool]) -> Figure:
    """One image under stronger and stronger transformations, over what is painted when they are told.

    Args:
        true: the transformed images ``[K, C, H, W]``, values 0 … 1.
        painted: ``[K, C, H, W]``.
        titles: K, what each transformation is.
        within: K, which of them are such as were trained on; the others' titles have a star.

    Raises:
        ValueError: as :func:`draw_painted`.
    """
    starred = [title if known else f"{title} *" for title, known in zip(titles, within, strict=True)]
    return draw_painted((("transformed", true), ("painted", painted)), starred)


def draw_units(units: Tensor, n_capsules: int = 12, n_units: int = 16) -> Figure:
    """A row of pictures for each capsule; grey is 0, brighter adds light, darker takes it away.

    All are on one scale, that of the strongest pixel shown: what adds nothing is grey.

    Args:
        units: as :func:`torchcaps.analysis.generative_units` gives them, ``[J, G, C, h, w]``. Of one picture a
            capsule (a template) all are shown in rows of eight, whatever the other arguments.
        n_capsules: rows at most.
        n_units: pictures in a row at most.
    """
    if units.shape[1] == 1:
        n = min(8, len(units))
        units = torch.cat((units, units.new_zeros(-len(units) % n, *units.shape[1:])))
        units = units.squeeze(1).unflatten(0, (-1, n))
    else:
        units = units[:n_capsules, :n_units]
    sheet = tiled(pixels(0.5 + 0.5 * units / units.abs().max().clamp_min(1e-12)))
    height, width, _ = sheet.shape
    figure = new_figure(9.0, max(1.0, 9.0 * height / width))
    show(figure.subplots(), sheet)
    return figure
