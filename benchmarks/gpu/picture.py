"""The table of speed as bars, one group for each problem, on a logarithmic scale.

Such a scale has no foot: bars begin at the bound, and so their length is how many times longer something takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.table import SHOWN
from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, new_figure, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The kernels stand out; what others write is of one family.
COLOURS = dict(zip(SHOWN, (SERIES[7], SERIES[3], SERIES[1], SERIES[4], SERIES[2], SERIES[0]), strict=True))
_HEIGHT = 0.8


def draw_speeds(times: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Bars of milliseconds by problem and contender, from the bound on.

    Args:
        times: see :func:`benchmarks.gpu.table.speeds`.
        title: with the card's name.

    Raises:
        ValueError: nothing was timed.
    """
    times = {name: row for name, row in times.items() if any(key in row for key in SHOWN)}
    if not times:
        raise ValueError("times must hold measurements, got none")
    figure = new_figure(9.5, 1.2 + sum(0.25 + 0.2 * sum(key in row for key in SHOWN) for row in times.values()))
    axes: Any = figure.subplots()
    every = [value for row in times.values() for value in row.values()]
    low = min(every) / 2
    ticks, y = [], 0.0
    for row in times.values():
        first = y
        for name in SHOWN:
            if name in row:
                foot = row.get("bound", low)
                axes.barh(y, row[name] - foot, left=foot, height=_HEIGHT, color=COLOURS[name], label=name)
                axes.text(row[name] * 1.06, y, f"{row[name]:.3g}", va="center", fontsize=SMALL - 1, color=INK)
                y += 1
        ticks.append((first + y - 1) / 2)
        if "bound" in row:
            axes.vlines(row["bound"], first - 0.5, y - 0.5, color=INK, linewidth=1.2, label="bound")
        y += 1.0
    axes.set_xscale("log")
    axes.set_xlim(low, 3 * max(every))
    axes.set_ylim(y - 0.5, -1)
    scales(axes, title, "ms, logarithmic")
    axes.set_yticks(ticks, list(times))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.grid(axis="y", visible=False)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    shown = [name for name in (*SHOWN, "bound") if name in handles]
    axes.legend(
        [handles[name] for name in shown], shown, fontsize=SMALL, frameon=False, labelcolor=MUTED, loc="lower right"
    )
    return figure
