"""Say how far a long command is, and how long it will take: a bar in a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Seconds before the first line in a log, and the most between two.
_FIRST, _MOST = 10.0, 300.0


def with_time_left(steps: Iterable[T], what: str, n: int | None = None, *, seconds: float = _FIRST) -> Iterator[T]:
    """Pass on what is iterated over, and show on the error output how much of it is done.

    A bar in a terminal goes away at the end. Elsewhere lines are written, each after twice the time, so that a short
    command has none and a long one few.

    Args:
        steps: what takes long.
        what: what is done, in a word or two.
        n: how many steps there are; None to ask them.
        seconds: before the first line.

    Example:
        >>> list(with_time_left([1, 2, 3], "count"))
        [1, 2, 3]
    """
    if n is None:
        n = len(steps) if hasattr(steps, "__len__") else None  # pyright: ignore[reportArgumentType]
    if sys.stderr.isatty():
        from tqdm import tqdm  # not before: whoever reads small files may be without

        yield from tqdm(steps, desc=what, total=n, leave=False)
        return
    began = said = time.monotonic()
    for done, step in enumerate(steps, 1):
        yield step
        now = time.monotonic()
        if now - said >= seconds and done != n:
            said, seconds = now, min(2 * seconds, _MOST)
            print(_line(what, done, n, now - began), file=sys.stderr, flush=True)


def _line(what: str, done: int, n: int | None, elapsed: float) -> str:
    if n is None:
        return f"{what}: {done:,} done after {in_minutes(elapsed)}"
    return f"{what}: {done:,} of {n:,} done, {in_minutes(elapsed / done * (n - done))} left"


def in_minutes(seconds: float) -> str:
    """Write a duration as one reads it: "40 s", "12 min", "3 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
