"""The table of other runtimes, from the record of ``python -m benchmarks peers``."""

from __future__ import annotations

from collections.abc import Mapping

from study import records
from study.markdown import markdown_table


def peers() -> list[str]:
    """Return the times of every network, one row for each number of images, and the training step."""
    suite = records.read("bench", "peers")["suites"]["peers"]
    times = by_work({name: 1e3 * one["median"] for name, one in suite["seconds"].items()})
    whose = list(dict.fromkeys(name for each in times.values() for name in each))
    rows = [(work, *(_milliseconds(each, name) for name in whose)) for work, each in times.items()]
    return markdown_table(("milliseconds", *whose), rows)


def by_work(times: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Sort "work: who" by work; what nobody else did is left out."""
    found: dict[str, dict[str, float]] = {}
    for name, time in times.items():
        work, _, who = name.rpartition(": ")
        found.setdefault(work, {})[who] = time
    return found


def _milliseconds(times: Mapping[str, float], name: str) -> str:
    if name not in times:
        return "–"
    shown = f"{times[name]:,.0f}" if times[name] >= 100 else f"{times[name]:.3g}"
    return f"**{shown}**" if times[name] == min(times.values()) else shown
