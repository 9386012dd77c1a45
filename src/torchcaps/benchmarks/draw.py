"""The pictures: bars of times and memory, and curves of growth, both on logarithmic scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchcaps.analysis.draw.canvas import INK, MUTED, SERIES, SMALL, new_figure, scales
from torchcaps.benchmarks.clock import Measured
from torchcaps.benchmarks.result import Found, Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(found: Mapping[str, Found]) -> Figure:
    """One panel of bars for each suite's times and memory, one of curves for each suite's growth.

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
    heights = [3.2 if unit == "curves" else 0.6 + 0.24 * len(content) for _, unit, content in panels]
    figure = new_figure(9.5, sum(heights) + 0.4 * len(panels))
    every = figure.subfigures(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, (title, unit, content) in zip(every, panels, strict=True):
        if unit == "curves":
            _curves(part, title, content)
        else:
            _bars(part.subplots(), title, unit, content)
    return figure


def _scaled(value: Measured, factor: float) -> tuple[float, float, float]:
    return value.median * factor, value.lower * factor, value.upper * factor


def _bars(axes: Any, title: str, unit: str, values: Mapping[str, tuple[float, float, float]]) -> None:
    names = list(values)[::-1]
    medians = [values[name][0] for name in names]
    colours = [SERIES[0] if "ours" in name else SERIES[2] if "floor" in name else SERIES[7] for name in names]
    spread = [[values[n][0] - values[n][1] for n in names], [values[n][2] - values[n][0] for n in names]]
    axes.barh(names, medians, color=colours, height=0.66, xerr=spread, error_kw={"ecolor": INK, "elinewidth": 0.8})
    axes.set_xscale("log")
    axes.set_xlim(min(medians) / 2, max(medians) * 3)
    for k, name in enumerate(names):
        axes.text(values[name][2] * 1.12, k, _number(values[name][0]), va="center", fontsize=SMALL, color=INK)
    scales(axes, title, f"{unit}, logarithmic")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.grid(axis="y", visible=False)


def _curves(part: Any, title: str, curves: Mapping[str, list[Point]]) -> None:
    part.suptitle(title, fontsize=SMALL + 2, color=INK, x=0.01, ha="left")
    for k, (axes, (name, points)) in enumerate(zip(part.subplots(1, len(curves), squeeze=False)[0], curves.items())):
        xs = [point.x for point in points]
        axes.plot(xs, [1e3 * point.seconds for point in points], color=SERIES[0], marker="o", ms=3, label="ms")
        known = [(point.x, point.bytes / 1e6) for point in points if point.bytes]
        axes.plot([x for x, _ in known], [y for _, y in known], color=SERIES[1], marker="s", ms=3, label="MB")
        axes.set_xscale("log")
        axes.set_yscale("log")
        scales(axes, "", name)
        axes.set_xticks(ends := sorted({xs[0], xs[len(xs) // 2], xs[-1]}), [f"{x:,g}" for x in ends])
        axes.set_yticks(_few_ticks(*axes.get_ylim()))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.tick_params(which="minor", labelbottom=False, labelleft=False)
        if k == 0:
            axes.legend(fontsize=SMALL, labelcolor=MUTED, frameon=False)


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
