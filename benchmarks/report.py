"""What was found, as JSON and as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.clock import Measured
from benchmarks.result import Found, Point, Row
from study.markdown import markdown_table


def as_json(found: Mapping[str, Found]) -> dict[str, Any]:
    """Plain dicts; each row also says whether it holds."""
    content = {name: asdict(one) for name, one in found.items()}
    for name, one in found.items():
        for kind in ("seconds", "bytes"):
            content[name][kind] = {key: value._asdict() for key, value in getattr(one, kind).items()}
        content[name]["curves"] = {key: [point._asdict() for point in points] for key, points in one.curves.items()}
        content[name]["rows"] = [row._asdict() | {"holds": row.holds()} for row in one.rows]
    return content


def from_json(content: Mapping[str, Any]) -> dict[str, Found]:
    """Read what :func:`as_json` wrote; whether a row holds follows from it again."""
    found = {}
    for name, one in content.items():
        measured = {kind: {key: Measured(**x) for key, x in one[kind].items()} for kind in ("seconds", "bytes")}
        curves = {key: [Point(**point) for point in points] for key, points in one["curves"].items()}
        rows = [Row(**{key: value for key, value in row.items() if key != "holds"}) for row in one["rows"]]
        found[name] = Found(**{**one, **measured, "curves": curves, "rows": rows})
    return found


def as_markdown(found: Mapping[str, Found], where: str, *, smoke: bool = False) -> str:
    """One table of goals for all suites, then what each one measured.

    Args:
        found: by the name of the suite.
        where: device, threads, versions, repetitions, in words.
        smoke: the sizes were too small for the goals.
    """
    lines = [
        "# Speed and memory",
        "",
        where,
        "",
        *markdown_table(("what", "measured", "must", "aim", "holds"), _goals(found, smoke)),
    ]
    for one in found.values():
        lines += ["", f"## {one.title}", ""]
        if one.seconds:
            rows = [(name, *_milliseconds(value)) for name, value in one.seconds.items()]
            lines += [*markdown_table(("time", "median, ms", "quartiles", "n"), rows), ""]
        if one.bytes:
            rows = [(name, f"{value.median / 1e6:,.0f}", str(value.n)) for name, value in one.bytes.items()]
            lines += [*markdown_table(("peak memory", "median, MB", "n"), rows), ""]
        for name, points in one.curves.items():
            rows = [
                (f"{p.x:,}", f"{1e3 * p.seconds:.3g}", "" if p.bytes is None else f"{p.bytes / 1e6:,.0f}")
                for p in points
            ]
            lines += [*markdown_table((name, "ms", "MB"), rows), ""]
        if one.errors:
            lines += [_errors(one.errors)]
        lines += one.notes
    return "\n".join(lines).rstrip() + "\n"


def _errors(errors: Mapping[str, float]) -> str:
    """The largest, of bfloat16 by itself."""
    half = [value for name, value in errors.items() if "bf16" in name]
    full = [value for name, value in errors.items() if "bf16" not in name]
    said = [f"{max(values):.1g}{what}" for values, what in ((full, ""), (half, " in bfloat16")) if values]
    return f"Largest relative error against the reference in float64: {', '.join(said)}."


def _goals(found: Mapping[str, Found], smoke: bool) -> list[tuple[str, ...]]:
    goals = [_goal(row) for one in found.values() for row in one.rows]
    return [(*goal[:-1], "smoke") for goal in goals] if smoke else goals


def _goal(row: Row) -> tuple[str, ...]:
    sign = "≥" if row.at_least else "≤"
    must, aim = ("–" if x is None else f"{sign} {x:g}{row.unit}" for x in (row.must, row.aim))
    holds = {True: "yes", False: "**no**", None: "–"}[row.holds()] if row.valid() else "measured wrongly"
    return row.what, f"{row.value:.3g}{row.unit}", must, aim, holds


def _milliseconds(value: Measured) -> tuple[str, str, str]:
    median, lower, upper = (f"{1e3 * x:.4g}" for x in value[:3])
    return median, f"{lower} … {upper}", str(value.n)
