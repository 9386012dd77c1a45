"""A table as a picture: a row's numbers from the paper and from here on one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from study.tables.summary import summarise
from study.tables.table import Results, Table
from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, new_figure, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKS = "os^v"


def draw(table: Table, places: Mapping[str, Results]) -> Figure:
    """One panel for each column of the table; a diamond is the paper's number, a dot a run of ours.

    Smoke runs are left out.
    """
    rows = table.rows[::-1]
    figure = new_figure(8.5, 1.1 + 0.34 * len(rows))
    panels = figure.subplots(1, len(table.columns), squeeze=False, sharey=True)[0]
    for axes, (column, title) in zip(panels, table.columns.items(), strict=True):
        numbers = [(number(row.paper[column]), y) for y, row in enumerate(rows) if column in row.paper]
        if numbers:
            axes.plot(*zip(*numbers, strict=True), "D", mfc="none", mec=INK, ms=7, label="paper", zorder=3)
        drawn = [x for x, _ in numbers]
        for k, (place, results) in enumerate(places.items()):
            found = [(summarise(table, row, results), y) for y, row in enumerate(rows)]
            dots = [(x, y) for one, y in found if one and not one.smoke for x in one.values.get(column, ())]
            if dots:
                axes.plot(*zip(*dots, strict=True), _MARKS[k], color=SERIES[k], ms=5, label=place, zorder=4)
            drawn += [x for x, _ in dots]
        if drawn and min(drawn) > 0:
            low, high = 0.7 * min(drawn), 1.4 * max(drawn)
            axes.set_xscale("log", subs=range(2, 10) if high < 5 * low else (2, 5))
            axes.set_xlim(low, high)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("{x:g}")
        else:  # no error is negative
            high = max(drawn, default=0) or 1
            axes.set_xlim(-0.05 * high, 1.1 * high)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        scales(axes, table.title if column == next(iter(table.columns)) else "", title)
    marks = {label: mark for axes in panels for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if marks:
        placed = {"loc": "outside lower right", "ncols": len(marks), "frameon": False}
        figure.legend(marks.values(), marks.keys(), fontsize=SMALL, labelcolor=MUTED, **placed)
    return figure


def number(text: str) -> float:
    """The number that the paper's text begins with, such as 0.25 of "0.25 ± 0.005"."""
    found = re.match(r"[\d.]+", text)
    if found is None:
        raise ValueError(f"paper must begin with a number, got {text!r}")
    return float(found[0])
