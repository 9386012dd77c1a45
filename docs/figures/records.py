"""Pictures of recorded results in study/results: `python docs/figures/records.py`."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from drawing import HERE, recorded, save

from torchcaps.explain.canvas import INK, MUTED, SERIES, SMALL, TEXT, new_figure, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def novel_errors(split: str, cnn: str, which: str) -> tuple[list[float], list[float]]:
    """Return errors on novel viewpoints in per cent, of capsules and of a CNN: for each seed the mean of three folds.

    Args:
        split: "azimuth" or "elevation".
        cnn: "cnn-small", with as many parameters, or "cnn", the paper's.
        which: "matched" on validation, or "whole", trained to the end.
    """
    both: dict[str, list[float]] = {"run": [], "beside": []}
    for seed in range(3):
        folds = [f"fold-{k}-{seed}" for k in range(3)]
        beside = f"matched-beside-smallnorb-{split}-{cnn}"
        names = [f"smallnorb-{split}-{fold}/{beside}-{fold}" for fold in folds]
        values = [recorded("measures", name)["values"] for name in names]
        for who, errors in both.items():
            errors.append(100 * mean(each[who][which]["novel_error"] for each in values))
    return both["run"], both["beside"]


def draw_viewpoints() -> Figure:
    """Draw errors on viewpoints that training did not show, with the deviation over three seeds."""
    rows = [
        (split, cnn, which) for split in ("azimuth", "elevation") for cnn in ("cnn-small", "cnn")
        for which in ("matched", "whole")
    ]  # fmt: skip
    figure = new_figure(7.6, 3.7)
    axes: Any = figure.subplots()
    names = {"cnn-small": "CNN of equal size", "cnn": "the paper's CNN"}
    how = {"matched": "matched", "whole": "trained to the end"}
    for y, (split, cnn, which) in enumerate(rows):
        for errors, colour, label, up in zip(
            novel_errors(split, cnn, which), SERIES, ("capsules", "CNN"), (-0.13, 0.13), strict=False
        ):
            style = {"color": colour, "markersize": 5, "capsize": 0, "linewidth": 1.6}
            axes.errorbar(mean(errors), y + up, xerr=stdev(errors), fmt="o", label=label if y == 0 else None, **style)
    labels = [f"{split}, {names[cnn]}, {how[which]}" for split, cnn, which in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(15, 30))
    scales(axes, "error on novel viewpoints of small NORB", "per cent, mean and standard deviation of three seeds")
    axes.tick_params(axis="y", labelsize=TEXT, colors=INK)
    axes.legend(fontsize=TEXT, frameon=False, loc="upper right")
    return figure


def draw_routing() -> Figure:
    """Draw the entropy of the couplings of a trained CapsNet, and its error, against iterations in test."""
    values = recorded("measures", "mnist-adam-0/routing")["values"]
    n_iters, run = values["n_iters"], values["run"]
    figure = new_figure(8.4, 2.9)
    left, right = figure.subplots(1, 2)
    left.plot(n_iters, [100 * each for each in run["active_entropy"]], "o-", color=SERIES[0], markersize=4)
    left.set(ylim=(0, 105))
    scales(left, "entropy of couplings, % of the largest", "iterations in test")
    right.bar(n_iters, [round(each * values["n"]) for each in run["error"]], color=SERIES[1], width=0.6)
    scales(right, "wrong of 1,000 test digits", "iterations in test")
    for axes in (left, right):
        axes.axvline(run["trained_with"], color=MUTED, linewidth=0.8, linestyle=":")
        axes.set_xticks(n_iters)
    left.text(run["trained_with"] + 0.1, 8, "trained with 3", fontsize=SMALL, color=MUTED)
    return figure


def make(folder: Path = HERE) -> list[Path]:
    """Draw both."""
    return [
        save(draw_viewpoints(), "novel-viewpoints", folder),
        save(draw_routing(), "what-routing-does", folder),
    ]


if __name__ == "__main__":
    make()
