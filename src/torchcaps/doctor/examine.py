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
from torchcaps.ops.fused.unavailable import in_one_line

#: Seconds after which nothing more is begun that may take long.
PATIENCE = 45


def examine(say: Callable[[str], object] = len) -> dict[str, Any]:
    """Look at this machine; some 10 seconds on a CPU, below a minute with a GPU that kernels are compiled for.

    Args:
        say: told what is looked at next.

    Returns:
        Versions, machine, GPUs, routings with their errors, speeds, and findings in words; all of it for JSON.
    """
    start, failed = time.monotonic(), {}
    report: dict[str, Any] = {"torchcaps doctor": 1}

    def step(name: str, function: Callable[[], Any], fallback: Any = None) -> Any:
        if time.monotonic() - start > PATIENCE:
            failed.setdefault("late", []).append(name)
            return fallback
        say(name)
        try:
            return function()
        except Exception as error:
            failed[name] = in_one_line(error)
            return fallback

    with _quiet():
        report["versions"] = machine.versions()
        report["machine"] = machine.machine()
        none = {"cuda": torch.version.cuda, "rocm": torch.version.hip, "driver": None, "said": [], "cards": []}
        report["gpus"] = step("the GPUs", machine.gpus, none)
        rows: list[dict[str, Any]] = []
        times: list[dict[str, Any]] = []
        for name in ("cpu", *(card["device"] for card in report["gpus"]["cards"])):
            device, taken = torch.device(name), {}
            for routing in routings.ROUTINGS[device.type]:
                for dtypes in (routings.FLOAT, routings.MIXED):
                    what = f"{in_words(routing)} routing in {str(dtypes[0]).removeprefix('torch.')} on {name}"
                    row = step(what, lambda r=routing, d=device, k=dtypes: routings.examine_routing(r, d, k))
                    if row is not None:
                        rows.append(row)
                        taken.setdefault(routing, row["taken"])
            for routing in speed.PROBLEMS:
                if routing in taken:
                    what = f"the speed of {in_words(routing)} routing on {name}"
                    row = step(what, lambda r=routing, d=device, t=taken[routing]: speed.measure(r, d, t))
                    times += [] if row is None else [row]
        report |= {"routings": rows, "speed": times, "late": failed.pop("late", []), "failed": failed}
    report["findings"] = [finding._asdict() for finding in findings(report)]
    return report | {"seconds": round(time.monotonic() - start, 1)}


@contextmanager
def _quiet() -> Iterator[None]:
    """What is logged meanwhile is in the report."""
    log = logging.getLogger("torchcaps")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
