"""Peak memory of a training step, each in a process of its own."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.clock import summary
from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.suites.em import NETS
from benchmarks.work import Net

#: Allocators differ from run to run; a few suffice.
REPEATS = 3


def memory(conditions: Conditions) -> Found:
    """Peak memory of training steps, above what model and images take."""
    small = conditions.smoke
    capsnet = Net(batch=4 if small else 64, small=small)
    em = Net("matrix_capsnet", batch=2 if small else 8, image_shape=(2, 32, 32), n_classes=5, small=small)
    nets = {"CapsNet": (capsnet, "few_at_a_time")}
    nets |= {f"EM net {size}": (replace(em, model=model), "stored_votes") for model, (size, _, _) in NETS.items()}
    found = Found("Peak memory of a training step")
    repeats = min(REPEATS, conditions.repeats)
    for name, (net, textbook) in nets.items():
        values: dict[str, list[float]] = {}
        works = {contender: replace(net, contender=contender) for contender in ("floor", "ours", textbook)}
        if name == "CapsNet" and conditions.device.type == "cpu":
            works["ours with torch's convolutions"] = replace(net, frequencies=False)
        for _ in range(repeats):
            for contender, work in works.items():
                values.setdefault(contender, []).append(conditions.bytes(work))
        measured = {contender: summary(taken) for contender, taken in values.items()}
        found.bytes |= {f"{name}: {contender}": taken for contender, taken in measured.items()}
        floor, ours, stored = (measured[key].median for key in ("floor", "ours", textbook))
        found.rows += [
            Row(f"{name}: peak memory of a step over the floor's", ours / floor, 1.1, 1.0),
            Row(f"{name}: the same of the textbook formulation ({textbook})", stored / floor, None),
        ]
    return found
