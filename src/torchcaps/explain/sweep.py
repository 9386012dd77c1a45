"""Validation errors of many settings side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, new_figure, scales
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: More rows than this could not be read.
_MOST = 40


@typed
def draw_sweep(errors: Mapping[str, Sequence[float]], measure: str = "validation error") -> Figure:
    """Draw the errors of each combination of settings: a dot a seed, a line at their mean, the lowest mean on top.

    Of more than 40 combinations the best are drawn.

    Args:
        errors: fractions of 1, one a seed, by the settings in words.
        measure: what they are.

    Raises:
        ValueError: there is no combination, or one without errors.
    """
    if not errors or not all(errors.values()):
        raise ValueError(f"errors must have at least one each, got { ({k: len(v) for k, v in errors.items()}) }")
    means = {name: sum(values) / len(values) for name, values in errors.items()}
    names = sorted(means, key=lambda name: means[name])[:_MOST][::-1]
    figure = new_figure(8.5, 1.0 + 0.3 * len(names))
    axes = figure.subplots()
    for y, name in enumerate(names):
        colour = SERIES[1] if y == len(names) - 1 else SERIES[0]
        axes.plot([100 * value for value in errors[name]], [y] * len(errors[name]), "o", color=colour, ms=5)
        axes.plot([100 * means[name]] * 2, [y - 0.3, y + 0.3], color=colour, linewidth=1.8)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL, color=INK)
    scales(axes, "", f"{measure}, %")
    axes.tick_params(axis="y", colors=MUTED)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=0)
    return figure
