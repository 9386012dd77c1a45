"""Plain charts of numbers, side by side: lines over a parameter, and groups of bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, TEXT, new_figure, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 3


@dataclass(frozen=True)
class Lines:
    """Curves over one axis.

    Attributes:
        title: what is shown.
        x_name: of the axis, with its unit.
        x: K numbers.
        lines: K numbers each, by name; None where there is none.
        unit: whether they are shares, and all of 0 … 1 is to be shown.
    """

    title: str
    x_name: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]
    unit: bool = True


@dataclass(frozen=True)
class Bars:
    """Groups of bars.

    Attributes:
        title: what is shown.
        groups: names of K groups.
        bars: K numbers each, by name: one bar of every group; None where there is none.
    """

    title: str
    groups: Sequence[str]
    bars: Mapping[str, Sequence[float | None]]


def draw_charts(charts: Sequence[Lines | Bars]) -> Figure:
    """Charts in rows of three at most. What has one name has one colour in all of them, and one entry in the legend.

    Raises:
        ValueError: no charts, or other numbers of values than of places on the axis.
    """
    if not charts:
        raise ValueError("charts must hold at least one, got none")
    for chart in charts:
        places, values = (chart.x, chart.lines) if isinstance(chart, Lines) else (chart.groups, chart.bars)
        for name, numbers in values.items():
            if len(numbers) != len(places):
                raise ValueError(f"{name} must have {len(places)} values in {chart.title!r}, got {len(numbers)}")
    names = list(dict.fromkeys(name for chart in charts for name in _values(chart)))
    colours = {name: SERIES[k % len(SERIES)] for k, name in enumerate(names)}
    n_columns = min(_COLUMNS, len(charts))
    n_rows = -(-len(charts) // n_columns)
    figure = new_figure(max(4.6, 3.5 * n_columns), 2.9 * n_rows + 0.3 + 0.22 * -(-len(names) // 3))
    every = figure.subplots(n_rows, n_columns, squeeze=False).flat
    handles: dict[str, Any] = {}
    for k, axes in enumerate(every):
        if k >= len(charts):
            axes.set_visible(False)
            continue
        handles |= _draw(axes, charts[k], colours)
    ordered = [handles[name] for name in names]
    text = {"fontsize": TEXT, "labelcolor": INK, "frameon": False}
    figure.legend(ordered, names, loc="outside lower center", ncols=min(3, len(names)), **text)
    return figure


def _values(chart: Lines | Bars) -> Mapping[str, Sequence[float | None]]:
    return chart.lines if isinstance(chart, Lines) else chart.bars


def _draw(axes: Any, chart: Lines | Bars, colours: Mapping[str, str]) -> dict[str, Any]:
    """Draw one chart; returns a handle for each name."""
    handles: dict[str, Any] = {}
    numbers = {name: [math.nan if y is None else y for y in values] for name, values in _values(chart).items()}
    if isinstance(chart, Lines):
        for name, y in numbers.items():
            (handles[name],) = axes.plot(chart.x, y, color=colours[name], linewidth=1.8, marker="o", markersize=3)
        scales(axes, chart.title, chart.x_name)
        axes.locator_params(axis="x", nbins=6)
        if chart.unit:
            axes.set_ylim(-0.03, 1.03)
        return handles
    width = 0.8 / max(1, len(numbers))
    for k, (name, y) in enumerate(numbers.items()):
        at = [group - 0.4 + (k + 0.5) * width for group in range(len(y))]
        handles[name] = axes.bar(at, y, 0.92 * width, color=colours[name])
        for x, value in zip(at, y, strict=True):
            if not math.isnan(value):
                up = (0, 2) if value >= 0 else (0, -9)
                axes.annotate(f"{value:.2f}", (x, value), up, textcoords="offset points", ha="center", fontsize=SMALL)
    scales(axes, chart.title, "")
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(chart.groups)), chart.groups, fontsize=SMALL, color=MUTED)
    axes.margins(y=0.12)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    return handles
