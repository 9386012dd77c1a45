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
#: The network of a paper, by our kernels, in plain PyTorch, and with EM routing instead.
BAYES = "variational Bayes' own network, batch 8"
EM = "the same network with EM routing, batch 8"


def routings(conditions: Conditions) -> Found:
    """Time and peak memory of a training step, and multiply-adds of an image, for every routing of the library."""
    names = (FLOOR, "dynamic", "variational_bayes") if conditions.smoke else ROUTINGS
    trunk = dict(TRUNK) | ({"channels": 4, "n_types": 2} if conditions.smoke else {})
    trunk |= {"stem": [{**TRUNK["stem"][0], "channels": trunk["channels"]}]}
    base = Net("capsnet", batch=4 if conditions.smoke else 64)
    works = {name: replace(base, options=(*trunk.items(), ("routing", name))) for name in names}
    found = Found("Every routing behind one trunk: a training step, batch 64, MNIST's size")
    floor = works[FLOOR]
    net = Net("variational_bayes_capsnet", batch=8, image_shape=(2, 32, 32), n_classes=5)
    if conditions.smoke:
        net = replace(net, batch=2, options=tuple(dict.fromkeys("ABCD", 2).items()))
    own = {BAYES: net, f"{BAYES}, votes stored": replace(net, contender="reference")}
    # Of scores alone: batch normalization takes from costs their gradients, and leaves rounding.
    found.errors |= conditions.checked({name: replace(work, train=False) for name, work in own.items()}, batch=2)
    works |= own | {EM: replace(net, model="matrix_capsnet_small")}
    calls = {name: work.prepare(conditions.device) for name, work in works.items()}
    found.seconds = interleaved(calls, conditions.repeats, stopwatch(conditions.device))
    for name, work in works.items():
        taken = [float(conditions.bytes(work)) for _ in range(min(REPEATS, conditions.repeats))]
        found.bytes[name] = summary(taken)
        if work.model == floor.model:
            count = multiply_adds(work) / 1e6
            found.rows.append(Row(f"{name}: multiply-adds of an image, forward", count, None, unit=" M"))
    median = {name: found.seconds[name].median for name in works}
    found.rows += [
        Row(f"{name}: step over that with even couplings", median[name] / median[FLOOR], None)
        for name, work in works.items()
        if work.model == floor.model and name != FLOOR
    ]
    stored = f"{BAYES}, votes stored"
    memory = found.bytes[BAYES].median / found.bytes[stored].median
    found.rows += [
        Row(f"{BAYES}: step with votes stored over ours", median[stored] / median[BAYES], 3, 10, at_least=True),
        Row(f"{BAYES}: our peak memory over that with votes stored", memory, 0.5, 0.1),
        Row(f"{BAYES}: step over that with EM routing", median[BAYES] / median[EM], None),
    ]
    return found


def multiply_adds(work: Net) -> float:
    """Count those of products and convolutions, of one image: what is elementwise is not among them."""
    counter = FlopCounterMode(display=False)
    call = replace(work, batch=1, train=False, contender="reference").prepare(torch.device("cpu"))
    with counter:
        call()
    return counter.get_total_flops() / 2
