"""Record what other commands wrote: a run's folder, or the file of a tuning, of few labels or of a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study import records
from study.tables.kept import keep, require_recipe
from torchcaps.training.files import read_json
from torchcaps.training.run import Run

#: By what its file has, the kind of a record.
FIELDS = {"tuning": {"trials", "best"}, "few-labels": {"rows", "trained"}, "bench": {"suites"}}


def record(path: Path, folder: Path, name: str | None = None) -> list[str]:
    """Record what a command wrote.

    Args:
        path: the folder of a finished run; ``tuning/<recipe>.json`` or ``few-labels.json``, recorded under the recipe's
            name; ``bench.json``, under the given one; or the ``gpu.jsonl`` of ``python -m benchmarks.gpu``.
        folder: of the records, such as ``study/results``.
        name: of a benchmark's record, such as "steps"; None for all others, which have one.

    Returns:
        Where it stands now.

    Raises:
        ValueError: no finished run; a file of something else; a name is missing or given in vain; another record is
            there already; what was done is not of a recipe as it stands now.
    """
    if path.suffix == ".jsonl":
        _require_no_name(name)
        return [_write(path.stem, key, each, folder) for key, each in records.every(path.stem, path.parent).items()]
    if not path.is_file():
        _require_no_name(name)
        return [keep(Run(path).finished(), folder)]
    content = read_json(path)
    kind = next(
        (kind for kind, fields in FIELDS.items() if isinstance(content, dict) and fields <= content.keys()), None
    )
    if kind is None:
        raise ValueError(f"{path} must be a run's folder or what tune, few-labels or a benchmark wrote, got neither")
    if kind == "bench":
        if name is None:
            raise ValueError(f"{path} is a benchmark, which wants a name: give one by --as")
        return [_write(kind, name, content, folder)]
    _require_no_name(name)
    require_recipe(content["recipe"], content)
    return [_write(kind, content["recipe"], content, folder)]


def _write(kind: str, name: str, content: dict[str, Any], folder: Path) -> str:
    if content.get("smoke"):
        raise ValueError(f"{name} must be no smoke run, which is no result")
    return records.write(kind, name, content, folder)


def _require_no_name(name: str | None) -> None:
    if name is not None:
        raise ValueError(f"--as must be left out except for a benchmark, got {name}")
