"""Rows that are finished, kept until the whole table is: what was broken off goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchcaps.experiments.run import read_json, write_json

Row = dict[str, Any]


class Finished:
    """The finished rows of one comparison.

    Args:
        path: where they are kept.
        of: what they depend on: rows of anything else are dropped.

    Attributes:
        rows: in the order in which they were finished.
        seconds: that all of them took.

    Raises:
        ValueError: a file that cannot be read.
    """

    def __init__(self, path: Path, of: dict[str, Any]) -> None:
        content = read_json(path) if path.is_file() else {}
        self._path, self._of = path, json.loads(json.dumps(of))
        mine = content.get("of") == self._of
        self.rows: list[Row] = content["rows"] if mine else []
        self.seconds: float = content["seconds"] if mine else 0.0

    def has(self, code: str, readout: str) -> bool:
        """Whether this row is finished."""
        return any((row["code"], row["readout"]) == (code, readout) for row in self.rows)

    def add(self, row: Row, seconds: float) -> None:
        """One more."""
        self.rows.append(row)
        self.seconds += seconds
        write_json(self._path, {"of": self._of, "seconds": self.seconds, "rows": self.rows})

    def clear(self) -> None:
        """The table is written; nothing is left to go on with."""
        self._path.unlink(missing_ok=True)
