"""The one way to read and write what was recorded: ``<folder>/<kind>.jsonl``, one record a line, sorted by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from torchcaps.checks import check_choice
from torchcaps.training.files import write_text

Record = dict[str, Any]

#: What is recorded, one file each: finished runs, measures of them, trials of settings, what else was looked into,
#: comparisons from a few labels, benchmarks of a CPU and those of a GPU.
KINDS = ("runs", "measures", "tuning", "checks", "few-labels", "bench", "gpu")
RESULTS = Path(__file__).resolve().parent / "results"

#: Seconds to wait for another process, which holds a file for as long as it writes it.
PATIENCE = 60


def file_of(kind: str, folder: Path = RESULTS) -> Path:
    """Return the file of a kind of records.

    Raises:
        ValueError: an unknown kind.
    """
    check_choice("kind", kind, KINDS)
    return folder / f"{kind}.jsonl"


def place(kind: str, name: str, folder: Path = RESULTS) -> str:
    """Say where a record stands, such as "study/results/runs.jsonl: digits-0"."""
    return f"{file_of(kind, folder)}: {name}"


def every(kind: str, folder: Path = RESULTS) -> dict[str, Record]:
    """Read all records of a kind by name; none where there is no file.

    Raises:
        ValueError: an unknown kind; a line that is no record, or whose name another line has, by file and number.
    """
    path = file_of(kind, folder)
    found: dict[str, Record] = {}
    for number, line in enumerate(_lines(path), 1):
        name, record = _parsed(line, f"{path}, line {number},")
        if name in found:
            raise ValueError(f"{path}, line {number}, must have a name of its own, got {name} again")
        found[name] = record
    return found


def names(kind: str, folder: Path = RESULTS) -> list[str]:
    """List the names of a kind's records, sorted.

    Raises:
        ValueError: as :func:`every`.
    """
    return sorted(every(kind, folder))


def read(kind: str, name: str, folder: Path = RESULTS) -> Record:
    """Read one record.

    Raises:
        ValueError: as :func:`every`, or there is none of this name.
    """
    found = every(kind, folder)
    if name not in found:
        raise ValueError(f"{file_of(kind, folder)} must have a record {name}, got {len(found)} others")
    return found[name]


def write(kind: str, name: str, record: Record, folder: Path = RESULTS, *, replace: bool = False) -> str:
    """Add a record, whole or not at all; those of other processes stay.

    Args:
        kind: one of :data:`KINDS`.
        name: of the record.
        record: plain JSON values.
        folder: of the files; made where it is missing.
        replace: take the place of another record of this name. The same one again is always fine.

    Returns:
        Where it stands, see :func:`place`.

    Raises:
        ValueError: another record of this name is there; the record has NaN, or a field "key", under which its name
            is written; as :func:`every`.
    """
    if not name or "key" in record:
        raise ValueError(f"record must have a name and no field key, got {name!r} with {', '.join(record)}")
    path = file_of(kind, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = json.loads(_line(name, record))  # as it will be read: tuples are lists
    del record["key"]
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=PATIENCE):
        found = every(kind, folder)
        if not replace and found.get(name, record) != record:
            raise ValueError(f"{place(kind, name, folder)} is another record: remove that line to keep this one")
        found[name] = record
        write_text(path, "".join(_line(each, found[each]) + "\n" for each in sorted(found)))
    return place(kind, name, folder)


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, ValueError) as error:  # bytes that are no text
        raise ValueError(f"{path} cannot be read: {error}") from error
    return text.removesuffix("\n").split("\n") if text else []


def _line(name: str, record: Record) -> str:
    return json.dumps({"key": name} | record, ensure_ascii=False, allow_nan=False)


def _parsed(line: str, where: str) -> tuple[str, Record]:
    try:
        record = json.loads(line, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be a record in JSON, got {line[:40]!r}: {error}") from error
    if not isinstance(record, dict) or not isinstance(name := record.pop("key", None), str):
        raise ValueError(f"{where} must be a record with its name as key, got {line[:40]!r}")
    return name, record


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
