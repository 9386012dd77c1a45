"""Times of several contenders, measured in turns, so that whatever slows the machine slows them all."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

#: A single measurement takes at least this many seconds: quicker functions are called several times.
LEAST = 0.1
Function = Callable[[], object]
#: Seconds for so many calls of a function.
Stopwatch = Callable[[Function, int], float]


class Measured(NamedTuple):
    """What the repetitions of one contender came to: seconds, or bytes.

    Attributes:
        median: of the repetitions.
        lower: their lower quartile.
        upper: their upper quartile.
        n: how many there were.
    """

    median: float
    lower: float
    upper: float
    n: int


def summary(values: Sequence[float]) -> Measured:
    """Median and quartiles; of one value, that value."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Measured(median, lower, upper, len(values))


def interleaved(
    functions: Mapping[str, Function], repeats: int, stopwatch: Stopwatch, least: float = LEAST
) -> dict[str, Measured]:
    """Time every function once, then every one again, and so on; seconds for a call.

    Every round has an order of its own, drawn from a seed, so that none always follows the same one. A first round
    warms up and tells how many calls a measurement needs; these follow one that is not timed, for a step in training
    follows its like.

    Args:
        functions: by name.
        repeats: rounds that count.
        stopwatch: of the device, see :func:`stopwatch`.
        least: seconds that a measurement takes at least.
    """
    names = list(functions)
    calls = {}
    for name in names:
        functions[name]()
        calls[name] = max(1, math.ceil(least / max(stopwatch(functions[name], 1), 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for _ in range(repeats):
        for name in order.sample(names, len(names)):
            functions[name]()
            seconds[name].append(stopwatch(functions[name], calls[name]) / calls[name])
    return {name: summary(values) for name, values in seconds.items()}


def stopwatch(device: torch.device) -> Stopwatch:
    """The clock of a device: a GPU's own events, for its work goes on after a call has returned."""
    return _cuda_seconds if device.type == "cuda" else _seconds


def _seconds(function: Function, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start


def _cuda_seconds(function: Function, calls: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000
