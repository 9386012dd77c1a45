"""Scores averaged before an image is called one thing: over 13 windows of it, and over networks of other seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from study.draw.charts import Bars, draw_charts
from study.measures.said import Said, per_cent
from study.measures.sample import bar, choose, name_of, networks, number
from study.tables.kept import is_of
from torchcaps.data.augment import CROPS_13
from torchcaps.report import EvaluatedRun
from torchcaps.training.batches import Batches, evaluated, split
from torchcaps.training.checkpoint import load_model
from torchcaps.training.objective import wrong
from torchcaps.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Errors of single networks and of all that differ in their seed alone, on single windows and on several.

    Args:
        tested: the run. Finished runs of the same experiment with other seeds are found in the folder that it lies in.
        beside: another on the same data, such as a CNN.
        n: test images; all by default.

    Returns:
        For "run" and "beside" the ``seeds`` found, ``n_windows`` looked at (13 where images are cropped), the error of
        each network ``alone`` and over its ``windows``, and of all ``together`` and ``together_windows``.

    Raises:
        ValueError: a run on pairs, images too small for 13 windows, or runs on different images.

    Source: Hinton et al. 2018, section 5 (several windows; 13 in the released code); Sabour et al. 2017, section 7
    (seven networks on CIFAR-10).
    """
    every = networks(tested, beside)
    chosen = choose(tested, n, len(tested.images))
    values: dict[str, Any] = {"n": len(chosen)}
    for part, each in every.items():
        members = _members(each)
        n_windows = len(CROPS_13) if each.config.data.crop else 1
        batches = _batches(each, chosen, n_windows)
        found = [_scores(model, batches, f"{name_of(each)}, seed {seed}") for seed, model in members.items()]
        scores = torch.stack(found)  # [seeds, windows, N, J]
        labels = each.labels[chosen]
        values[part] = {
            "seeds": list(members),
            "n_windows": n_windows,
            "alone": [_error(one[0], labels) for one in scores],
            "windows": [_error(one.mean(dim=0), labels) for one in scores],
            "together": _error(scores[:, 0].mean(dim=0), labels),
            "together_windows": _error(scores.mean(dim=(0, 1)), labels),
        }
    return values


def _members(tested: EvaluatedRun) -> dict[int, nn.Module]:
    """The run's model and those beside it of runs that differ in their seed alone, by their seeds."""
    found, own = {tested.result["seed"]: tested.model}, load_model(tested.run)
    for path in sorted(tested.run.path.resolve().parent.glob("*/result.json")):
        run = Run(path.parent)
        try:
            result = run.finished()
            same = is_of(result, tested.config) and result["config"]["epochs"] == tested.config.epochs
            if tested.config.data.name == "folder":  # of which there are many
                same = same and run.experiment().data.root == tested.run.experiment().data.root
            if same and result["seed"] not in found:
                trained = load_model(run)
                if (trained.data, trained.classes, trained.splits) == (own.data, own.classes, own.splits):
                    found[result["seed"]] = trained.model
        except ValueError:  # a trial, or nothing that could be a member
            continue
    return dict(sorted(found.items()))


def _batches(tested: EvaluatedRun, chosen: Tensor, windows: int) -> Batches:
    """The chosen test images, with all their windows."""
    config = replace(tested.config, data=replace(tested.config.data, n_eval=None, test_crops=windows))
    dataset = replace(tested.data, test=evaluated(tested.config.data, tested.data.test).take(chosen))
    return split(config, dataset, "test", tested.images.device)


@torch.no_grad()
def _scores(model: nn.Module, batches: Batches, name: str) -> Tensor:
    """``[windows, N, J]``."""
    model = model.to(batches.source.images.device)
    found = [torch.stack([model(view.images).scores.float() for view in batch.views()]) for batch in bar(batches, name)]
    return torch.cat(found, dim=1)


def _error(scores: Tensor, labels: Tensor) -> float | None:
    return number(wrong(scores, labels).float().mean())


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first: the mean of the single networks, and what averaging makes of it."""
    found = values[part]
    n, windows = len(found["seeds"]), f"{found['n_windows']} windows"
    said = {
        "alone": "error of one network, one window",
        "windows": f"over {windows}",
        "together": f"over {n} networks",
        "together_windows": f"over {windows} and {n} networks",
    }
    return {said[way]: per_cent(error, 2) for way, error in _means(found).items() if error is not None}


def _means(found: dict[str, Any]) -> dict[str, float | None]:
    """Errors by what was averaged over, of single networks their mean; None where there was nothing to average."""
    n, several = len(found["seeds"]), found["n_windows"] > 1
    return {
        "alone": sum(found["alone"]) / n,
        "windows": sum(found["windows"]) / n if several else None,
        "together": found["together"] if n > 1 else None,
        "together_windows": found["together_windows"] if several and n > 1 else None,
    }


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Bars of error in per cent, by what the scores were averaged over."""
    means = {name_of(each): _means(values[part]) for part, each in networks(tested, beside).items()}
    ways = {"alone": "nothing", "windows": "13 windows", "together": "seeds", "together_windows": "both"}
    shown = [way for way in ways if any(mean[way] is not None for mean in means.values())]
    errors = {name: [mean[way] for way in shown] for name, mean in means.items()}
    bars = {name: [None if error is None else 100 * error for error in found] for name, found in errors.items()}
    return draw_charts([Bars("Test error, %, by what is averaged", [ways[way] for way in shown], bars)])
