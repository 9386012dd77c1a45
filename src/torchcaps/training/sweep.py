"""Train every combination of some fields' values, with several seeds, and compare them by their validation error."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.checks import check_at_least
from torchcaps.data import load
from torchcaps.training.build import check_model
from torchcaps.training.config import Device, Experiment, Progress, smoke
from torchcaps.training.dice import validation_error
from torchcaps.training.files import require_place, write_json, write_text
from torchcaps.training.module import NonFiniteLoss
from torchcaps.training.run import Run, flat, placed, with_fields
from torchcaps.training.train import train

#: What a field may be below these, whether the recipe names it or not.
_FREE = ("model.options.", "data.options.")
#: Fields that the sweep sets itself.
_OURS = ("seed", "trial", "stop_at", "recipe")
#: Characters of a folder's name.
_LONGEST = 100


class Combination(NamedTuple):
    """Hold one combination of values, and what its runs came to.

    Attributes:
        settings: value of each field that is varied, by its dotted name.
        errors: validation error of each seed, of masks 1 − Dice; None where training diverged.
    """

    settings: dict[str, Any]
    errors: tuple[float | None, ...]

    def known(self) -> list[float]:
        """Return the errors of the seeds that did not diverge."""
        return [error for error in self.errors if error is not None]

    def mean(self) -> float | None:
        """Return the mean over seeds; None where one diverged."""
        known = self.known()
        return statistics.mean(known) if len(known) == len(self.errors) else None

    def in_words(self) -> str:
        """Write mean and standard deviation in per cent, or how many diverged."""
        mean, known = self.mean(), self.known()
        if mean is None:
            return f"{len(self.errors) - len(known)} of {len(self.errors)} diverged"
        spread = f" ± {100 * statistics.stdev(known):.2f}" if known[1:] else ""
        return f"{100 * mean:.2f}{spread}"


def sweep(
    config: Experiment,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 1,
    runs: str | Path = "runs",
    root: str | Path | None = None,
    threads: int = 0,
    device: Device = "auto",
    quick: bool = False,
    progress: Progress = "bar",
    say: Callable[[str], object] = print,
) -> tuple[Path, list[Combination]]:
    """Train every combination, and write ``table.md`` and ``table.json`` into ``<runs>/tuning/<recipe>-grid``.

    No test image is seen. Each run has a folder there that is named after its settings. What is finished is not trained
    again, and what was broken off goes on; so a grid may grow from one call to the next.

    Args:
        config: the recipe of a classifier or of a network that segments, with fields of your own.
        grid: the values of each field, by its dotted name, such as ``{"optim.lr": [1e-3, 3e-3], "epochs": [5, 10]}``.
        seeds: runs of each combination, with the seeds 0 … seeds − 1.
        runs: where runs are kept.
        root: folder of the data files, or of the data sets' folders; None for the experiment's own.
        threads: threads on a CPU; 0 leaves the experiment's number.
        device: where to train; "auto" leaves the experiment's.
        quick: two steps of every run, to see that all of it runs.
        progress: of each training.
        say: called with what each combination came to, and with the table.

    Returns:
        The folder, and what each combination came to, in the order of the grid.

    Raises:
        ValueError: neither a classifier nor a network that segments; no field, no value, an unknown field, or a value
            that it cannot have; data that are not available; another run lies in a folder. All of it is found before
            any training.
    """
    config.data.task.check_tunable(config.recipe)
    check_at_least("seeds", seeds, 1)
    _check_grid(config, grid)
    folder = Path(runs).expanduser() / "tuning" / f"{config.recipe}{'-smoke' if quick else ''}-grid"
    root, threads = config.data.root if root is None else root, threads or config.threads
    device = config.device if device == "auto" else device
    planned = [
        (settings, [_run(config, settings, seed, folder, quick) for seed in range(seeds)])
        for settings in _combinations(grid)
    ]
    placed_runs = [
        (settings, [(placed(each, root, threads, device), run) for each, run in every]) for settings, every in planned
    ]
    _check_runs([each for _, every in placed_runs for each in every])
    require_place("runs", folder)
    found, table = list[Combination](), ""
    for settings, every in placed_runs:
        errors = tuple(_error(experiment, run, progress) for experiment, run in every)
        found.append(Combination(settings, errors))
        say(f"{config.recipe}: {in_words(settings)}: {config.data.task.error}, %: {found[-1].in_words()}")
        table = _as_markdown(config, found, quick)  # after each: whoever stops it has what there is
        write_text(folder / "table.md", table)
        rows = [{"settings": each.settings, "val_error": list(each.errors)} for each in found]
        write_json(folder / "table.json", {"recipe": config.recipe, "config": config.to_dict(), "rows": rows})
    say(table)
    return folder, found


def best(found: Sequence[Combination]) -> Combination:
    """Return the combination with the lowest mean error, the first of equals.

    Raises:
        ValueError: all diverged.
    """
    known = [(mean, each) for each in found if (mean := each.mean()) is not None]
    if not known:
        raise ValueError("grid must have a combination that trains, got none: every one diverged")
    return min(known, key=lambda pair: pair[0])[1]


def read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read grids as they stand on a command line: ``optim.lr=1e-3,3e-3``, ``data.image_size=[28,28],[32,32]``.

    Raises:
        ValueError: a text without "=" or values, or a field twice.

    Example:
        >>> read_grid(["optim.lr=1e-3,3e-3", "optim.name=adam,muon"])
        {'optim.lr': [0.001, 0.003], 'optim.name': ['adam', 'muon']}
    """
    found = dict[str, list[Any]]()
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name and equals and values) or name in found:
            raise ValueError(f"grid must be FIELD=VALUE,VALUE of different fields, got {text}")
        try:
            found[name] = json.loads(f"[{values}]")
        except ValueError:  # texts without quotes
            found[name] = [_value(each) for each in values.split(",")]
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check_grid(config: Experiment, grid: Mapping[str, Sequence[Any]]) -> None:
    """See that fields are some that can be varied, and that each has values, none of them twice."""
    if not grid:
        raise ValueError("grid must have a field at least, got none")
    fields = flat(config.to_dict()).keys() | {"data.image_size", "data.crop"}
    for name, values in grid.items():
        if name in _OURS or not (name in fields or name.startswith(_FREE)):
            raise ValueError(f"grid must be of fields of an experiment, such as optim.lr or epochs; got {name}")
        texts = [json.dumps(value) for value in values]
        if not texts or len(set(texts)) < len(texts):
            raise ValueError(
                f"grid must have different values of {name}, at least one; got {', '.join(texts) or 'none'}"
            )


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _run(
    config: Experiment, settings: Mapping[str, Any], seed: int, folder: Path, quick: bool
) -> tuple[Experiment, Run]:
    """Return one run's experiment and folder."""
    experiment = replace(with_fields(config, settings), seed=seed, trial=True, stop_at=None)
    name = re.sub(r"[^\w.,=+-]", "_", ",".join(f"{field}={json.dumps(value)}" for field, value in settings.items()))
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return (smoke(experiment) if quick else experiment), Run(folder / f"{name}-seed{seed}")


