"""Choose a network's settings by their validation error: as many trials for every one that is compared."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchcaps.checks import check_at_least
from torchcaps.models import MODELS, build
from torchcaps.training.config import Device, Experiment, Progress, smoke
from torchcaps.training.dice import validation_error
from torchcaps.training.files import read_json, require_place, write_json
from torchcaps.training.module import NonFiniteLoss
from torchcaps.training.per_class import error_words
from torchcaps.training.recipes import recipe
from torchcaps.training.run import experiment_from, flat, placed, with_fields
from torchcaps.training.train import train

#: On the recipe's learning rate.
FACTORS = (1 / 3, 1.0, 3.0)

#: What regularises a kind of network, and the two values that are tried.
DROPOUT = ("model.options.dropout", (0.0, 0.5))
RECONSTRUCTION = ("reconstruction", (0.0005, 0.01))
WEIGHT_DECAY = ("optim.weight_decay", (2e-7, 2e-5))


def trials(config: Experiment, scale: float = 1.0) -> list[tuple[dict[str, float], Experiment]]:
    """Every learning rate with every value of the regulariser: what is set, and the experiment with it.

    CNNs have dropout, capsules with a decoder its weight (times ``scale``), and those without weight decay, as all
    networks that segment. No trial stops early.

    Raises:
        ValueError: of a network that knows no error to choose by.
    """
    config.data.task.check_tunable(config.recipe)
    config = replace(config, trial=True, stop_at=None)
    name, values = regulariser(config)
    if name == RECONSTRUCTION[0]:
        values = tuple(scale * value for value in values)
    grid = [{"optim.lr": factor * config.optim.lr, name: value} for factor in FACTORS for value in values]
    return [(settings, with_fields(config, settings)) for settings in grid]


def tune(
    name: str,
    config: Experiment | None = None,
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

    Trials that are finished are not trained again, and one that was broken off goes on. What is chosen becomes a
    result by being written into the recipe.

    Args:
        name: a recipe.
        config: the recipe with fields of one's own, such as its data; None for the recipe as it is. Where its
            reconstruction weighs otherwise than the recipe's, as of larger images, so it does in the trials.
        epochs: of each trial; None for a third of the recipe's. A cosine is as long as the trial.
        root: folder of the data files, or the folder of the data sets' folders; None for the experiment's own.
        runs: where trials are kept, ``<runs>/tuning/<recipe>/<trial>-of-<epochs>-epochs``.
        keep_in: folder to put the outcome into besides, such as ``tuning``; None for none.
        threads: threads on a CPU; 0 leaves the experiment's number, or torch's, which is all cores unless it was set.
        device: where to train; "auto" leaves the experiment's.
        quick: two steps of every trial, to see that all of it runs.
        progress: of each training.
        say: called with every trial's outcome, and the best.

    Returns:
        what the file holds: the ``config``; ``trials``, each with its ``settings``, ``val_error`` (of masks 1 − Dice;
        None where it diverged) and, if it did not, seconds, device, commit and, where classes are unequal, the balanced
        error; the settings with the lowest error as ``best`` (the first of equals).

    Raises:
        ValueError: an unknown recipe, or one that cannot be tuned; data that are not available; another outcome is
            there or kept; fields of one's own where the outcome is kept; all trials diverged.
    """
    config = recipe(name) if config is None else config
    if config.recipe != name:
        raise ValueError(f"config must be of the recipe {name}, got one of {config.recipe}")
    before = recipe(name)
    _require_left_alone(config, before)
    scale = config.reconstruction / before.reconstruction if config.reconstruction and before.reconstruction else 1.0
    check_at_least("epochs", 1 if epochs is None else epochs, 1)
    root, threads = config.data.root if root is None else root, threads or config.threads
    device = config.device if device == "auto" else device
    config = _anywhere(config)
    if keep_in is not None and flat(config.to_dict()) != flat(_anywhere(before).to_dict()):
        raise ValueError(f"keep_in must be None for fields of one's own: it takes {name} as it is; got {keep_in}")
    if quick and keep_in is not None:
        raise ValueError(f"keep_in must be None for a smoke run, which is no result; got {keep_in}")
    config = smoke(config) if quick else replace(config, epochs=epochs or math.ceil(config.epochs / 3))
    folder = Path(runs).expanduser() / "tuning"
    kept = None if keep_in is None else Path(keep_in).expanduser() / f"{config.recipe}.json"
    written = folder / f"{config.recipe}.json"
    if written.is_file() and _read(written)["config"] != flat(config.to_dict()):
        raise ValueError(
            f"{written} holds the outcome of other settings or epochs: remove it to tune anew, or name another folder "
            "by runs"
        )
    if kept is not None and kept.is_file():  # before hours of work: what is trained anew is never the same
        if _read(kept)["config"] != flat(config.to_dict()):
            raise ValueError(f"{kept} holds the outcome of other settings or epochs: remove it to keep another")
        if not written.is_file() or _read(kept) != _read(written):
            raise ValueError(f"{kept} holds another outcome than {written}: remove it to keep that")
    if kept is not None:
        require_place("keep_in", kept.parent)
    found = []
    for k, (settings, experiment) in enumerate(trials(config, scale)):
        place = folder / config.recipe / f"{k}-of-{config.epochs}-epochs"
        found.append({"settings": settings} | _outcome(placed(experiment, root, threads, device), place, progress))
        error = found[-1]["val_error"]
        balanced = found[-1].get("val_error_balanced")
        also = "" if balanced is None else f", balanced over the classes {balanced:.2%}"
        outcome = "diverged" if error is None else f"{config.data.task.error} {error:.2%}{also}"
        say(f"{name}: {_in_words(settings)}: {outcome}")
    best = _best(found)
    say(f"best: {_in_words(best)}")
    content = {"recipe": name, "epochs": config.epochs, "trials": found, "best": best, "config": config.to_dict()}
    write_json(written, content)
    content = read_json(written)
    if kept is not None and kept.is_file() and _read(kept) != _read(written):  # by another process, meanwhile
        raise ValueError(f"{kept} holds another outcome than {written}: remove it to keep that")
    if kept is not None:
        write_json(kept, content)
    return content


