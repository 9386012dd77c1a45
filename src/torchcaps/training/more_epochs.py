"""More epochs for a finished run: it goes on from its checkpoint, and what it was is kept beside it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from torchcaps.data import Dataset
from torchcaps.training.checkpoint import load_model
from torchcaps.training.config import Experiment
from torchcaps.training.environment import splits_in_words
from torchcaps.training.files import write_json
from torchcaps.training.module import depends_on_length, learning_rate
from torchcaps.training.run import Run

#: What a run folder says of the course of training; it stays where it is, for training goes on from it.
_COURSE = ("config.json", "metrics.csv", "checkpoints/last.ckpt")
#: What it says of the trained model, which is another one once training goes on.
_OUTCOME = ("model.pt", "report.html", "pictures", "measures", "few-labels.json", "few-labels.md", "result.json")


def epochs_before(run: Run, config: Experiment) -> int | None:
    """Count the epochs of the finished run in this folder, if it is this experiment with fewer; else None.

    Raises:
        ValueError: it cannot go on, as its checkpoint is gone, or ``stop_at`` ended it.
    """
    if not (run.config.is_file() and run.started()):
        return None
    before = run.experiment()
    there = before.epochs
    # A kill while it was put aside may have left its result there alone.
    finished = next((each for each in (run, run.before(there)) if each.result.is_file()), None)
    if finished is None or there >= config.epochs or run.differences(replace(config, epochs=there)):
        return None
    epochs = finished.read_result()["epochs"]
    if epochs < there:
        raise ValueError(
            f"epochs must be {there} as {run.path} has, which stop_at, {before.stop_at}, ended after epoch {epochs}: "
            f"it would train no further; got {config.epochs}"
        )
    if not run.checkpoint.is_file():
        raise ValueError(
            f"epochs must be {there} as {run.path} has, for {run.checkpoint}, from which it would go on, is not there; "
            f"got {config.epochs}"
        )
    return there


def require_same_data(run: Run, dataset: Dataset) -> None:
    """See, before anything is put aside, that a finished run goes on with the data that it had.

    Raises:
        ValueError: they have other images by now.
    """
    trained = load_model(run if run.model.is_file() else run.before(run.experiment().epochs))
    then, now = (trained.data, trained.splits), (dataset.note, splits_in_words(dataset))
    if trained.classes != dataset.classes or then != now:
        raise ValueError(f"{run.path} was trained on other data {then}, now {now}: name another folder by out")


def put_aside(run: Run, config: Experiment) -> None:
    """Keep a finished run as ``<run>/<n>-epochs``, a run folder of its own, and let the experiment take its place.

    Whatever stops this, the finished run is whole here or there, and the same call goes on.
    """
    there = run.experiment().epochs
    kept, unfinished = run.before(there), run.path / f".{there}-epochs.unfinished"
    if not kept.result.is_file():
        shutil.rmtree(unfinished, ignore_errors=True)
        for name in (*_COURSE, *_OUTCOME):
            _copy(run.path / name, unfinished / name)
        unfinished.rename(kept.path)
    for name in _OUTCOME:
        path = run.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    write_json(run.config, config.to_dict())


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to)
    elif path.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)


def as_in_one_go(config: Experiment) -> bool:
    """Return whether a run with added epochs is, step by step, what it would have been with all of them at first."""
    return config.loss != "spread" and not depends_on_length(config.optim)


def going_on_in_words(run: Run, config: Experiment, there: int) -> str:
    """Say what happens to a finished run of ``there`` epochs that is given those of ``config``."""
    epochs = f"{there} epoch{'s' * (there > 1)}"
    said = (
        f"{run.path} holds a finished run of {epochs}: it goes on to {config.epochs}, and what it was is kept as "
        f"{run.before(there).path}. "
    )
    if as_in_one_go(config):
        return f"{said}It will be as {config.epochs} epochs in one go."
    result = (run if run.result.is_file() else run.before(there)).read_result("steps")
    steps, n_steps = result["steps"], result["steps"] // there * config.epochs
    last, first, end = (
        learning_rate(config.optim, step, n)
        for step, n in ((steps - 1, steps), (steps, n_steps), (n_steps - 1, n_steps))
    )
    return (
        f"{said}Its learning rate ended at {last:.2g} and goes on as that of {config.epochs} epochs, from {first:.2g} "
        f"to {end:.2g}. That is not what {config.epochs} epochs in one go give: for those name another folder by out."
    )
