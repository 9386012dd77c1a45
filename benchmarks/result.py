"""What a suite finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.clock import Measured


class Row(NamedTuple):
    """One row of the table of goals.

    Attributes:
        what: in words.
        value: a ratio, or what ``unit`` says.
        must: the value that has to be reached.
        aim: the one that is hoped for; None where there is none.
        at_least: whether larger is better.
        unit: written after the number.
        least: below it the measurement cannot be true: a network is not faster than itself without routing.
    """

    what: str
    value: float
    must: float | None
    aim: float | None = None
    at_least: bool = False
    unit: str = "×"
    least: float | None = None

    def valid(self) -> bool:
        """Whether the value can be true."""
        return self.least is None or self.value >= self.least

    def holds(self) -> bool | None:
        """Whether ``must`` is reached; None where nothing must be, or the value cannot be true."""
        if self.must is None or not self.valid():
            return None
        return self.value >= self.must if self.at_least else self.value <= self.must


class Point(NamedTuple):
    """One place of a curve: time and memory of a layer of this size.

    Attributes:
        x: the size.
        seconds: median time.
        bytes: peak memory; None where it was not measured.
    """

    x: int
    seconds: float
    bytes: int | None


@dataclass
class Found:
    """Everything that one suite measured.

    Attributes:
        title: what it is about.
        seconds: times by contender.
        bytes: peak memory by contender.
        curves: growth, by what grows.
        rows: the table of goals.
        errors: relative error of each contender, from the check before.
        notes: what could not be measured, and why.
    """

    title: str
    seconds: dict[str, Measured] = field(default_factory=dict)
    bytes: dict[str, Measured] = field(default_factory=dict)
    curves: dict[str, list[Point]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
