"""What all stages share: where they run, where records go, and how much time is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from study import records
from torchcaps.training.environment import commit, device_in_words, tf32, versions

#: A row is not begun with less time left than this.
LEAST_SECONDS = 5.0
#: What may differ between the call that began a record and one that goes on with it.
_MAY_DIFFER = ("tf32",)
#: The repository, from which stages are started in processes of their own.
ROOT = Path(__file__).resolve().parents[2]


class OutOfTime(Exception):
    """The time that was given is over; what is done is kept."""


@dataclass
class Session:
    """One call of ``python -m benchmarks.gpu``.

    Attributes:
        out: folder of the records.
        device: the first GPU, or the CPU.
        smoke: sizes so small that all is done in seconds, to see that it runs.
        until: when to stop, on the clock of :func:`time.monotonic`.
        data: folder with one folder for each data set, or None for where they are downloaded to.
        runs: folder of the trainings.
        commit: of the source, where there is no checkout to ask.
        say: called with a line for each row.
    """

    out: Path
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    smoke: bool = False
    until: float = float("inf")
    data: Path | None = None
    runs: Path = Path("runs/gpu")
    commit: str | None = None
    say: Callable[[str], object] = lambda line: print(line, flush=True)

    @property
    def cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.device.type == "cuda"

    def left(self) -> float:
        """Seconds until the end."""
        return self.until - time.monotonic()

    def origin(self) -> dict[str, Any]:
        """What every record begins with."""
        return {
            "device": torch.cuda.get_device_name(self.device) if self.cuda else device_in_words(self.device),
            "tf32": list(tf32()) if self.cuda else [],
            "versions": versions() | {"triton": _version_of_triton(), "cuda": str(torch.version.cuda)},
            "commit": self.commit or commit("benchmarks"),
            "smoke": self.smoke,
        }

    def record(self, stage: str) -> Record:
        """The record of a stage, with the rows that an earlier call left.

        Raises:
            ValueError: it is of another device, version or commit.
        """
        origin = self.origin()
        content = records.every("gpu", self.out).get(stage, origin | {"rows": {}})
        for name in origin:
            if name not in _MAY_DIFFER and content.get(name) != origin[name]:
                raise ValueError(
                    f"out must hold no record of another {name}, but {records.place('gpu', stage, self.out)} is of "
                    f"{content.get(name)}, not {origin[name]}: name another folder by --out"
                )
        return Record(self, stage, origin, content["rows"])


class Record:
    """Rows by name, in one record that is written after each."""

    def __init__(self, session: Session, stage: str, origin: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
        self.session, self.stage, self.origin, self.rows = session, stage, origin, rows

    def row(self, name: str, make: Callable[[], dict[str, Any]], least: float = LEAST_SECONDS) -> dict[str, Any]:
        """Make one row, unless an earlier call has; what goes wrong is its content, and the next row is made.

        Args:
            name: of the row.
            make: measures, and returns what was found.
            least: seconds without which it is not begun.

        Raises:
            OutOfTime: there is less.
        """
        if name in self.rows and "error" not in self.rows[name]:
            return self.rows[name]
        if self.session.left() < (0 if self.session.smoke else least):
            raise OutOfTime
        start = time.monotonic()
        try:
            content = make()
        except Exception as error:
            content = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]}
        if self.session.cuda:
            torch.cuda.empty_cache()
        self.keep(name, content | {"seconds taken": round(time.monotonic() - start, 2)})
        return self.rows[name]

    def keep(self, name: str, content: dict[str, Any]) -> None:
        """Write a row, and say it."""
        self.rows[name] = content
        records.write("gpu", self.stage, self.origin | {"rows": self.rows}, self.session.out, replace=True)
        self.session.say(f"{self.stage}, {name}: {in_words(content)}")


def in_words(content: dict[str, Any]) -> str:
    """A row in a line: what is long stays in the file."""
    said = []
    for name, value in content.items():
        if isinstance(value, float):
            said.append(f"{name} {value:.4g}")
        elif isinstance(value, (int, str)) and len(str(value)) <= 200:
            said.append(f"{name} {value}")
    return ", ".join(said)


def _version_of_triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"
