"""The table of other runtimes, from the record of ``python -m benchmarks peers``."""

from __future__ import annotations

from collections.abc import Mapping

from study import records
from study.markdown import markdown_table, three_digits


def peers() -> list[str]:
    """Return the times and memory of every network, a row for each number of images, and of training steps."""
    suite = records.read("bench", "peers")["suites"]["peers"]
    times, memory = (
        by_work({name: one["median"] for name, one in suite[what].items()}) for what in ("seconds", "bytes")
    )
    whose = list(dict.fromkeys(name for each in times.values() for name in each))
    rows = [(work, *(_cell(each, memory.get(work, {}), name) for name in whose)) for work, each in times.items()]
    return markdown_table(("ms, and peak memory in MB", *whose), rows)


def by_work(times: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Sort "work: who" by work; what nobody else did is left out."""
    found: dict[str, dict[str, float]] = {}
    for name, time in times.items():
        work, _, who = name.rpartition(": ")
        found.setdefault(work, {})[who] = time
    return found


def _cell(times: Mapping[str, float], memory: Mapping[str, float], name: str) -> str:
    if name not in times:
        return "–"
    milliseconds, megabytes = _marked(times, name, 1e3), _marked(memory, name, 1e-6) if name in memory else "–"
    return f"{milliseconds}, {megabytes}"


def _marked(values: Mapping[str, float], name: str, factor: float) -> str:
    """Write a number to three digits; the least of all is bold."""
    shown = three_digits(factor * values[name])
    return f"**{shown}**" if values[name] == min(values.values()) else shown
