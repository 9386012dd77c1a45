"""What a measure says first: numbers within a text, so that those of folds and of seeds can be put together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Said(NamedTuple):
    """A line of what to read first.

    Attributes:
        text: with a place for each number and its form, such as "{:.1%} at −45"; or words alone.
        values: the numbers; None for what could not be measured.
    """

    text: str
    values: tuple[float | None, ...] = ()


def per_cent(value: float | None, places: int = 1) -> Said:
    """A share alone, in per cent."""
    return Said(f"{{:.{places}%}}", (value,))


def mean(each: Sequence[Said]) -> Said:
    """Of several folds, number by number; words that differ are all said."""
    values = zip(*(one.values for one in each), strict=True)
    text = ", ".join(dict.fromkeys(one.text for one in each))
    return Said(text, tuple(None if None in column else statistics.mean(column) for column in values))  # type: ignore[arg-type]


def in_words(each: Sequence[Said]) -> str:
    """Of one run, or of several seeds: each number's mean and standard deviation; words that differ, of every seed."""
    if len({one.text for one in each}) > 1:
        return ", ".join(in_words([one]) for one in each)
    return each[0].text.format(*(_Seeds(column) for column in zip(*(one.values for one in each), strict=True)))


class _Seeds(tuple[float | None, ...]):
    """A number of each seed, which a text takes like one number."""

    __slots__ = ()

    def __format__(self, form: str) -> str:
        known = [value for value in self if value is not None]
        if len(known) < len(self):
            return "–"
        shown = [statistics.mean(known), *([statistics.stdev(known)] if len(known) > 1 else [])]
        unit = " %" if form.endswith("%") else ""
        return " ± ".join(format(value, form).removesuffix("%") for value in shown) + unit
