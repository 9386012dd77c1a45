"""Choose a network's settings by their validation error: as many trials for every one that is compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchcaps.experiments.experiment import Device, Experiment, smoke
from torchcaps.experiments.provenance import commit
from torchcaps.experiments.recipes import recipe
from torchcaps.experiments.run import experiment_from, placed, write_json
from torchcaps.experiments.train import Progress, train
from torchcaps.ops.checks import check_at_least

#: On the recipe's learning rate.
FACTORS = (1 / 3, 1.0, 3.0)

#: By the loss, which tells the kinds of networks apart: what regularises them, and the two values that are tried.
REGULARISERS: dict[str, tuple[str, tuple[float, float]]] = {
    "margin": ("reconstruction", (0.0005, 0.01)),
    "spread": ("optim.weight_decay", (2e-7, 2e-5)),
    "cross_entropy": ("model.options.dropout", (0.0, 0.5)),
}


def trials(config: Experiment) -> list[tuple[dict[str, float], Experiment]]:
    """Every learning rate with every value of the regulariser: what is set, and the experiment with it.

    Raises:
        ValueError: an auto-encoder's, which knows no error to choose by.
    """
    if config.loss not in REGULARISERS:
        raise ValueError(f"recipe must be one of a classifier, got {config.recipe}, of an auto-encoder")
    name, values = REGULARISERS[config.loss]
    grid = [{"optim.lr": factor * config.optim.lr, name: value} for factor in FACTORS for value in values]
    return [(settings, _with(config, settings)) for settings in grid]


def tune(
    name: str,
    *,
    epochs: int | None = None,
    root: str | Path | None = None,
    runs: str | Path = "runs",
    keep_in: str | Path | None = None,
    threads: int = 0,
    device: Device = "auto",
    quick: bool = False,
    progress: Progress = "bar",
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Train every trial, look at validation images alone, and write ``<runs>/tuning/<recipe>.json``.

    Trials that are finished are not trained again, and one that was broken off goes on.

    Args:
        name: a recipe.
        epochs: of each trial; None for a third of the recipe's. The schedule is as long as the trial.
        root: folder of the data files, or the folder of the data sets' folders.
        runs: where trials are kept, ``<runs>/tuning/<recipe>/<trial>``.
        keep_in: folder to put the outcome into besides, such as ``results/tuning``; None for none.
        threads: threads on a CPU; 0 takes all cores.
        device: where to train.
        quick: two steps of every trial, to see that all of it runs.
        progress: of each training.
        say: is told every trial's outcome, and the best.

    Returns:
        what the file holds: ``trials``, each with its ``settings``, ``val_error`` and ``seconds``; the settings with
        the lowest error as ``best`` (the first of equals).

    Raises:
        ValueError: an unknown recipe or an auto-encoder's, or data that are not to be had.
    """
    config = recipe(name)
    check_at_least("epochs", 1 if epochs is None else epochs, 1)
    if quick and keep_in is not None:
        raise ValueError(f"keep_in must be None for a smoke run, which is no result; got {keep_in}")
    config = smoke(config) if quick else replace(config, epochs=epochs or math.ceil(config.epochs / 3))
    folder = Path(runs) / "tuning" / config.recipe
    found, result = [], {}
    for k, (settings, experiment) in enumerate(trials(config)):
        result = train(placed(experiment, root, threads, device), folder / str(k), progress=progress, trial=True)
        found.append({"settings": settings, **{key: result[key] for key in ("val_error", "seconds")}})
        say(f"{name}: {_in_words(settings)}: validation error {result['val_error']:.2%}")
    best = min(found, key=lambda trial: trial["val_error"])["settings"]
    say(f"best: {_in_words(best)}")
    outcome = {
        "recipe": name,
        "epochs": config.epochs,
        "trials": found,
        "best": best,
        **{key: result[key] for key in ("data", "device", "versions")},
        "commit": commit() or "unknown",
    }
    write_json(folder.parent / f"{config.recipe}.json", outcome)
    if keep_in is not None:
        write_json(Path(keep_in) / f"{config.recipe}.json", outcome)
    return outcome


def _with(config: Experiment, settings: dict[str, float]) -> Experiment:
    """The experiment with other values of fields, by their dotted names."""
    content = config.to_dict()
    for name, value in settings.items():
        *path, last = name.split(".")
        place = content
        for part in path:
            place = place[part]
        place[last] = value
    return experiment_from(content)


def _in_words(settings: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in settings.items())
