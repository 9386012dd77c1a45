"""What a second thread is worth."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.clock import interleaved, stopwatch
from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.work import Maps, Net, Vectors


def threads(conditions: Conditions) -> Found:
    """Two threads over one: routing alone, and whole training steps."""
    found = Found("Two threads over one")
    if conditions.device.type != "cpu":
        found.notes.append(f"threads are a matter of CPUs; the device is {conditions.device.type}")
        return found
    small = conditions.smoke
    works = {
        "dynamic routing": (Vectors(n_in=72 if small else 1152), 1.7, 1.9),
        "EM routing": (Maps(n_types=2, n_out=2) if small else Maps(), 1.7, 1.9),
        "CapsNet step": (Net(small=small, batch=4 if small else 64), 1.5, 1.8),
        "EM net step": (Net("matrix_capsnet", batch=8, image_shape=(2, 32, 32), n_classes=5, small=small), 1.5, 1.8),
    }
    before = torch.get_num_threads()
    try:
        for name, (work, must, aim) in works.items():
            call = work.prepare(conditions.device)
            turns = {f"{name}, {n} thread{'s' * (n > 1)}": _on(n, call) for n in (1, 2)}
            times = interleaved(turns, conditions.repeats, stopwatch(conditions.device))
            found.seconds |= times
            one, two = (measured.median for measured in times.values())
            found.rows.append(Row(f"{name}: one thread over two", one / two, must, aim, at_least=True))
    finally:
        torch.set_num_threads(before)
    return found


def _on(n: int, call: Callable[[], object]) -> Callable[[], object]:
    def on_threads() -> object:
        torch.set_num_threads(n)
        return call()

    return on_threads
