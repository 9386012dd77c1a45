"""What the results of a row come to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.recipes import RECIPES
from study.tables.table import Result, Results, Row, Table
from torchcaps.training.config import is_smoke
from torchcaps.training.run import experiment_from


@dataclass(frozen=True)
class Summary:
    """The results of one row from one place.

    Attributes:
        values: in per cent, by column, one of each seed, which is the mean over the folds; only columns that all runs
            have: an error on affNIST of some seeds would pass for one of all.
        smoke: whether any run saw fewer images than the row's minimum; then its numbers are no result.
        two_steps: whether any was a smoke test of two steps; then they mean nothing at all.
        seeds: those that all of these folds have run with; others are left out.
        folds: recipes that have run, of those that the row is the mean of.
        images: training images that the shortest of them saw.
        minutes: mean time of a run.
        n_parameters: of the model.
        devices: what the runs ran on.
        data: what the data say of themselves, such as that they are half-size copies; of every fold.
        options: what is to be asked for beside the recipe to train such runs again, "--epochs 5" or "".
    """

    values: Mapping[str, tuple[float, ...]]
    smoke: bool
    two_steps: bool
    seeds: tuple[int, ...]
    folds: tuple[str, ...]
    images: int
    minutes: float
    n_parameters: int
    devices: tuple[str, ...]
    data: tuple[str, ...]
    options: str

    def cell(self, column: str) -> str:
        """Mean, and standard deviation over seeds where there are several; "smoke", or "–" for nothing."""
        values = self.values.get(column, ())
        if not values:
            return "–"
        return "smoke" if self.smoke else _mean(values)

    def shortened_cell(self, column: str, n_folds: int) -> str | None:
        """Return mean and spread of trainings that were shorter than the row asks for, said to be; None for others."""
        if not self.smoke or self.two_steps or column not in self.values:
            return None
        said = [f"`{self.options}`"] if self.options else []
        said.append("1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds")
        said += [f"{len(self.folds)} of {n_folds} folds"] if n_folds > 1 else []
        return f"{_mean(self.values[column])} (shortened: {', '.join(said)})"

    def in_words(self, columns: Mapping[str, str]) -> str:
        """One line for a docstring: the number (of several columns those that there are), seeds, time and device."""
        cells = {title.removesuffix(", %"): self.cell(name) for name, title in columns.items() if name in self.values}
        several = len(columns) > 1
        numbers = ", ".join(f"{title} {cell} %" if several else f"{cell} %" for title, cell in cells.items())
        runs = "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        folds = f"{len(self.folds)} folds, " if len(self.folds) > 1 else ""
        asked = f"``{self.options}``, " * bool(self.options)
        time = f"{self.minutes:.0f} min a run; {'; '.join(self.devices)}"
        return f"Ours: {numbers} ({asked}{folds}{runs}, {time})."

    def runs_in_words(self, n_folds: int) -> str:
        """How many seeds, and of how many folds."""
        return f"{len(self.seeds)}" if n_folds == 1 else f"{len(self.seeds)}, {len(self.folds)} of {n_folds} folds"

    def as_json(self) -> dict[str, Any]:
        """Plain dicts; the values of a smoke run too, which are marked as such."""
        return {
            "per_cent": {column: list(values) for column, values in self.values.items()},
            "seeds": list(self.seeds),
            "folds": list(self.folds),
            "smoke": self.smoke,
            "images": self.images,
            "minutes": round(self.minutes, 1),
            "n_parameters": self.n_parameters,
            "devices": list(self.devices),
            "data": list(self.data),
        }


def _mean(values: Sequence[float]) -> str:
    """Write the mean, and of several the standard deviation."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def summarise(table: Table, row: Row, results: Results) -> Summary | None:
    """The results of a row in one; None where no seed has run in every fold that has runs.

    Raises:
        ValueError: those of one recipe are of different data, or any of different epochs; these have no mean.
    """
    mine = row.among(results)
    for recipe, runs in mine.items():
        data = {run.get("data", "") for run in runs}
        if len(data) > 1:
            raise ValueError(f"results of {recipe} must be of the same data, got {sorted(data)}")
    epochs = {run["config"]["epochs"] for runs in mine.values() for run in runs}
    if len(epochs) > 1:
        raise ValueError(f"results of {' and '.join(mine)} must be of the same epochs, got {sorted(epochs)}")
    of_seed: dict[int, list[Result]] = {}
    for run in sorted((run for runs in mine.values() for run in runs), key=lambda run: run["seed"]):
        of_seed.setdefault(run["seed"], []).append(run)
    whole = {seed: runs for seed, runs in of_seed.items() if len(runs) == len(mine)}
    if not whole:
        return None
    shown = [run for runs in whole.values() for run in runs]
    values = {
        column: tuple(100 * statistics.mean(run[column] for run in runs) for runs in whole.values())
        for column in table.columns
        if all(run.get(column) is not None for run in shown)
    }
    images = min(run["steps"] * run["config"]["batch_size"] for run in shown)
    return Summary(
        values=values,
        smoke=images < row.minimum,
        two_steps=any(is_smoke(experiment_from(run["config"])) for run in shown),
        seeds=tuple(whole),
        folds=tuple(mine),
        images=images,
        minutes=statistics.mean(run["seconds"] for run in shown) / 60,
        n_parameters=shown[0]["n_parameters"],
        devices=tuple(dict.fromkeys(device for run in shown for device in run["device"].split("; "))),
        data=tuple(dict.fromkeys(run["data"] for run in shown if run.get("data"))),
        options="" if epochs == {RECIPES[row.recipe]().epochs} else f"--epochs {min(epochs)}",
    )
