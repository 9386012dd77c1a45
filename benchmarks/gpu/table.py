"""All records in a few Markdown tables, of which the picture is made too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study import records
from study.markdown import markdown_table

#: Of dynamic routing and of EM routing, as they stand side by side.
SHOWN = ("reference", "compiled", "einsum", "batched", "stored_votes", "triton")


def stages_of(out: Path) -> dict[str, dict[str, Any]]:
    """Read what every stage has left, by its name."""
    return records.every("gpu", out)


def speeds(found: Mapping[str, Mapping[str, Any]], way: str) -> dict[str, dict[str, float]]:
    """Milliseconds by problem and contender: of the replayed graph, or by the clock where none was captured.

    Args:
        found: :func:`stages_of`.
        way: "forward" or "both".
    """
    times: dict[str, dict[str, float]] = {}
    for name, row in _rows(found, "speed").items():
        problem, _, contender = name.partition(", ")
        value = row.get(f"{way}, graph ms", row.get(f"{way}, ms"))
        if contender == "bound":
            times.setdefault(problem, {})["bound"] = row[f"{way}, ms, products in tf32"]
        elif value is not None:
            times.setdefault(problem, {})[contender] = value
    return times


def table(out: Path) -> str:
    """Everything that was found, as Markdown; "–" is what was not."""
    found = stages_of(out)
    if not found:
        return "Nothing was recorded.\n"
    first = next(iter(found.values()))
    on = ", ".join(first["tf32"]) or "nothing"
    versions = ", ".join(f"{name} {value}" for name, value in first["versions"].items())
    lines = [f"# {first['device']}", "", f"{versions}; commit {first['commit']}; in TF32: {on}."]
    lines += ["", "Sizes were those of a smoke run: the numbers say nothing."] if first["smoke"] else []
    for part in (_short, _exact, _speed, _steps, _trained):
        lines += part(found)
    return "\n".join(lines) + "\n"


def _rows(found: Mapping[str, Mapping[str, Any]], stage: str) -> dict[str, dict[str, Any]]:
    return found.get(stage, {}).get("rows", {})


def _short(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for name, row in _rows(found, "tests").items():
        counts = [f"{row[key]} {key}" for key in ("passed", "failed", "skipped", "error", "errors") if key in row]
        lines.append(f"Tests, {name}: {', '.join(map(str, counts))}.")
    rates = _rows(found, "ceilings")
    said = [f"{name} {row['per second'] / 1e12:.3g} T/s" for name, row in rates.items() if "per second" in row]
    lines += [f"Bytes copied, and operations of products: {', '.join(said)}."] if said else []
    return ["", *lines] if lines else []


def _exact(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = _rows(found, "exact")
    if not rows:
        return []
    keys = ("reference", "right", "bits stay", "another stream", "graph", "compiled")
    cells = []
    for name, row in rows.items():
        ours = row.get("triton", row.get("error", row.get("left out")))
        cells.append((name, _cell(ours), *(_cell(row.get(key)) for key in keys)))
    return ["", "## Errors against float64", "", *markdown_table(("problem", "triton", *keys), cells)]


def _speed(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for way, title in (("both", "forward and backward"), ("forward", "forward")):
        times = speeds(found, way)
        if not times:
            continue
        shown = [name for name in SHOWN if any(name in row for row in times.values())]
        header = ("problem", *shown, "bound", "triton over bound", "best other over triton")
        cells = []
        for name, row in times.items():
            ours, others = row.get("triton"), [row[key] for key in shown if key in row and key != "triton"]
            ratios = (
                f"{ours / row['bound']:.1f}" if ours and "bound" in row else "–",
                f"{min(others) / ours:.2f}" if ours and others else "–",
            )
            cells.append((name, *(_cell(row.get(key)) for key in (*shown, "bound")), *ratios))
        lines += ["", f"## Routing, {title}, ms", "", *markdown_table(header, cells)]
    if lines:
        lines += ["", "Of the replayed graph, where one could be captured, else by the clock; float32."]
    return lines


def _steps(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = _rows(found, "steps")
    cells = []
    for name, row in rows.items():
        net, precision, contender = name.split(", ")
        floor = rows.get(f"{net}, {precision}, floor", {})
        ratios = [
            f"{row[key] / floor[key]:.2f}" if row.get(key) and floor.get(key) and contender != "floor" else "–"
            for key in ("graph ms", "ms", "MB")
        ]
        measured = (_cell(row.get("graph ms", row.get("no graph"))), _cell(row.get("ms", row.get("error"))))
        cells.append((net, precision, contender, *measured, _cell(row.get("MB")), *ratios))
    over = ("graph over floor", "ms over floor", "MB over floor")
    header = ("network", "precision", "routing", "graph ms", "ms", "MB", *over)
    return ["", "## Training steps", "", *markdown_table(header, cells)] if cells else []


def _trained(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    keys = ("epoch", "seconds an epoch", "val_error", "test_error", "done", "error")
    runs = {name: row for stage in found for name, row in _rows(found, stage).items() if "done" in row}
    cells = [(name, *(_cell(row.get(key)) for key in keys)) for name, row in runs.items()]
    return ["", "## Trained", "", *markdown_table(("run", *keys), cells)] if cells else []


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:90].replace("|", "/")
