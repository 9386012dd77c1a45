"""The papers' tables: which recipe each row is, what the paper claims, and how much training a number needs.

Each is a file of its name, ``study/tables/mnist.toml``: ``title``, ``source``, ``minimum`` (of rows that have none of
their own), ``rows``, and where there are any ``columns``, ``note`` and ``tried``, as :class:`Table` says. Those of
routings side by side are made by :mod:`study.tables.routings`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from study.tables.routings import tables
from study.tables.table import Row, Table

#: In the order of the pages.
NAMES = (
    "digits", "mnist", "mnist-iterations", "mnist-less-data", "faces", "fashion-mnist", "multimnist", "affine",
    "affine-controls", "smallnorb", "viewpoints", "viewpoints-folds", "cifar10", "cifar10-later",
    "svhn",
)  # fmt: skip


def read_table(path: Path) -> Table:
    """Read a table's file.

    Raises:
        ValueError: it cannot be read, or a field is unknown, missing or of another kind; says which file.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        minimum = content.pop("minimum")
        rows = tuple(_row({"minimum": minimum} | row) for row in content.pop("rows"))
        prose = {"note": _joined(content.pop("note", "")), "tried": tuple(map(_joined, content.pop("tried", ())))}
        return Table(rows=rows, **prose, **content)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{path} must hold a table as study/tables/__init__.py says, got {error!r}") from error


def _row(content: dict[str, Any]) -> Row:
    fields: dict[str, Any] = content | {"folds": tuple(content.get("folds", ()))}
    return Row(**fields)


def _joined(text: str) -> str:
    """Take the line breaks out of prose, which the file has for those who read it."""
    return " ".join(text.split())


#: Every table, by name.
TABLES = {name: read_table(Path(__file__).with_name(f"{name}.toml")) for name in NAMES} | tables()

__all__ = ["TABLES", "Row", "Table", "read_table"]
