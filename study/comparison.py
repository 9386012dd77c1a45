"""Choose for, train and measure every routing under the same conditions: "Routings side by side" in protocols.md."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study import records
from study.measures.record import record as measure
from study.recipes.comparison import DATA, RATES, ROUTINGS, compared, name_of
from study.tables.kept import keep
from torchcaps.checks import check_at_least, check_choice, check_positive
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.config import Device, Experiment, Progress, smoke
from torchcaps.training.module import NonFiniteLoss
from torchcaps.training.recipes import recipe
from torchcaps.training.run import placed
from torchcaps.training.sweep import best, sweep
from torchcaps.training.train import default_folder, train

MEASURE = "profile"


@dataclass(frozen=True)
class Place:
    """Where everything runs.

    Attributes:
        root: folder of the data sets' folders.
        runs: where runs and trials are kept.
        threads: threads on a CPU; 0 leaves torch's number.
        device: where to train.
        quick: two steps of every trial and run, and nothing is recorded.
        progress: of each training.
    """

    root: str | Path | None = None
    runs: str | Path = "runs"
    threads: int = 0
    device: Device = "auto"
    quick: bool = False
    progress: Progress = "bar"


def compare(
    data: Sequence[str] = (),
    routings: Sequence[str] = (),
    *,
    seeds: int = 3,
    budget: float | None = None,
    place: Place | None = None,
    say: Callable[[str], object] = print,
) -> None:
    """Do what is not recorded yet: three trials of each routing, a training for each seed, and a measure of each.

    All routings come to a seed before the next seed begins. The same command goes on where it stopped.

    Args:
        data: names of :data:`~study.recipes.comparison.DATA`; all where none is named.
        routings: names of :data:`~study.recipes.comparison.ROUTINGS`; all where none is named.
        seeds: runs of each routing, with the seeds 0 … seeds − 1.
        budget: minutes after which nothing more is begun, and a training is broken off; None for no end.
        place: where it runs.
        say: called with a line for whatever begins.

    Raises:
        ValueError: an unknown name, or a number out of range; as :func:`torchcaps.training.train`.
    """
    place = Place() if place is None else place
    for name in data:
        check_choice("data", name, tuple(DATA))
    for name in routings:
        check_choice("routing", name, tuple(ROUTINGS))
    check_at_least("seeds", seeds, 1)
    if budget is not None:
        check_positive("budget", budget)
    end = math.inf if budget is None else time.monotonic() + 60 * budget
    try:
        for seed in range(seeds):
            for each in data or DATA:
                for routing in routings or ROUTINGS:
                    if time.monotonic() > end:
                        raise OutOfTime
                    choose(each, routing, place, say)
                    config = replace(recipe(name_of(each, routing)), seed=seed)
                    _train(smoke(config) if place.quick else config, place, end, say)
    except OutOfTime:
        say("the budget is used up; the same command goes on")


def choose(data: str, routing: str, place: Place, say: Callable[[str], object]) -> None:
    """Train with every rate for a third of the epochs, and record the one with the lowest validation error."""
    name = name_of(data, routing)
    if name in records.every("tuning") and not place.quick:
        return
    say(f"{name}: {len(RATES)} trials")
    config = compared(data, routing)
    config = replace(config, epochs=math.ceil(config.epochs / 3))
    _, found = sweep(
        config, {"optim.lr": RATES}, runs=place.runs, root=place.root, threads=place.threads, device=place.device,
        quick=place.quick, progress=place.progress, say=say,
    )  # fmt: skip
    if place.quick:
        return
    trials = [{"settings": dict(each.settings), "val_error": each.mean()} for each in found]
    content: dict[str, Any] = {"recipe": name, "epochs": config.epochs, "trials": trials}
    content |= {"best": dict(best(found).settings), "config": config.to_dict()}
    records.write("tuning", name, content)


def _train(config: Experiment, place: Place, end: float, say: Callable[[str], object]) -> None:
    key, folder = f"{config.recipe}-{config.seed}", Path(place.runs).expanduser() / default_folder(config).name
    if place.quick or key not in records.every("runs"):
        say(f"{config.recipe}, seed {config.seed}")
        until = None if end == math.inf else end
        try:
            result = train(
                placed(config, place.root, place.threads, place.device), folder, progress=place.progress, until=until
            )
        except NonFiniteLoss as error:
            say(f"{key} has no result: {error}")
            return
        if not place.quick:
            keep(result, records.RESULTS)
    if place.quick or f"{key}/{MEASURE}" not in records.every("measures"):
        if (folder / "result.json").is_file():
            measure(MEASURE, folder, n=4 if place.quick else None, keep_in=None if place.quick else records.RESULTS)
        else:
            say(f"{key} is recorded, but not measured, and its run is not in {folder}")
