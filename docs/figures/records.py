"""Pictures of recorded results in study/results: `python docs/figures/records.py`."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from drawing import HERE, recorded, save

from torchcaps.explain.canvas import INK, LINES, MUTED, SERIES, SMALL, TEXT, new_figure, scales

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
    names = {"cnn-small": "beside a CNN of equal size", "cnn": "beside the paper's CNN"}
    how = {"matched": "matched", "whole": "trained to the end"}
    for y, (split, cnn, which) in enumerate(rows):
        for errors, colour, label, up in zip(
            novel_errors(split, cnn, which), SERIES, ("capsules", "CNN"), (-0.13, 0.13), strict=False
        ):
            style = {"color": colour, "markersize": 5, "capsize": 0, "linewidth": 1.6}
            axes.errorbar(mean(errors), y + up, xerr=stdev(errors), fmt="o", label=label if y == 0 else None, **style)
    labels = [f"{split}, {names[cnn]}, {how[which]}" for split, cnn, which in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set(ylim=(len(rows) - 0.4, -1.4), xlim=(0, 32))
    scales(axes, "error on novel viewpoints of small NORB", "per cent, mean and standard deviation of three seeds")
    axes.tick_params(axis="y", labelsize=TEXT, colors=INK)
    axes.legend(fontsize=TEXT, frameon=False, loc="upper left", ncols=2)
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


def draw_speed() -> Figure:
    """Draw the times of four pieces of work on a CPU core: without routing, ours, and plain PyTorch."""
    suites = recorded("bench", "steps")["suites"]
    seconds = {name: 1e3 * one["median"] for suite in suites.values() for name, one in suite["seconds"].items()}
    eager = min(seconds[f"{name}, forward + backward"] for name in ("tiled", "einsum", "batched", "few_at_a_time"))
    rows = {"dynamic routing, forward and backward": (None, seconds["ours, forward + backward"], eager)}
    who = ("floor, step", "ours, step", "few_at_a_time, step")
    rows["CapsNet, training step"] = tuple(seconds[name] for name in who)
    for label, net in (("matrix capsules", "A=B=C=D=32"), ("small matrix capsules", "A64 B8 C16 D16")):
        who = ("floor", "ours", "stored_votes")
        rows[f"{label}, training step"] = tuple(seconds[f"{net}: {name}, step"] for name in who)
    figure = new_figure(7.6, 3.2)
    axes: Any = figure.subplots()
    for y, times in enumerate(rows.values()):
        axes.plot([min(filter(None, times)), max(filter(None, times))], [y, y], color=LINES, linewidth=2, zorder=1)
    marks = zip((MUTED, *SERIES[:2]), ("without routing", "torchcaps", "plain PyTorch"), ("s", "o", "D"), strict=True)
    for which, (colour, label, mark) in enumerate(marks):
        known = [(y, times[which]) for y, times in enumerate(rows.values()) if times[which] is not None]
        places, times = zip(*known, strict=True)
        axes.plot(times, places, mark, color=colour, markersize=6, label=label)
        for y, time in known:
            axes.text(time, y + (-0.2 if which else 0.33), f"{time:,.0f}", ha="center", fontsize=SMALL, color=MUTED)
    axes.set_xscale("log")
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(8, 6000))
    axes.set_yticks(range(len(rows)), list(rows))
    scales(axes, "time on one CPU core", "milliseconds, on a logarithmic scale")
    axes.tick_params(axis="y", labelsize=TEXT, colors=INK)
    axes.legend(fontsize=TEXT, frameon=False, loc="upper right")
    return figure


def draw_errors() -> Figure:
    """Draw the test errors of the networks that a paper has a number for, beside that number."""
    pages = import_module("study.pages")
    found = pages.summaries()
    rows = {}
    for recipe, (_, paper, _) in pages.HEADLINES.items():
        if number := re.match(r"\d+(?:\.\d+)?", paper):
            rows[recipe] = float(number[0]), found[recipe].values["test_error"]
    figure = new_figure(7.6, 3.2)
    axes: Any = figure.subplots()
    for y, (paper, errors) in enumerate(rows.values()):
        ours = "this library" if y == 0 else None
        axes.plot([paper, mean(errors)], [y, y], color=LINES, linewidth=2, zorder=1)
        axes.plot(mean(errors), y, "o", color=SERIES[0], markersize=6, label=ours)
        axes.plot(paper, y, "D", color=SERIES[1], markersize=5, label="the paper" if y == 0 else None)
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 5, 10], ["0.25", "0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.set(ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), list(rows))
    scales(axes, "test error", "per cent, on a logarithmic scale")
    axes.tick_params(axis="y", labelsize=TEXT, colors=INK)
    axes.legend(fontsize=TEXT, frameon=False, loc="upper right")
    return figure


def draw_routings() -> Figure:
    """Draw the test errors of every routing behind one trunk, one panel for each data set, every seed a dot."""
    comparison = import_module("study.recipes.comparison")
    runs = import_module("study.tables.kept").read_results(import_module("study.records").RESULTS)
    found = {
        data: {routing: runs.get(comparison.name_of(data, routing), []) for routing in comparison.ROUTINGS}
        for data in comparison.DATA
    }
    shown = [data for data, results in found.items() if any(results.values())]
    figure = new_figure(1.9 * len(shown) + 2.6, 3.9)
    panels: Any = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, data in zip(panels, shown, strict=True):
        key = "novel_error" if data == "azimuth" else "test_error"
        for y, results in enumerate(found[data].values()):
            errors = [100 * result[key] for result in results]
            axes.plot(errors, [y] * len(errors), "o", color=SERIES[0], markersize=5, alpha=0.8)
        for y in range(len(comparison.ROUTINGS)):
            axes.axhline(y, color=LINES, linewidth=0.6, zorder=0)
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = _round_ticks(*axes.get_xlim())
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        scales(axes, SHORT[data], "error, %")
        axes.set(ylim=(len(comparison.ROUTINGS) - 0.5, -0.5))
    panels[0].set_yticks(range(len(comparison.ROUTINGS)), list(comparison.ROUTINGS.values()))
    for axes in panels:
        axes.tick_params(axis="y", labelsize=TEXT, colors=INK)
    return figure


def draw_peers() -> Figure:
    """Draw the times of others over ours: one panel for one image, one for 64, and one for a training step."""
    suite = recorded("bench", "peers")["suites"]["peers"]
    times = import_module("study.peers_page").by_work({k: one["median"] for k, one in suite["seconds"].items()})
    marks = {"plain PyTorch": "D", "torch.compile": "^", "onnxruntime": "s", "OpenVINO": "v", "JAX": "P"}
    names = list(dict.fromkeys(work.partition(",")[0] for work in times if work.endswith(" image")))
    figure, panels = new_figure(9.6, 3.4), ("1 image", "64 images", "a training step")
    places: Any = figure.subplots(1, len(panels), sharey=True)
    for axes, panel in zip(places, panels, strict=True):
        rows = [next((each for work, each in times.items() if work.startswith(f"{n}, {panel}")), {}) for n in names]
        for colour, (who, mark) in zip((*SERIES, MUTED), marks.items(), strict=False):
            known = [(each[who] / each["ours"], y) for y, each in enumerate(rows) if who in each]
            if known:
                axes.plot(*zip(*known, strict=True), mark, color=colour, markersize=6, label=who)
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if tick < 1.3 * axes.get_xlim()[1]]
        axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
        axes.set_yticks(range(len(names)), names)
        axes.set(ylim=(len(names) - 0.5, -0.5))
        axes.tick_params(axis="y", labelsize=TEXT, colors=INK)
        scales(axes, panel, "time over that of torchcaps")
    handles = places[0].get_legend_handles_labels()  # not all train
    figure.legend(*handles, fontsize=TEXT, frameon=False, loc="outside lower center", ncols=len(marks))
    return figure


#: Titles of panels.
SHORT = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "smallnorb": "NORB, new toys",
    "azimuth": "NORB, new azimuths",
    "cifar10": "a tenth of CIFAR-10",
}


def _round_ticks(least: float, most: float) -> list[float]:
    """Return two to five round numbers within an axis."""
    every = [mantissa * 10.0**power for power in range(-2, 3) for mantissa in (1, 2, 3, 5)]
    every += [mantissa * 10.0**power for power in range(-1, 2) for mantissa in (1.5, 2.5, 4, 6)]
    within = sorted(tick for tick in every if least <= tick <= most)
    return within[:: -(-len(within) // 4)]


def make(folder: Path = HERE) -> list[Path]:
    """Draw all of them."""
    return [
        save(draw_viewpoints(), "novel-viewpoints", folder),
        save(draw_routing(), "what-routing-does", folder),
        save(draw_speed(), "speed", folder),
        save(draw_errors(), "errors-beside-papers", folder),
        save(draw_routings(), "routings", folder),
        save(draw_peers(), "peers", folder),
    ]


if __name__ == "__main__":
    make()
