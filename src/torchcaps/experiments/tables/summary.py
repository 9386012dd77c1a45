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
        seeds: runs.
        images: training images that the shortest of them saw.
        minutes: mean time of a run.
        n_parameters: of the model.
        devices: what the runs ran on.
        data: what the data say of themselves, such as that they are half-size copies; "" for nothing.
    """

    values: Mapping[str, tuple[float, ...]]
    smoke: bool
    seeds: int
    images: int
    minutes: float
    n_parameters: int
    devices: tuple[str, ...]
    data: str

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
        return f"Ours: {self.cell(column)} % ({runs}, {self.minutes:.0f} min a run; {'; '.join(self.devices)})."

    def as_json(self) -> dict[str, Any]:
        """Plain dicts; the values of a smoke run too, which are marked as such."""
        return {
            "per_cent": {column: list(values) for column, values in self.values.items()},
            "smoke": self.smoke,
            "images": self.images,
            "minutes": round(self.minutes, 1),
            "n_parameters": self.n_parameters,
            "devices": list(self.devices),
            "data": self.data,
        }


def summarise(table: Table, row: Row, results: Sequence[Result]) -> Summary | None:
    """The results of a row in one; None where there are none.

    Raises:
        ValueError: they are of different data or epochs, which have no mean.
    """
    if not results:
        return None
    ran = {(result.get("data", ""), result["config"]["epochs"]) for result in results}
    if len(ran) > 1:
        raise ValueError(f"results of {row.recipe} must be of the same data and epochs, got {sorted(ran)}")
    values = {
        column: tuple(100 * result[column] for result in results if result.get(column) is not None)
        for column in table.columns
    }
    images = min(result["steps"] * result["config"]["batch_size"] for result in results)
    return Summary(
        values={column: found for column, found in values.items() if found},
        smoke=images < row.minimum,
        seeds=len(results),
        images=images,
        minutes=statistics.mean(result["seconds"] for result in results) / 60,
        n_parameters=results[0]["n_parameters"],
        devices=tuple(dict.fromkeys(result["device"] for result in results)),
        data=results[0].get("data", ""),
    )
