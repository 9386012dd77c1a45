"""What a training step of each routing takes, behind the trunk on which the study compares them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.clock import interleaved, stopwatch, summary
from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.suites.memory import REPEATS
from benchmarks.work import Net
from study.recipes.comparison import ROUTINGS, TRUNK

#: The same networks without routing, beside which the others stand.
FLOOR = "uniform"


def routings(conditions: Conditions) -> Found:
    """Time and peak memory of a training step, and multiply-adds of an image, for every routing of the library."""
    names = (FLOOR, "dynamic", "variational_bayes") if conditions.smoke else ROUTINGS
    trunk = dict(TRUNK) | ({"channels": 4, "n_types": 2} if conditions.smoke else {})
    trunk |= {"stem": [{**TRUNK["stem"][0], "channels": trunk["channels"]}]}
    base = Net("capsnet", batch=4 if conditions.smoke else 64)
    works = {name: replace(base, options=(*trunk.items(), ("routing", name))) for name in names}
    found = Found("Every routing behind one trunk: a training step, batch 64, MNIST's size")
    calls = {name: work.prepare(conditions.device) for name, work in works.items()}
    found.seconds = interleaved(calls, conditions.repeats, stopwatch(conditions.device))
    for name, work in works.items():
        taken = [float(conditions.bytes(work)) for _ in range(min(REPEATS, conditions.repeats))]
        found.bytes[name] = summary(taken)
        found.rows.append(
            Row(f"{name}: multiply-adds of an image, forward", multiply_adds(work) / 1e6, None, unit=" M")
        )
    floor = found.seconds[FLOOR].median
    found.rows += [
        Row(f"{name}: step over that with even couplings", found.seconds[name].median / floor, None)
        for name in works
        if name != FLOOR
    ]
    return found


def multiply_adds(work: Net) -> float:
    """Count those of products and convolutions, of one image: what is elementwise is not among them."""
    counter = FlopCounterMode(display=False)
    call = replace(work, batch=1, train=False, contender="reference").prepare(torch.device("cpu"))
    with counter:
        call()
    return counter.get_total_flops() / 2