def _anywhere(config: Experiment) -> Experiment:
    """Without what says where it runs, which an outcome does not depend on."""
    return replace(config, data=replace(config.data, root=None), threads=0, device="auto")


def _require_left_alone(config: Experiment, before: Experiment) -> None:
    """Refuse fields of one's own that the trials set: whoever gives one takes it to hold."""
    mine, theirs = flat(config.to_dict()), flat(before.to_dict())
    for field in ("stop_at", "trial", regulariser(config)[0]):
        if mine.get(field) != theirs.get(field) and field != RECONSTRUCTION[0]:
            raise ValueError(f"{field} must be left alone in tuning, which sets it itself; got {mine.get(field)}")


def _read(path: Path) -> dict[str, Any]:
    """Read an outcome, of an older version too: what was no field of an experiment then has its default."""
    content = read_json(path, "config")
    try:
        return content | {"config": flat(experiment_from(content["config"]).to_dict())}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _outcome(config: Experiment, folder: Path, progress: Progress) -> dict[str, Any]:
    try:
        result = train(config, folder, progress=progress)
    except NonFiniteLoss as error:
        return {"val_error": None, "because": str(error)}
    kept = ("epochs", "seconds", "data", "device", "versions", "commit")
    balanced = {"val_error_balanced": result["val_error_balanced"]} if error_words(result, "val") else {}
    return {"val_error": validation_error(result)} | {key: result[key] for key in kept} | balanced


def _best(found: Iterable[dict[str, Any]]) -> dict[str, float]:
    finite = [trial for trial in found if trial["val_error"] is not None]
    if not finite:
        raise ValueError("every trial diverged: the recipe's learning rate is too high")
    return min(finite, key=lambda trial: trial["val_error"])["settings"]


def regulariser(config: Experiment) -> tuple[str, tuple[float, ...]]:
    """Return the field that regularises the experiment's network, and the values that are tried."""
    if config.data.task.segments:
        return WEIGHT_DECAY
    if "dropout" in inspect.signature(MODELS[config.model.name]).parameters:
        return DROPOUT
    with torch.device("meta"):  # of any size: only its parts are asked for
        model = build(config.model.name, (1, 64, 64), 2, **config.model.options)
    return WEIGHT_DECAY if getattr(model, "decoder", None) is None else RECONSTRUCTION


def _in_words(settings: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in settings.items())
