"""Rows that are finished, kept until the whole table is: what was broken off goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from torchcaps.training.environment import commit, device_in_words
from torchcaps.training.files import read_json, write_json

Row = dict[str, Any]


class Finished:
    """The finished rows of one comparison.

    Args:
        path: where they are kept.
        of: digest of what they depend on.

    Attributes:
        rows: in the order in which they were finished.
        seconds: that all of them took.
        commits: of the code that made them.
        devices: that made them.

    Raises:
        ValueError: the file cannot be read, or holds the rows of another comparison.
    """

    def __init__(self, path: Path, of: str) -> None:
        content = {"of": of, "rows": [], "seconds": 0.0, "commits": [], "devices": []}
        if path.is_file():
            content = read_json(path, *content)  # all that an empty one has
        if content["of"] != of:
            raise ValueError(
                f"{path} holds rows of other settings, runs or versions: remove it, or name another folder by --out"
            )
        self._path, self._of, self._commit = path, of, commit() or "unknown"
        self._device = device_in_words(torch.device("cpu"))
        self.rows: list[Row] = content["rows"]
        self.seconds: float = content["seconds"]
        self.commits: list[str] = content["commits"]
        self.devices: list[str] = content["devices"]

    def has(self, code: str, readout: str) -> bool:
        """Whether this row is finished."""
        return any((row["code"], row["readout"]) == (code, readout) for row in self.rows)

    def add(self, row: Row, seconds: float) -> None:
        """One more."""
        self.rows.append(row)
        self.seconds += seconds
        self.commits = list(dict.fromkeys((*self.commits, self._commit)))
        self.devices = list(dict.fromkeys((*self.devices, self._device)))
        made = {"seconds": self.seconds, "commits": self.commits, "devices": self.devices}
        write_json(self._path, {"of": self._of, **made, "rows": self.rows})

    def clear(self) -> None:
        """The table is written; nothing is left to go on with."""
        self._path.unlink(missing_ok=True)
