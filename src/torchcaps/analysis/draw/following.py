"""What was done to images beside what their capsules say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from torchcaps.analysis.draw.canvas import MUTED, SERIES, TEXT, new_figure, scales
from torchcaps.analysis.recover import line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PER_ROW = 3


class Followed(NamedTuple):
    """One panel: numbers that are so ``[N]``, and those that were read off the capsules ``[N]``."""

    title: str
    true: Tensor
    got: Tensor


def draw_following(panels: Sequence[Followed], unit: str = "") -> Figure:
    """A dot for each pair of images; on the dashed line what was found is what was done.

    Args:
        panels: at least one.
        unit: of all of them, for the axes.

    Raises:
        ValueError: no panels, or one in which nothing varies.

    Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
    """
    if not panels:
        raise ValueError("panels must hold at least one, got none")
    n_columns = min(_PER_ROW, len(panels))
    n_rows = -(-len(panels) // n_columns)
    figure = new_figure(3.3 * n_columns, 3.2 * n_rows)
    grid = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        found = line(panel.true, panel.got)
        low, high = panel.true.min().item(), panel.true.max().item()
        room = 0.25 * (high - low)
        axes.scatter(panel.true.cpu(), panel.got.cpu(), s=6, color=SERIES[0], alpha=0.35, linewidths=0)
        axes.plot((low, high), (low, high), color=SERIES[1], linewidth=1.2, linestyle=(0, (4, 2)))
        scales(axes, panel.title, f"what was done{unit}")
        axes.set_ylabel("what the capsules say", fontsize=TEXT, color=MUTED)
        axes.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
        text = f"slope {found.slope:.2f}, R² {found.r2:.3f}"
        axes.text(0.03, 0.97, text, transform=axes.transAxes, fontsize=TEXT, va="top")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure
