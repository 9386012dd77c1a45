"""Draw transformations recovered from capsules against the true ones.

:mod:`torchcaps.models.pose_recovery` computes them: training records them too, and imports no picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from torchcaps.explain.canvas import MUTED, SERIES, TEXT, check_pictures, new_figure, scales
from torchcaps.models.pose_recovery import regression_fit
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PER_ROW = 3


class RecoveryPanel(NamedTuple):
    """One panel of :func:`draw_pose_recovery`.

    Attributes:
        title: name of the parameter.
        true: true values, ``[N]``.
        predicted: values recovered from the capsules, ``[N]``.
    """

    title: str
    true: Tensor
    predicted: Tensor


@typed
def draw_pose_recovery(panels: Sequence[RecoveryPanel], unit: str = "") -> Figure:
    """Draw a dot for each pair of images; on the dashed line the recovered value is the true one.

    Args:
        panels: parameters to show, at least one.
        unit: unit of all values, for the label of the axis, such as " (pixels)".

    Raises:
        ValueError: there are no panels, or the true values of one do not vary.

    Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
    """
    if not panels:
        raise ValueError("panels must hold at least one, got none")
    panels = [panel._replace(true=panel.true.detach(), predicted=panel.predicted.detach()) for panel in panels]
    for panel in panels:
        check_pictures(**{"panels.true": (panel.true, "N"), "panels.predicted": (panel.predicted, "N")})
        if not panel.true.isfinite().all() or not (panel.true != panel.true[:1]).any():
            raise ValueError(f"panels.true must hold different finite numbers, got {panel.true.tolist()[:9]}")
    n_columns = min(_PER_ROW, len(panels))
    n_rows = -(-len(panels) // n_columns)
    figure = new_figure(3.3 * n_columns, 3.2 * n_rows)
    grid = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes, panel in zip(grid, panels, strict=False):
        fit = regression_fit(panel.true, panel.predicted)
        low, high = panel.true.min().item(), panel.true.max().item()
        room = 0.25 * (high - low)
        axes.scatter(panel.true.cpu(), panel.predicted.cpu(), s=6, color=SERIES[0], alpha=0.35, linewidths=0)
        axes.plot((low, high), (low, high), color=SERIES[1], linewidth=1.2, linestyle=(0, (4, 2)))
        scales(axes, panel.title, f"true{unit}")
        axes.set_ylabel("recovered from the capsules", fontsize=TEXT, color=MUTED)
        axes.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
        text = f"slope {fit.slope:.2f}, R² {fit.r2:.3f}"
        axes.text(0.03, 0.97, text, transform=axes.transAxes, fontsize=TEXT, va="top")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure
