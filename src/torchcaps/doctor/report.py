"""A report as text to read, and as a file to attach to an issue."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torchcaps.doctor.findings import faster, in_words, numbers
from torchcaps.typed import typed

_MARK = "torchcaps doctor"
_LEVELS = {"fine": "fine", "note": "note", "wrong": "WRONG"}


def is_wrong(report: dict[str, Any]) -> bool:
    """Return whether something is wrong here, and not merely absent."""
    return any(finding["level"] == "wrong" for finding in report["findings"])


@typed
def check_place(path: Path) -> None:
    """See that a report can be written there, before one is made.

    Raises:
        ValueError: something else is there, or nothing can be written.
    """
    try:
        there = path.exists()
    except OSError as error:  # of a name that is too long
        raise ValueError(f"json must name a file, got {path}: {error}") from None
    if there and not _is_report(path):
        raise ValueError(f"json must name a new file or an earlier report, got {path}, which is something else")
    if not path.parent.is_dir():
        raise ValueError(f"json must name a file in a folder that is there, got {path}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"json must name a file in a folder that can be written to, got {path}")


def _is_report(path: Path) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and _MARK in found


@typed
def write(report: dict[str, Any], path: Path) -> None:
    """Write it: wholly or not at all."""
    check_place(path)
    path = path.resolve()
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(_finite(report), file, indent=1, ensure_ascii=False, allow_nan=False)
            file.write("\n")
        mask = os.umask(0)
        os.umask(mask)
        Path(scratch).chmod(0o666 & ~mask)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _finite(value: Any) -> Any:
    """NaN and infinity as text: JSON has none."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    return [_finite(x) for x in value] if isinstance(value, list | tuple) else value


def anonymous(value: Any) -> Any:
    """Remove the user's name: the home folder is "~", and a folder of that name elsewhere too."""
    if isinstance(value, dict):
        return {key: anonymous(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(x) for x in value]
    if not isinstance(value, str):
        return value
    try:
        home = Path.home()
    except RuntimeError:
        return value
    if len(home.parts) < 2:  # of a container's user, the root of all
        return value
    value = re.sub(rf"{re.escape(str(home))}(?![\w.-])", "~", value)
    return re.sub(rf"(?<=[/\\]){re.escape(home.name)}(?![\w.-])", "<user>", value)


def as_text(report: dict[str, Any]) -> str:
    """Write the report for a person; the summary stands last, where a terminal shows it."""
    parts = [
        ("Versions", _pairs(report["versions"].items())),
        ("Machine", _pairs(_machine(report["machine"]))),
        ("GPUs", _pairs(_gpus(report["gpus"]))),
        ('Routing: what "auto" takes, and its largest error beside float64', _table(_routings(report))),
        ("Speed: forward and backward, medians in milliseconds", _table(_speed(report))),
        ("In short", _findings(report)),
    ]
    return "\n\n".join(f"{title}\n{body}" for title, body in parts if body)


def _pairs(rows: Iterable[tuple[str, object]]) -> str:
    return _table([(name, str(value)) for name, value in rows])


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them; the last one may be as long as it likes."""
    if not rows:
        return ""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]) - 1)]
    lines = ("  ".join((*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1])) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _machine(found: dict[str, Any]) -> list[tuple[str, str]]:
    free = "unknown room" if found["free_bytes"] is None else f"{found['free_bytes'] / 1e9:,.1f} GB free"
    return [
        ("system", found["system"]),
        ("processor", f"{found['processor']}; {found['cores']} cores, torch takes {found['threads']} threads"),
        ("compiler", found["compiler"]),
        ("CPU library", found["library"]),
        ("cache", f"{found['folder']}, {free}{'' if found['writable'] else ', not to be written to'}"),
        *(found["environment"].items()),
    ]


def _gpus(found: dict[str, Any]) -> list[tuple[str, str]]:
    built = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['rocm']}" if found["rocm"] else "no GPU"
    rows = [("torch is for", built), ("driver", found["driver"] or "none")]
    for card in found["cards"]:
        memory = f"{card['free_bytes'] / 1e9:.1f} of {card['memory_bytes'] / 1e9:.1f} GB free"
        rows.append((card["device"], f"{card['name']}, compute capability {card['capability']}, {memory}"))
    for name, on in found.get("tf32", {}).items():
        rows.append((f"TF32 {name}", {True: "yes", False: "no", None: "set by two interfaces"}[on]))
    return rows


def _routings(report: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [("device", "routing", "numbers", "taken", "error", "reference's", "")]
    for row in report["routings"]:
        fault = row.get("fault") or row.get("why") or "right"
        ours, theirs = (f"{row[name]:.1e}" if name in row else "-" for name in ("error", "reference_error"))
        rows.append((row["device"], in_words(row["routing"]), numbers(row), row["taken"], ours, theirs, fault))
    return rows


def _speed(report: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = (
        [("device", "routing", "reference", "taken", "times as fast", "peak memory", "problem")]
        if report["speed"]
        else []
    )
    for row in report["speed"]:
        measured, ratio = row["measured"], faster(row)
        ours = measured.get(row["taken"], measured["reference"])
        peak = " / ".join(f"{x['peak_bytes'] / 1e6:.0f}" for x in measured.values() if "peak_bytes" in x)
        rows.append(
            (
                row["device"],
                in_words(row["routing"]),
                f"{measured['reference']['ms']:.1f}",
                f"{ours['ms']:.1f} ({row['taken']})",
                "-" if ratio is None else f"{ratio:.1f}",
                f"{peak} MB" if peak else "-",
                row["problem"],
            )
        )
    return rows


def _findings(report: dict[str, Any]) -> str:
    lines = []
    for finding in report["findings"]:
        lines.append(f"  {_LEVELS[finding['level']]:5}  {finding['text']}")
        if finding["advice"]:
            lines.append(f"         → {finding['advice']}")
    if report["late"]:
        lines.append(f"  note   it took too long to look at {', '.join(report['late'])}")
        lines.append("         → ask again: what was compiled is kept")
    end = "Something is wrong here: see above." if is_wrong(report) else "Nothing is wrong here."
    return "\n".join([*lines, "", end])
