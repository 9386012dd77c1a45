"""Error against the number of labelled examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, TEXT, new_figure, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Per cent: no mean is drawn lower, for a logarithmic axis has no 0.
_LEAST = 0.1
_MARKS = ("o", "s", "^", "D", "v")


def draw_few_labels(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A curve for each row: a colour for each kind of code, a mark and a dash for each way from codes to classes.

    Args:
        rows: with ``code``, ``readout`` and ``errors``, by the number of labels a dict with ``test_error`` and
            ``test_std`` (None of a single draw) as fractions of 1.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("rows must hold at least one, got none")
    codes = list(dict.fromkeys(row["code"] for row in rows))
    readouts = list(dict.fromkeys(row["readout"] for row in rows))
    figure = new_figure(9.5, 5.2)
    axes = figure.subplots()
    colours = dict(zip(codes, _colours(len(codes)), strict=True))
    for row in rows:
        colour, k = colours[row["code"]], readouts.index(row["readout"])
        x = [int(n) for n in row["errors"]]
        y = [max(100 * found["test_error"], _LEAST) for found in row["errors"].values()]
        spread = [100 * (found["test_std"] or 0.0) for found in row["errors"].values()]
        low = [max(value - by, _LEAST / 2) for value, by in zip(y, spread, strict=True)]
        high = [value + by for value, by in zip(y, spread, strict=True)]
        style: dict[str, Any] = {"color": colour, "marker": _MARKS[k % len(_MARKS)], "markersize": 4}
        axes.plot(x, y, linewidth=1.4, linestyle=("-", "--", ":", "-.")[k % 4], **style)
        axes.vlines(x, low, high, color=colour, linewidth=0.8, alpha=0.5)
    for name, colour in colours.items():
        axes.plot([], [], color=colour, linewidth=3, label=name)
    for k, name in enumerate(readouts):
        style = {"linestyle": ("-", "--", ":", "-.")[k % 4], "marker": _MARKS[k % len(_MARKS)]}
        axes.plot([], [], color=MUTED, markersize=4, label=name, **style)
    scales(axes, "Test error, %", "labelled examples")
    axes.set_xscale("log")
    axes.set_yscale("log", subs=[2, 5])
    # A deviation as large as its mean leaves the picture below, which would else show little but its line.
    least = min(100 * found["test_error"] for row in rows for found in row["errors"].values())
    axes.set_ylim(bottom=max(least, _LEAST) / 1.5)
    ticks = sorted({int(n) for row in rows for n in row["errors"]})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    figure.legend(loc="outside right upper", fontsize=SMALL, labelcolor=INK, frameon=False, title_fontsize=TEXT)
    return figure


def _colours(n: int) -> list[Any]:
    """One for each code, all different."""
    from matplotlib import colormaps

    return list(SERIES[:n]) if n <= len(SERIES) else [colormaps["turbo"](k / n) for k in range(n)]
