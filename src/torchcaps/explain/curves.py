"""Training curves, from the metrics that a run records."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, new_figure, scales
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What every row has.
_DRAWN = {"epoch", "train_loss", "val_loss", "lr"}
#: What is drawn beside the losses, where all runs have it: its title, its unit, and how the last value is written.
_MEASURES = {
    "val_error": ("Validation error, %", 100, ".2f", " %"),
    "val_dice": ("Validation Dice score", 1, ".4f", ""),
}


@typed
def draw_curves(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Draw losses, validation error and learning rate of several runs over their epochs.

    Networks that segment have a Dice score in place of the error; auto-encoders have neither.

    Args:
        runs: rows of ``metrics.csv`` (see :func:`torchcaps.explain.read_metrics`) by the name of
            the run.

    Raises:
        ValueError: there is no run, or a run has no rows, or a row lacks what is drawn.
    """
    if not runs or not all(runs.values()):
        raise ValueError(f"runs must have at least one row each, got { ({k: len(v) for k, v in runs.items()}) }")
    for name, row in ((name, row) for name, rows in runs.items() for row in rows):
        if not row.keys() >= _DRAWN:
            raise ValueError(f"runs must have {', '.join(sorted(_DRAWN))} in every row, got {', '.join(row)} in {name}")
    kind = next((kind for kind in _MEASURES if all(kind in row for rows in runs.values() for row in rows)), "val_error")
    title, factor, form, unit = _MEASURES[kind]
    errors = [factor * row[kind] for rows in runs.values() for row in rows if kind in row]
    figure = new_figure(9.5, 3.3)
    loss, *others, rate = figure.subplots(1, 3 if errors else 2, width_ratios=(4, 4, 3) if errors else (4, 3))
    for k, (name, rows) in enumerate(runs.items()):
        colour = SERIES[k % len(SERIES)]
        style: dict[str, Any] = {"color": colour, "linewidth": 1.8}
        if len(rows) == 1:
            style["marker"] = "o"
        epochs = [row["epoch"] for row in rows]
        loss.plot(epochs, [row["train_loss"] for row in rows], **style | {"linewidth": 1.1, "linestyle": (0, (4, 2))})
        # Where there are errors, these are named. A label with _ before it would be left out.
        label = f" {name}" if name.startswith("_") else name
        named = {} if kind in rows[0] or len(runs) == 1 else {"label": label}
        loss.plot(epochs, [row["val_loss"] for row in rows], **style, **named)
        if kind in rows[0]:
            values = [factor * row[kind] for row in rows]
            others[0].plot(epochs, values, label=f"{label} ({values[-1]:{form}}{unit})", **style)
        rate.plot(epochs, [row["lr"] for row in rows], **style)
    scales(loss, "Loss", "epoch")
    scales(rate, "Learning rate", "epoch")
    _logarithmic(loss)
    for line_style, label in (("-", "validation"), ((0, (4, 2)), "training")):
        loss.plot([], [], color=MUTED, linestyle=line_style, label=label)
    for error in others:
        scales(error, title, "epoch")
        _set_range(error, errors)
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter("{x:g}")
    for axes in (loss, *others):
        axes.legend(fontsize=SMALL, labelcolor=INK, frameon=False, loc="best")
    for axes in (loss, *others, rate):
        axes.xaxis.get_major_locator().set_params(integer=True)
        if all(len(rows) == 1 for rows in runs.values()):
            axes.set_xticks([rows[0]["epoch"] for rows in runs.values()])
    return figure


def _set_range(axes: Any, values: list[float]) -> None:
    """Let the axis begin at 0, or make it logarithmic where the first epochs would flatten all that follows."""
    if min(values) > 0 and max(values) > 10 * min(values):
        _logarithmic(axes)
    else:
        axes.set_ylim(bottom=0)


def _logarithmic(axes: Any) -> None:
    """Make the axis logarithmic, with ticks at 1, 2, 5, 10 … in plain numbers."""
    axes.set_yscale("log", subs=[2, 5])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


@typed
def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """Read a run's ``metrics.csv``.

    Args:
        path: the file.

    Returns:
        One dict per epoch: epoch, step, lr, train_loss, val_loss, seconds; for classifiers also val_error, a fraction
        of 1, and for networks that segment val_dice.

    Raises:
        ValueError: the file is missing, or something in it is no number.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"path must name a file of metrics, {path} cannot be read as metrics: {error}") from error
