"""What the results of a row come to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcaps.experiments.tables.kept import Result
from torchcaps.experiments.tables.table import Row, Table


@dataclass(frozen=True)
class Summary:
    """The results of one row from one place.

    Attributes:
        values: in per cent, by column, one of each seed; "novel" errors and such only where a run has them.
        smoke: whether any run saw fewer images than the row's minimum; then its numbers are not shown.
        seeds: runs; of each fold, where there are several.
        folds: how many of the row's folds have runs.
        images: training images that the shortest of them saw.
        minutes: mean time of a run.
        n_parameters: of the model.
        devices: what the runs ran on.
        data: what the data say of themselves, such as that they are half-size copies; of every fold.
    """

    values: Mapping[str, tuple[float, ...]]
    smoke: bool
    seeds: int
    folds: int
    images: int
    minutes: float
    n_parameters: int
    devices: tuple[str, ...]
    data: tuple[str, ...]

    def cell(self, column: str) -> str:
        """Mean, and standard deviation over seeds where there are several; "smoke", or "–" for nothing."""
        values = self.values.get(column, ())
        if not values:
            return "–"
        if self.smoke:
            return "smoke"
        mean = f"{statistics.mean(values):.2f}"
        return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"

    def in_words(self, column: str) -> str:
        """One line for a docstring: the number, seeds, time and device."""
        runs = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        folds = f"{self.folds} folds, " if self.folds > 1 else ""
        return f"Ours: {self.cell(column)} % ({folds}{runs}, {self.minutes:.0f} min a run; {'; '.join(self.devices)})."

    def runs_in_words(self, n_folds: int) -> str:
        """How many runs: seeds, and how many folds of ``n_folds`` there are."""
        return f"{self.seeds}" if n_folds == 1 else f"{self.seeds} each of {self.folds} of {n_folds} folds"

    def as_json(self) -> dict[str, Any]:
        """Plain dicts; the values of a smoke run too, which are marked as such."""
        return {
            "per_cent": {column: list(values) for column, values in self.values.items()},
            "smoke": self.smoke,
            "images": self.images,
            "minutes": round(self.minutes, 1),
            "n_parameters": self.n_parameters,
            "devices": list(self.devices),
            "data": list(self.data),
        }


def summarise(table: Table, row: Row, results: Sequence[Result]) -> Summary | None:
    """The results of a row in one; None where there are none.

    Raises:
        ValueError: they are of different data (within a fold), epochs or numbers of seeds, which have no mean.
    """
    if not results:
        return None
    ran = {(result["recipe"], result.get("data", ""), result["config"]["epochs"]) for result in results}
    folds = {recipe for recipe, _, _ in ran}
    if len(ran) > len(folds) or len({epochs for *_, epochs in ran}) > 1:
        raise ValueError(f"results of {row.recipe} must be of the same data and epochs, got {sorted(ran)}")
    seeds = [sum(result["recipe"] == recipe for result in results) for recipe in folds]
    if len(set(seeds)) > 1:
        raise ValueError(f"folds of {row.recipe} must have as many seeds each, got {seeds}")
    values = {
        column: tuple(100 * result[column] for result in results if result.get(column) is not None)
        for column in table.columns
    }
    images = min(result["steps"] * result["config"]["batch_size"] for result in results)
    return Summary(
        values={column: found for column, found in values.items() if found},
        smoke=images < row.minimum,
        seeds=seeds[0],
        folds=len(folds),
        images=images,
        minutes=statistics.mean(result["seconds"] for result in results) / 60,
        n_parameters=results[0]["n_parameters"],
        devices=tuple(dict.fromkeys(result["device"] for result in results)),
        data=tuple(dict.fromkeys(result["data"] for result in results if result.get("data"))),
    )
