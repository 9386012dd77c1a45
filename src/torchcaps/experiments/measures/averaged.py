"""Scores averaged before an image is called one thing: over 13 windows of it, and over networks of other seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps.analysis.draw.charts import Bars, draw_charts
from torchcaps.data.augment import CROPS_13
from torchcaps.experiments.batches import Batches, split
from torchcaps.experiments.measures.sample import bar, in_words, name_of, networks, number, spaced
from torchcaps.experiments.objective import wrong
from torchcaps.experiments.run import Run
from torchcaps.experiments.saved import load_model
from torchcaps.experiments.tables.kept import is_of
from torchcaps.experiments.tested import Tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is averaged over, by the names of the values.
_WAYS = {"alone": "nothing", "windows": "windows", "together": "networks", "together_windows": "both"}


def measure(tested: Tested, *, beside: Tested | None = None, n: int | None = None) -> dict[str, Any]:
    """Errors of single networks and of all that differ in their seed alone, on single windows and on several.

    Args:
        tested: the run. Finished runs of the same experiment with other seeds are found in the folder that it lies in.
        beside: another on the same data, such as a CNN.
        n: test images; all by default.

    Returns:
        ``windows`` looked at, 13 where images are cropped; for "run" and "beside" the ``seeds`` found, the error of
        each ``alone`` and over its ``windows``, and of all ``together`` and ``together_windows``.

    Raises:
        ValueError: a run on pairs, images too small for 13 windows, or runs on different images.

    Source: Hinton et al. 2018, section 4 (windows); Sabour et al. 2017, section 7 (seven networks on CIFAR-10).
    """
    every = networks(tested, beside)
    if tested.config.data.pairs:
        raise ValueError(f"run must be of single images for this measure, got one of pairs: {tested.run.path}")
    chosen = spaced(len(tested.images), n, len(tested.images))
    values: dict[str, Any] = {"n": len(chosen), "windows": len(CROPS_13) if tested.config.data.crop else 1}
    for part, each in every.items():
        members = _members(each)
        batches = _batches(each, chosen, values["windows"])
        found = [_scores(member, batches, f"{name_of(each)}, seed {seed}") for seed, member in members.items()]
        scores = torch.stack(found)  # [seeds, windows, N, J]
        labels = each.labels[chosen]
        values[part] = {
            "seeds": list(members),
            "alone": [_error(one[0], labels) for one in scores],
            "windows": [_error(one.mean(dim=0), labels) for one in scores],
            "together": _error(scores[:, 0].mean(dim=0), labels),
            "together_windows": _error(scores.mean(dim=(0, 1)), labels),
        }
    return values


def _members(tested: Tested) -> dict[int, Run]:
    """The run and those beside it that differ in their seed alone, by their seeds."""
    found = {tested.result["seed"]: tested.run}
    for path in sorted(tested.run.path.resolve().parent.glob("*/result.json")):
        run = Run(path.parent)
        result = run.finished()
        same = is_of(result, tested.config) and result["epochs"] == tested.result["epochs"]
        if same and run.model.is_file():
            found.setdefault(result["seed"], run)
    return dict(sorted(found.items()))


def _batches(tested: Tested, chosen: Tensor, windows: int) -> Batches:
    """The chosen test images, with all their windows."""
    config = replace(tested.config, data=replace(tested.config.data, n_eval=None, test_crops=windows))
    dataset = replace(tested.data, test=tested.data.test.take(chosen))
    return split(config, dataset, "test", tested.images.device)


@torch.no_grad()
def _scores(run: Run, batches: Batches, name: str) -> Tensor:
    """``[windows, N, J]``."""
    model = load_model(run).model.to(batches.source.images.device)
    found = [torch.stack([model(view.images).scores.float() for view in batch.views()]) for batch in bar(batches, name)]
    return torch.cat(found, dim=1)


def _error(scores: Tensor, labels: Tensor) -> float | None:
    return number(wrong(scores, labels).float().mean())


def headline(values: dict[str, Any], part: str) -> dict[str, str]:
    """What to read first: the mean of the single networks, and what averaging makes of it."""
    found, windows = values[part], values["windows"]
    n = len(found["seeds"])
    mean = {way: sum(found[way]) / n for way in ("alone", "windows")}
    made = {"error of one network, one window": in_words(mean["alone"], ".2%")}
    if windows > 1:
        made[f"over {windows} windows"] = in_words(mean["windows"], ".2%")
    if n > 1:
        made[f"over {n} networks"] = in_words(found["together"], ".2%")
    if windows > 1 and n > 1:
        made[f"over {windows} windows and {n} networks"] = in_words(found["together_windows"], ".2%")
    return made


def draw(values: dict[str, Any], tested: Tested, beside: Tested | None = None) -> Figure:
    """Bars of error, by what the scores were averaged over."""
    ways = [way for way in _WAYS if values["windows"] > 1 or "windows" not in way]
    bars = {}
    for part, each in networks(tested, beside).items():
        found = values[part]
        means = {way: sum(found[way]) / len(found["seeds"]) for way in ("alone", "windows")} | {
            way: found[way] for way in ("together", "together_windows")
        }
        bars[f"{name_of(each)}, {len(found['seeds'])} seeds"] = [means[way] for way in ways]
    return draw_charts([Bars("Error, with scores averaged over", [_WAYS[way] for way in ways], bars)])