def _check_runs(every: Sequence[tuple[Experiment, Run]]) -> None:
    """See, before hours of work, that each network can be made, and that no folder holds another run."""
    last, dataset = None, None
    for experiment, run in every:
        run.check(experiment)
        if experiment.seed > 0:
            continue
        data = experiment.data
        read = data.name, data.root, data.image_size, data.options
        if dataset is None or read != last:  # one set at a time is held
            last, dataset = read, load(data.name, data.root, data.image_size, **data.options)
        check_model(experiment, dataset, None)


def _error(experiment: Experiment, run: Run, progress: Progress) -> float | None:
    """Train, and return the validation error; None where it diverged."""
    try:
        return validation_error(train(experiment, run.path, progress=progress))
    except NonFiniteLoss:
        return None


def in_words(settings: Mapping[str, Any]) -> str:
    """Write settings in one line."""
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items())


def _as_markdown(config: Experiment, found: Sequence[Combination], quick: bool) -> str:
    """Write a table with the lowest mean in bold."""
    names = list(found[0].settings)
    known = [each for each in found if each.mean() is not None]
    lowest = best(found) if known else None
    n = len(found[0].errors)
    error = config.data.task.error
    lines = [f"# {config.recipe}: {error}, %, of {n} seed{'s' if n > 1 else ''} each", ""]
    lines += [f"| {' | '.join([*names, f'{error}, %'])} |", "| --- " * (len(names) + 1) + "|"]
    for each in found:
        cell = f"**{each.in_words()}**" if each is lowest else each.in_words()
        lines.append(f"| {' | '.join([*(json.dumps(value) for value in each.settings.values()), cell])} |")
    if quick:
        lines += ["", "Two steps of each: these numbers mean nothing."]
    return "\n".join(lines) + "\n"
