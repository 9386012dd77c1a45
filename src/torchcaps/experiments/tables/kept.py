"""Finished runs that belong to a recipe as it stands now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.files import read_json, write_json
from torchcaps.experiments.recipes import RECIPES
from torchcaps.experiments.run import WHERE, Run, experiment_from, flat
from torchcaps.experiments.tables.table import Result


def is_of(result: Mapping[str, Any], config: Experiment) -> bool:
    """Whether a result is one of this experiment, wherever, with whatever seed and for how many epochs it ran.

    Whether those were enough is the row's minimum to say. That it was tested on affNIST besides changes nothing.
    """
    try:
        ran = flat(experiment_from(result["config"]).to_dict())
    except (KeyError, ValueError):
        return False
    now = flat(config.to_dict())
    free = {*WHERE, "seed", "epochs", "data.options.affnist"}
    return {k: v for k, v in ran.items() if k not in free} == {k: v for k, v in now.items() if k not in free}


def read_results(folder: Path) -> dict[str, list[Result]]:
    """The kept results, ``<recipe>-<seed>.json``, of recipes as they stand now.

    Args:
        folder: such as ``results``.

    Returns:
        By recipe, in the order of the seeds.

    Raises:
        ValueError: a file that cannot be read, or is named after another recipe or seed than it holds.
    """
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        result = read_json(path)
        if path.stem != f"{result.get('recipe')}-{result.get('seed')}":
            raise ValueError(
                f"{path} must be named after its recipe and seed, {result.get('recipe')}, {result.get('seed')}"
            )
        name = result["recipe"]
        if name in RECIPES and is_of(result, RECIPES[name]()):
            found.setdefault(name, []).append(result)
    return {name: sorted(results, key=lambda result: result["seed"]) for name, results in found.items()}


def stale(folder: Path) -> list[Path]:
    """The kept results that :func:`read_results` leaves out: their recipe is gone, or another by now."""
    current = read_results(folder)
    known = {f"{recipe}-{run['seed']}" for recipe, runs in current.items() for run in runs}
    return [path for path in sorted(folder.glob("*.json")) if path.stem not in known]


def results_of_runs(configs: Iterable[Experiment], folders: Iterable[Path]) -> list[Result]:
    """Results of those runs that are finished, of as many epochs as these experiments have."""
    runs = ((config, Run(folder)) for config, folder in zip(configs, folders, strict=True))
    found = ((config, read_json(run.result)) for config, run in runs if run.result.is_file())
    return [result for config, result in found if is_of(result, config) and result["config"]["epochs"] == config.epochs]


def not_kept(configs: Sequence[Experiment], folder: Path) -> list[Experiment]:
    """Those of a row's experiments of which no result is kept, for however many epochs.

    Raises:
        ValueError: one of other settings is kept under such a name; or some are kept and others not, and these would
            have other epochs, which would leave the row without a mean.
    """
    missing, other = [], {}
    for config in configs:
        path = folder / f"{config.recipe}-{config.seed}.json"
        if not path.is_file():
            missing.append(config)
            continue
        result = read_json(path)
        if not is_of(result, config):
            raise ValueError(
                f"{path} must be a result of {config.recipe} as it is now, got one of other settings; move it"
            )
        if result["config"]["epochs"] != config.epochs:
            other[path] = result["config"]["epochs"]
    if missing and other:
        path, epochs = next(iter(other.items()))
        raise ValueError(f"epochs must be {epochs}, as {path} has, got {missing[0].epochs}; or move that file")
    return missing


def keep(result: Result, folder: Path) -> Path:
    """Put a result beside those that are kept for good.

    Raises:
        ValueError: another result of this recipe and seed is kept already.
    """
    path = folder / f"{result['recipe']}-{result['seed']}.json"
    if path.is_file() and read_json(path) != json.loads(json.dumps(result)):
        raise ValueError(f"{path} holds another result of this recipe and seed: remove it to keep this one")
    write_json(path, result)
    return path


def require_free(config: Experiment, folder: Path) -> None:
    """See, before any work, that the result of this experiment can be kept.

    Raises:
        ValueError: it is not that of a recipe, or one of this recipe and seed is kept already.
    """
    name = config.recipe
    if config.trial or name not in RECIPES or not is_of({"config": config.to_dict()}, RECIPES[name]()):
        raise ValueError(f"keep wants a recipe as it is but for seed and epochs, got another experiment of {name}")
    path = folder / f"{name}-{config.seed}.json"
    if path.exists():
        raise ValueError(f"{path} holds another result of this recipe and seed: remove it to keep this one")


def seeded(config: Experiment, n: int) -> list[Experiment]:
    """The experiment with the seeds 0 … n − 1."""
    return [replace(config, seed=seed) for seed in range(n)]
