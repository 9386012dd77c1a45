"""What a user would pick instead: the same network in other runtimes, in plain PyTorch and in JAX, on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from benchmarks import by_jax
from benchmarks.by_runtimes import RUNTIMES, why_not
from benchmarks.check import relative_errors, require_agreement
from benchmarks.clock import interleaved, stopwatch, summary
from benchmarks.conditions import Conditions
from benchmarks.in_use import COMPILED, EAGER, JAX, OURS, InUse, in_plain_torch
from benchmarks.result import Found, Row
from benchmarks.work import Call, Net, Work
from torchcaps.models import build


class Peer(NamedTuple):
    """A network, and what its time over the best runtime's has to be: (must, aim) for one image, and for 64.

    ``alone``: one image only, as 64 take runtimes that store all votes a minute and 14 GB.
    """

    title: str
    use: InUse
    one: tuple[float, float] | None = None
    many: tuple[float, float] | None = None
    alone: bool = False


class Lesson(NamedTuple):
    """A step of training, and what JAX's time over ours has to be: (must, aim)."""

    title: str
    net: Net
    over_jax: tuple[float, float]


_EM = InUse(model="matrix_capsnet", image_shape=(2, 32, 32), n_classes=5)
NETWORKS = (
    Peer("CapsNet", InUse(), one=(1.0, 0.7), many=(0.8, 0.5)),
    Peer("small CapsNet", InUse(model="capsnet_small"), one=(1.0, 0.7)),
    Peer("small matrix capsules", replace(_EM, model="matrix_capsnet_small"), one=(0.15, 0.1), alone=True),
    Peer("matrix capsules", _EM, one=(0.05, 0.04), alone=True),
    Peer("Efficient-CapsNet", InUse(model="efficient_capsnet")),
)
_EM_STEP = Net("matrix_capsnet", batch=8, image_shape=(2, 32, 32), n_classes=5)
LESSONS = (
    Lesson("CapsNet", Net(), (2.0, 3.0)),
    Lesson("small matrix capsules", replace(_EM_STEP, model="matrix_capsnet_small"), (8.0, 15.0)),
    Lesson("matrix capsules", _EM_STEP, (8.0, 15.0)),
)


def peers(conditions: Conditions) -> Found:
    """Answer for one image and for 64, and train for a step, in turns with what others offer."""
    found = Found("The same networks elsewhere, on a CPU")
    if conditions.device.type != "cpu":
        found.notes.append("Other runtimes are measured on the CPU.")
        return found
    found.notes += [reason for name in (*RUNTIMES, JAX) if (reason := why_not(name))]
    for peer in NETWORKS[1:2] if conditions.smoke else NETWORKS:
        works = ((1, peer.one), (4 if conditions.smoke else 64, peer.many))
        for batch, goal in works[: 1 if peer.alone else 2]:
            _in_use(found, conditions, peer, batch, goal)
    for lesson in LESSONS[:1] if conditions.smoke else LESSONS:
        _in_training(found, conditions, lesson)
    return found


def _in_use(found: Found, conditions: Conditions, peer: Peer, batch: int, goal: tuple[float, float] | None) -> None:
    use = replace(peer.use, batch=batch)
    model = build(use.model, use.image_shape, use.n_classes)
    whose = [OURS, EAGER, *[COMPILED] * conditions.compile, *(name for name in RUNTIMES if why_not(name) is None)]
    whose += [JAX] if by_jax.is_written(model) and why_not(JAX) is None else []
    works: dict[str, Work] = {who: replace(use, who=who) for who in whose}
    label = f"{peer.title}, {batch} image{'s' if batch > 1 else ''}"
    calls, exact = {who: work.prepare(conditions.device) for who, work in works.items()}, use.exact()
    for who, call in calls.items():
        errors = relative_errors(call(), exact)
        found.errors[f"{label}: {who}"] = require_agreement(f"{label}, {who}", errors)
    median = _measure(found, conditions, label, works, calls)
    others = [median[name] for name in RUNTIMES if name in calls]
    if others:
        must, aim = goal or (None, None)
        what = f"{label}, over the faster of {' and '.join(RUNTIMES)}"
        found.rows.append(Row(what, median[OURS] / min(others), must, aim))


def _in_training(found: Found, conditions: Conditions, lesson: Lesson) -> None:
    """Train by Adam; the losses of the first steps have to be the same."""
    net = replace(lesson.net, batch=4, model="capsnet_small") if conditions.smoke else lesson.net
    plain = in_plain_torch(build(net.model, net.image_shape, net.n_classes))
    works = {OURS: net, EAGER: replace(net, contender=plain, frequencies=False)}
    if conditions.compile:
        works[COMPILED] = replace(net, contender="compiled", frequencies=False)
    if why_not(JAX) is None:
        works[JAX] = replace(net, contender=JAX)
    label = f"{lesson.title}, a training step, batch {net.batch}"
    calls = {who: work.prepare(conditions.device) for who, work in works.items()}
    for k in range(3):
        losses = {who: {"loss": call()["loss"]} for who, call in calls.items()}
        for who, got in losses.items():
            require_agreement(f"{label}, {who}, step {k}", relative_errors(got, losses[OURS]))
    median = _measure(found, conditions, label, works, calls)
    for who in calls:
        must, aim = lesson.over_jax if who == JAX else (None, None)
        if who != OURS:
            found.rows.append(Row(f"{label}: {who} over ours", median[who] / median[OURS], must, aim, at_least=True))


def _measure(
    found: Found, conditions: Conditions, label: str, works: Mapping[str, Work], calls: Mapping[str, Call]
) -> dict[str, float]:
    """Time all in turns, and ask each for its memory; median times."""
    measured = interleaved(calls, conditions.repeats, stopwatch(conditions.device))
    found.seconds |= {f"{label}: {who}": time for who, time in measured.items()}
    found.bytes |= {f"{label}: {who}": summary([conditions.bytes(work)]) for who, work in works.items()}
    return {who: time.median for who, time in measured.items()}
