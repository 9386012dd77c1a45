"""A table of experiments: what the paper claims, and which recipe each of its rows is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: What ``result.json`` holds.
Result = dict[str, Any]

#: Results by recipe, from one place.
Results = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        label: as the paper's table has it.
        recipe: what is trained.
        minimum: training images that a run must have seen (steps × batch size); a run of fewer is called
            "smoke" in the table, whatever number it came to.
        paper: the paper's numbers, in per cent, by column of the table; as text, with its spread.
        folds: recipes that differ from this one only in what of the data trains and what tests: the row is the mean
            over all of them, seed by seed.
    """

    label: str
    recipe: str
    minimum: int
    paper: Mapping[str, str] = field(default_factory=dict)
    folds: tuple[str, ...] = ()

    @property
    def recipes(self) -> tuple[str, ...]:
        """All that are trained for it."""
        return self.recipe, *self.folds

    def among(self, results: Results) -> Results:
        """Those of its own recipes that there are."""
        return {name: results[name] for name in self.recipes if results.get(name)}


@dataclass(frozen=True)
class Table:
    """Rows that belong together.

    Attributes:
        title: what is compared.
        source: paper and section.
        rows: the first one is what the others are compared with.
        columns: by key of ``result.json`` (a fraction of 1, shown in per cent), what it is called.
        note: how the setting differs from the paper's, or what to keep in mind; plain sentences.
        tried: what was done to come nearer to the paper's numbers, and what it brought; sentences, each by itself.
    """

    title: str
    source: str
    rows: tuple[Row, ...]
    columns: Mapping[str, str] = field(default_factory=lambda: {"test_error": "test error, %"})
    note: str = ""
    tried: tuple[str, ...] = ()

    def row(self, name: str) -> Row:
        """The row of a recipe, or of one of its folds.

        Raises:
            ValueError: there is none; lists those that there are.
        """
        for row in self.rows:
            if name in row.recipes:
                return row
        raise ValueError(f"row must be one of {', '.join(row.recipe for row in self.rows)}; got {name!r}")
