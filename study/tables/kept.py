"""Finished runs that belong to a recipe as it stands now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from study import records
from study.recipes import RECIPES
from study.tables import TABLES
from study.tables.table import Result
from torchcaps.data import load
from torchcaps.training.config import NO_FACTORS, Experiment
from torchcaps.training.files import require_place
from torchcaps.training.run import WHERE, Run, experiment_from, flat


def is_of(result: Mapping[str, Any], config: Experiment) -> bool:
    """Whether a result is one of this experiment, wherever, with whatever seed and for how many epochs it ran.

    One that was given more epochs counts if it is what training in one go would have made it.
    Whether those were enough is the row's minimum to say. That it was tested on affNIST besides changes nothing.
    """
    try:
        ran = flat(experiment_from(result["config"]).to_dict())
    except (KeyError, TypeError, ValueError):
        return False
    if not result.get("as_in_one_go", True):
        return False
    now = flat(config.to_dict())
    factors = {f"model.options.{name}": value for name, value in NO_FACTORS.items()}
    ran = {name: value for name, value in factors.items() if name in now} | ran  # which older results do not name
    free = {*WHERE, "seed", "epochs", "data.options.affnist"}
    return {k: v for k, v in ran.items() if k not in free} == {k: v for k, v in now.items() if k not in free}


def read_results(folder: Path) -> dict[str, list[Result]]:
    """The kept results, in ``runs.jsonl`` as ``<recipe>-<seed>``, of recipes as they stand now.

    Args:
        folder: such as ``study/results``.

    Returns:
        By recipe, in the order of the seeds.

    Raises:
        ValueError: a line is broken; a record that is named after a recipe lacks what tables want, or a recipe's
            result is named after another recipe or seed than it holds.
    """
    found: dict[str, list[Result]] = {}
    for key, result in records.every("runs", folder).items():
        if key.rpartition("-")[0] in RECIPES:
            _require(key, result, folder, "recipe", "seed", "config")
        name = result.get("recipe")
        if not isinstance(name, str) or name not in RECIPES or not {"seed", "config"} <= result.keys():
            continue
        if key != f"{name}-{result['seed']}":
            where = records.place("runs", key, folder)
            raise ValueError(f"{where} must be named after its recipe and seed, {name}, {result['seed']}")
        if is_of(result, RECIPES[name]()):
            _require(key, result, folder, "steps", "seconds", "n_parameters", "device")
            found.setdefault(name, []).append(result)
    return {name: sorted(results, key=lambda result: result["seed"]) for name, results in found.items()}


def _require(key: str, result: Result, folder: Path, *fields: str) -> None:
    if not set(fields) <= result.keys():
        where, got = records.place("runs", key, folder), ", ".join(result) or "nothing"
        raise ValueError(f"{where} must hold {', '.join(fields)}; got {got}")


def stale(folder: Path) -> list[str]:
    """Where that stands which :func:`read_results` leaves out: no results, or of a recipe gone or changed."""
    current = read_results(folder)
    known = {f"{recipe}-{run['seed']}" for recipe, runs in current.items() for run in runs}
    return [records.place("runs", key, folder) for key in records.names("runs", folder) if key not in known]


def results_of_runs(configs: Iterable[Experiment], folders: Iterable[Path]) -> list[Result]:
    """Results of those runs that are finished, of as many epochs as these experiments have."""
    runs = ((config, Run(folder)) for config, folder in zip(configs, folders, strict=True))
    found = ((config, run.read_result()) for config, run in runs if run.result.is_file())
    return [result for config, result in found if is_of(result, config) and result["config"]["epochs"] == config.epochs]


def not_kept(configs: Sequence[Experiment], folder: Path) -> list[Experiment]:
    """Those of a row's experiments of which no result is kept, for however many epochs.

    Raises:
        ValueError: one of other settings is kept under such a name.
    """
    missing, kept = [], records.every("runs", folder)
    for config in configs:
        key = f"{config.recipe}-{config.seed}"
        if key not in kept:
            missing.append(config)
        elif not is_of(kept[key], config):
            where = records.place("runs", key, folder)
            raise ValueError(
                f"{where} must be a result of {config.recipe} as it is now, got one of other settings; move that line"
            )
    return missing


def require_one_mean(config: Experiment, folder: Path) -> None:
    """See, before any work, that the result of this experiment will have a mean with those that are kept of its row.

    Where there are any of its recipe, the data are loaded (and downloaded), as only they say which files they are.

    Raises:
        ValueError: those are of other epochs or of other data; the file of them cannot be read; the data cannot be had.
    """
    _require_alike(config.recipe, config.epochs, lambda: _note(config), folder)


def require_same_data(config: Experiment, finished: Iterable[Run]) -> None:
    """See, before any work, that an experiment is of the data of its runs with other seeds.

    Raises:
        ValueError: one of them is of other data; the data cannot be had.
    """
    mine = _note(config)
    for run in finished:
        data = run.read_result().get("data", "")
        if data != mine:
            raise ValueError(f"data must be {data!r}, as those of {run.path}, got {mine!r}; or move that folder")


def _note(config: Experiment) -> str:
    data = config.data
    return load(data.name, data.root, data.image_size, **data.options).note


def _require_alike(recipe: str, epochs: int, note: Callable[[], str], folder: Path) -> None:
    """See that what is kept of its row is of as many epochs, and of the recipe itself of data that say the same."""
    kept = read_results(folder)
    row = {each for table in TABLES.values() for row in table.rows if recipe in row.recipes for each in row.recipes}
    for other in (other for each in sorted(row | {recipe}) for other in kept.get(each, ())):
        path, theirs = _place(other["recipe"], other["seed"], folder), other["config"]["epochs"]
        if theirs != epochs:
            raise ValueError(f"epochs must be {theirs}, as {path} has, got {epochs}; or move that line")
    if recipe in kept:
        mine = note()
        for other in kept[recipe]:
            data = other.get("data", "")
            if data != mine:
                path = _place(recipe, other["seed"], folder)
                raise ValueError(f"data must be {data!r}, as those of {path}, got {mine!r}; or move that line")


def keep(result: Result, folder: Path) -> str:
    """Put a result beside those that are kept for good.

    Returns:
        Where it stands.

    Raises:
        ValueError: it is not that of a recipe as it is; another result of this recipe and seed is kept already, or
            what is kept of its row is of other epochs or data.
    """
    name, key = result["recipe"], f"{result['recipe']}-{result['seed']}"
    require_recipe(name, result)
    if key not in records.every("runs", folder):
        _require_alike(name, result["config"]["epochs"], lambda: result.get("data", ""), folder)
    return records.write("runs", key, result, folder)


def require_free(config: Experiment, folder: Path) -> None:
    """See, before any work, that the result of this experiment can be kept.

    Raises:
        ValueError: it is not that of a recipe, or one of this recipe and seed is kept already; the folder cannot be
            written to; see also :func:`require_one_mean`.
    """
    require_recipe(config.recipe, {"config": config.to_dict()})
    if f"{config.recipe}-{config.seed}" in records.every("runs", folder):
        where = _place(config.recipe, config.seed, folder)
        raise ValueError(f"{where} is another record: remove that line to keep this one")
    require_one_mean(config, folder)
    require_place("keep", folder)


def require_recipe(name: str, result: Mapping[str, Any]) -> None:
    """See that a result is of a recipe as it stands now, of any seed and epochs.

    Raises:
        ValueError: it is not.
    """
    if name not in RECIPES or not is_of(result, RECIPES[name]()):
        raise ValueError(f"keep wants a recipe as it is except for seed and epochs, got another experiment of {name}")


def _place(recipe: str, seed: int, folder: Path) -> str:
    return records.place("runs", f"{recipe}-{seed}", folder)


def seeded(config: Experiment, n: int) -> list[Experiment]:
    """The experiment with the seeds 0 … n − 1."""
    return [replace(config, seed=seed) for seed in range(n)]
