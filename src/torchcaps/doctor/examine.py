"""Look at everything, one step after another: what fails is part of the report, and stops nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchcaps.doctor import machine, routings, speed
from torchcaps.doctor.findings import findings, in_words
from torchcaps.ops.backends.errors import in_one_line

#: Seconds after which nothing more is begun that may take long.
PATIENCE = 40


def examine(say: Callable[[str], object] = len) -> dict[str, Any]:
    """Look at this machine; some 10 seconds on a CPU, below a minute with a GPU that kernels are compiled for.

    Args:
        say: told what is looked at next.

    Returns:
        Versions, machine, GPUs, routings with their errors, speeds, and findings in words; all of it for JSON.
    """
    steps = _Steps(say)
    report: dict[str, Any] = {"torchcaps doctor": 1}
    with _quiet():
        report["versions"], report["machine"] = machine.versions(), machine.machine()
        nothing = {"cuda": torch.version.cuda, "rocm": torch.version.hip, "driver": None, "said": [], "cards": []}
        report["gpus"] = steps.take("the GPUs", machine.gpus) or nothing
        report["routings"], report["speed"] = [], []
        names: set[str] = set()
        # GPUs first: where there is one that is what is asked about, and all may take longer than there is time for.
        for card in (*report["gpus"]["cards"], {"device": "cpu", "name": "CPU"}):
            _device(steps, report, torch.device(card["device"]), timed=card["name"] not in names)
            names.add(card["name"])
    report |= {"late": steps.late, "failed": steps.failed}
    report["findings"] = [finding._asdict() for finding in findings(report)]
    return report | {"seconds": round(time.monotonic() - steps.start, 1)}


class _Steps:
    """What is done in turn, while there is time; and what failed, or came too late."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.say, self.start = say, time.monotonic()
        self.failed: dict[str, str] = {}
        self.late: list[str] = []

    def take(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the function gives; None where it fails or there is no time."""
        if time.monotonic() - self.start > PATIENCE:
            self.late.append(name)
            return None
        self.say(name)
        try:
            return function(*arguments)
        except Exception as error:
            self.failed[name] = in_one_line(error)
            return None


def _device(steps: _Steps, report: dict[str, Any], device: torch.device, *, timed: bool) -> None:
    """Add the rows of one device, those that most depends on first."""
    taken: dict[str, str] = {}

    def look(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
        kind = str(dtypes[0]).removeprefix("torch.")
        for routing in routings.ROUTINGS[device.type]:
            name = f"{in_words(routing)} routing in {kind} on {device}"
            row = steps.take(name, routings.examine_routing, routing, device, dtypes)
            if row is not None:
                report["routings"].append(row)
                taken.setdefault(routing, row["taken"])

    look(routings.FLOAT)
    for routing in speed.PROBLEMS if timed else ():
        if routing in taken:
            name = f"the speed of {in_words(routing)} routing on {device}"
            row = steps.take(name, speed.measure, routing, device, taken[routing])
            report["speed"] += [] if row is None else [row]
    look(routings.MIXED)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what is logged meanwhile out of the terminal: it is in the report."""
    log = logging.getLogger("torchcaps")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
