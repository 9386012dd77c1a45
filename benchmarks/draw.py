"""The pictures: times and memory as points on logarithmic scales, and curves of growth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.clock import Measured
from benchmarks.result import Found, Point
from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, new_figure, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Sizes that grow by more than this stand on a logarithmic scale.
MANIFOLD = 6


def draw(found: Mapping[str, Found]) -> Figure:
    """One panel of points for each suite's times and memory, one of curves for each suite's growth.

    Raises:
        ValueError: nothing was measured.
    """
    panels: list[tuple[str, str, Any]] = []
    for one in found.values():
        if one.seconds:
            panels.append((one.title, "ms", {name: _scaled(value, 1e3) for name, value in one.seconds.items()}))
        if one.bytes:
            panels.append((one.title, "MB", {name: _scaled(value, 1e-6) for name, value in one.bytes.items()}))
        if one.curves:
            panels.append((one.title, "curves", one.curves))
    if not panels:
        raise ValueError("found must hold measurements, got none")
    heights = [4.4 if unit == "curves" else 0.6 + 0.24 * len(content) for _, unit, content in panels]
    figure = new_figure(9.5, sum(heights) + 0.4 * len(panels))
    every = figure.subfigures(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, (title, unit, content) in zip(every, panels, strict=True):
        if unit == "curves":
            _curves(part, title, content)
        else:
            _points(part.subplots(), title, unit, content)
    return figure


def _scaled(value: Measured, factor: float) -> tuple[float, float, float]:
    return value.median * factor, value.lower * factor, value.upper * factor


def _points(axes: Any, title: str, unit: str, values: Mapping[str, tuple[float, float, float]]) -> None:
    names = list(values)[::-1]
    medians = [values[name][0] for name in names]
    colours = [SERIES[0] if "ours" in name else SERIES[2] if "floor" in name else SERIES[7] for name in names]
    axes.hlines(names, [values[n][1] for n in names], [values[n][2] for n in names], color=INK, linewidth=0.8)
    axes.scatter(medians, names, color=colours, s=28, zorder=3)  # no bars: a logarithmic scale has no foot
    axes.set_xscale("log")
    axes.set_xlim(min(medians) / 2, max(medians) * 3)
    for k, name in enumerate(names):
        axes.text(values[name][2] * 1.12, k, _number(values[name][0]), va="center", fontsize=SMALL, color=INK)
    scales(axes, title, f"{unit}, logarithmic")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.grid(axis="y", visible=False)


def _curves(part: Any, title: str, curves: Mapping[str, list[Point]]) -> None:
    """Times, below them memory where it was measured; what grows manifold on logarithmic scales."""
    part.suptitle(title, fontsize=SMALL + 2, color=INK, x=0.01, ha="left")
    kinds = [("ms", SERIES[0], {name: [(p.x, 1e3 * p.seconds) for p in points] for name, points in curves.items()})]
    memory = {name: [(p.x, p.bytes / 1e6) for p in points if p.bytes] for name, points in curves.items()}
    if all(memory.values()):
        kinds.append(("MB", SERIES[1], memory))
    rows = part.subplots(len(kinds), len(curves), squeeze=False, sharex="col")
    for row, (unit, colour, content) in zip(rows, kinds, strict=True):
        for axes, (name, points) in zip(row, content.items(), strict=True):
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=colour, marker="o", ms=3)
            if xs[-1] > MANIFOLD * xs[0]:
                axes.set_xscale("log")
                axes.set_yscale("log")
                axes.set_yticks(_few_ticks(*axes.get_ylim()))
            else:
                axes.set_ylim(0, 1.1 * max(ys))
            scales(axes, "", name if unit == kinds[-1][0] else "")
            axes.set_xticks(ends := sorted({xs[0], xs[len(xs) // 2], xs[-1]}), [f"{x:,g}" for x in ends])
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.tick_params(which="minor", labelbottom=False, labelleft=False)
        row[0].set_ylabel(unit, fontsize=SMALL, color=MUTED)


def _few_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; of a shorter range 2 and 5 times them too, or its ends alone."""
    for digits in ((1,), (1, 2, 5)):
        ticks = [d * 10.0**k for k in range(-9, 9) for d in digits if low <= d * 10.0**k <= high]
        if len(ticks) > 2:
            return ticks
    return ticks if len(ticks) > 1 else [low, high]


def _number(x: float) -> str:
    """Three digits, and no powers of ten."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
