"""Tables of routings side by side, from the records of ``python -m study routings``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from study import records
from study.comparison import MEASURE
from study.markdown import markdown_table, three_digits
from study.recipes.comparison import DATA, ROUTINGS, name_of
from study.tables.kept import read_results

#: Columns of a table: the value of the measure, and whether it is a share.
MEASURED = {
    "ece": ("calibration error", True),
    "noise": ("under noise", True),
    "fgsm": ("one step against it", True),
    "entropy": ("entropy of couplings", False),
}


def routings() -> list[str]:
    """Return a table for each data set on which something was trained, and how much of it all is there."""
    runs, measures = read_results(records.RESULTS), records.every("measures")
    lines: list[str] = []
    done = 0
    for data, compared in DATA.items():
        found = {routing: runs.get(name_of(data, routing), []) for routing in ROUTINGS}
        done += sum(map(len, found.values()))
        if any(found.values()):
            lines += [f"## {compared.title}", "", *_table(data, found, measures), ""]
    asked = 3 * len(DATA) * len(ROUTINGS)
    return [f"{done} of {asked} trainings are done.", "", *lines][:-1]


def verdicts() -> list[str]:
    """Return which errors differ: by more than both standard deviations together, as the protocol has it."""
    runs, rows = read_results(records.RESULTS), []
    for data, compared in DATA.items():
        kept = {label.partition(" (")[0]: runs.get(name_of(data, routing), []) for routing, label in ROUTINGS.items()}
        for key, title in _errors(data).items():
            found = {name: [100 * result[key] for result in results] for name, results in kept.items()}
            if not all(len(values) > 1 for values in found.values()):
                continue
            what = compared.title + (f", {title} viewpoints" if data == "azimuth" else "")
            stuck = {name: sum(map(_is_at_chance, results)) for name, results in kept.items()}
            learned = {name: values for name, values in found.items() if not stuck[name]}
            failed = (f"{name}, {n} of {len(kept[name])}" for name, n in stuck.items() if n)
            rows.append((what, *verdict(learned, next(iter(found))), ", ".join(failed) or "none"))
    header = (
        "data", "lowest error", "does not differ from it", "lower than even couplings", "higher than these",
        "learned nothing",
    )  # fmt: skip
    return markdown_table(header, rows)


def _is_at_chance(result: Mapping[str, Any]) -> bool:
    """Tell whether a network that was trained says hardly more than one class of as many images each."""
    return result["test_error_balanced"] > 0.95 * (1 - 1 / len(result["test_recall"]))


def verdict(found: Mapping[str, Sequence[float]], control: str) -> tuple[str, ...]:
    """Tell the lowest mean, what does not differ from it, and what is lower and what higher than the control.

    Args:
        found: by name, the errors of two seeds or more, in per cent.
        control: a name among them.
    """
    means = {name: statistics.mean(values) for name, values in found.items()}
    names = sorted(means, key=means.__getitem__)
    best = names[0]

    def differs(one: str, other: str) -> bool:
        apart = statistics.stdev(found[one]) + statistics.stdev(found[other])
        return abs(means[one] - means[other]) > apart

    def written(wanted: Callable[[str], bool]) -> str:
        return ", ".join(filter(wanted, names)) or "none"

    return (
        f"{best}, {means[best]:.2f} %",
        written(lambda name: name != best and not differs(name, best)),
        written(lambda name: differs(name, control) and means[name] < means[control]),
        written(lambda name: differs(name, control) and means[name] > means[control]),
    )


def costs() -> list[str]:
    """Return the table of what a training step takes, from ``python -m benchmarks routings``."""
    suite = records.read("bench", "routings")["suites"]["routings"]
    adds = {row["what"].partition(":")[0]: row["value"] for row in suite["rows"] if "multiply-adds" in row["what"]}
    rows = [
        (
            label,
            f"{1e3 * suite['seconds'][name]['median']:.0f} ms",
            f"{suite['bytes'][name]['median'] / 1e6:.0f} MB",
            f"{adds[name]:.1f} M",
        )
        for name, label in ROUTINGS.items()
    ]
    return markdown_table(("routing", "step of 64 images", "peak memory", "multiply-adds of an image"), rows)


def authors() -> list[str]:
    """Return the table of layers beside what their authors' code computes, from ``python -m benchmarks later``."""
    suite = records.read("bench", "later")["suites"]["later"]

    def taken(layer: str, by: str) -> str:
        milliseconds, megabytes = (
            scale * suite[what][f"{layer}: {by}"]["median"] for what, scale in (("seconds", 1e3), ("bytes", 1e-6))
        )
        return f"{three_digits(milliseconds)} ms, {three_digits(megabytes)} MB"

    rows = []
    for layer in dict.fromkeys(name.rpartition(": ")[0] for name in suite["seconds"]):
        values = {
            row["what"].rpartition(": ")[2]: row["value"] for row in suite["rows"] if row["what"].startswith(layer)
        }
        faster, memory = values["the authors' way over ours"], values["our peak memory over theirs"]
        rows.append((layer, taken(layer, "ours"), taken(layer, "authors"), f"{faster:.1f}×", f"{memory:.2f}"))
    return markdown_table(("layer", "ours", "the authors' way", "their time over ours", "our memory over theirs"), rows)


def _table(data: str, found: dict[str, list[dict[str, Any]]], measures: dict[str, Any]) -> list[str]:
    errors = _errors(data)
    header = ("routing", "seeds", "rate", *errors.values(), *(title for title, _ in MEASURED.values()), "parameters")
    rows = []
    for routing, results in found.items():
        values = [measures.get(f"{result['recipe']}-{result['seed']}/{MEASURE}") for result in results]
        own = [each["values"]["run"] for each in values if each is not None]
        rows.append(
            (
                ROUTINGS[routing],
                f"{len(results)}" if results else "–",
                f"{results[0]['config']['optim']['lr']:g}" if results else "–",
                *(mean((result.get(key) for result in results), share=True) for key in errors),
                *(mean((each[key] for each in own), share=share) for key, (_, share) in MEASURED.items()),
                f"{results[0]['n_parameters']:,}" if results else "–",
            )
        )
    return markdown_table(header, rows)


def _errors(data: str) -> dict[str, str]:
    """Name the errors of a data set's runs, and how their columns are called."""
    return {"test_error": "familiar", "novel_error": "novel"} if data == "azimuth" else {"test_error": "test error"}


def mean(values: Iterable[float | None], *, share: bool) -> str:
    """Write mean and standard deviation, shares in per cent; "–" where a value is missing or there is none."""
    known = [None if value is None else value * (100 if share else 1) for value in values]
    if not known or None in known:
        return "–"
    numbers = [value for value in known if value is not None]
    spread = f" ± {statistics.stdev(numbers):.2f}" if numbers[1:] else ""
    return f"{statistics.mean(numbers):.2f}{spread}"
