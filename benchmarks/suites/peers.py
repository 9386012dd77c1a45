"""What a user would pick instead: the same network in other runtimes, in plain PyTorch and in JAX, on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import by_jax
from benchmarks.by_runtimes import RUNTIMES, Scorer, why_not
from benchmarks.check import relative_errors, require_agreement
from benchmarks.clock import Measured, interleaved, stopwatch
from benchmarks.compiled import compiled
from benchmarks.conditions import Conditions
from benchmarks.contenders import take, torchs_convolutions
from benchmarks.result import Found, Row
from benchmarks.work import Net
from torchcaps.models import build
from torchcaps.models.capsnet import CapsNet
from torchcaps.training.export import plain_copy


class Peer(NamedTuple):
    """A network, and what its time over the best runtime's has to be: (must, aim) for one image, and for 64.

    ``alone``: one image only, as 64 take runtimes that store all votes a minute and 14 GB.
    """

    title: str
    model: str
    image_shape: tuple[int, int, int] = (1, 28, 28)
    n_classes: int = 10
    one: tuple[float, float] | None = None
    many: tuple[float, float] | None = None
    alone: bool = False


NETWORKS = (
    Peer("CapsNet", "capsnet", one=(1.0, 0.7), many=(0.8, 0.5)),
    Peer("small CapsNet", "capsnet_small", one=(1.0, 0.7)),
    Peer("small matrix capsules", "matrix_capsnet_small", (2, 32, 32), 5, one=(0.15, 0.1), alone=True),
    Peer("matrix capsules", "matrix_capsnet", (2, 32, 32), 5, one=(0.05, 0.04), alone=True),
    Peer("Efficient-CapsNet", "efficient_capsnet"),
)
#: What takes part beside the runtimes.
OURS, EAGER, COMPILED, JAX = "ours", "plain PyTorch", "torch.compile", "JAX"


def peers(conditions: Conditions) -> Found:
    """Answer for one image and for 64, and train CapsNet for a step, in turns with what others offer."""
    found = Found("The same networks elsewhere, on a CPU")
    if conditions.device.type != "cpu":
        found.notes.append("Other runtimes are measured on the CPU.")
        return found
    found.notes += [reason for name in (*RUNTIMES, JAX) if (reason := why_not(name))]
    networks = NETWORKS[1:2] if conditions.smoke else NETWORKS
    for peer in networks:
        works = ((1, peer.one), (4 if conditions.smoke else 64, peer.many))
        for batch, goal in works[: 1 if peer.alone else 2]:
            _in_use(found, conditions, peer, batch, goal)
    _in_training(found, conditions)
    return found


def _in_use(found: Found, conditions: Conditions, peer: Peer, batch: int, goal: tuple[float, float] | None) -> None:
    torch.manual_seed(0)
    model = build(peer.model, peer.image_shape, peer.n_classes).eval()
    images = torch.rand(batch, *peer.image_shape)
    with torch.no_grad():
        exact = {"scores": plain_copy(model).double()(images.double()).scores}
    calls = _scorers(model, images, conditions)
    label = f"{peer.title}, {batch} image{'s' if batch > 1 else ''}"
    for name, call in calls.items():
        errors = relative_errors({"scores": call()}, exact)
        found.errors[f"{label}: {name}"] = require_agreement(f"{label}, {name}", errors)
    measured = _in_turns({f"{label}: {name}": call for name, call in calls.items()}, conditions)
    found.seconds |= measured
    others = [measured[f"{label}: {name}"].median for name in RUNTIMES if name in calls]
    if others:
        must, aim = goal or (None, None)
        ours = measured[f"{label}: {OURS}"].median
        found.rows.append(Row(f"{label}, over the faster of {' and '.join(RUNTIMES)}", ours / min(others), must, aim))


def _scorers(model: nn.Module, images: Tensor, conditions: Conditions) -> dict[str, Scorer]:
    """Return a call for everyone who takes part."""

    def by_torch(contender: str) -> Scorer:
        other = copy.deepcopy(model)
        take(other, "reference" if contender == COMPILED else contender)
        if contender == COMPILED:
            other = compiled(other)

        def call() -> Tensor:
            if contender == OURS:
                with torch.inference_mode():
                    return other(images).scores
            with torch.inference_mode(), torchs_convolutions():
                return other(images).scores

        return call

    calls: dict[str, Scorer] = {OURS: by_torch("ours"), EAGER: by_torch("reference")}
    if conditions.compile:
        calls[COMPILED] = by_torch(COMPILED)
    calls |= {name: make(model, images, conditions.threads) for name, make in RUNTIMES.items() if why_not(name) is None}
    if isinstance(model, CapsNet) and why_not(JAX) is None:
        calls[JAX] = by_jax.scorer(model, images)
    return calls


def _in_training(found: Found, conditions: Conditions) -> None:
    """Train CapsNet with its decoder by Adam, batch 64."""
    net = replace(Net(), batch=4, model="capsnet_small") if conditions.smoke else Net()
    works = {OURS: net, EAGER: replace(net, contender="reference", frequencies=False)}
    if conditions.compile:
        works[COMPILED] = replace(net, contender="compiled", frequencies=False)
    calls: dict[str, Callable[[], object]] = {name: work.prepare(conditions.device) for name, work in works.items()}
    if why_not(JAX) is None:
        calls[JAX] = _jax_step(net)
    label = f"CapsNet, a training step, batch {net.batch}"
    measured = _in_turns({f"{label}: {name}": call for name, call in calls.items()}, conditions)
    found.seconds |= measured
    median = {name: measured[f"{label}: {name}"].median for name in calls}
    for name in calls:
        must, aim = (2.0, 3.0) if name == JAX else (None, None)
        if name != OURS:
            ratio = median[name] / median[OURS]
            found.rows.append(Row(f"{label}: {name} over ours", ratio, must, aim, at_least=True))


def _jax_step(net: Net) -> Callable[[], float]:
    """Return JAX's step, once its first losses have been those of ours."""
    torch.manual_seed(0)
    model = build(net.model, net.image_shape, net.n_classes)
    assert isinstance(model, CapsNet)
    images, labels = torch.rand(net.batch, *net.image_shape), torch.randint(net.n_classes, (net.batch,))
    call, same = by_jax.step(model, images, labels), net.prepare(torch.device("cpu"))
    for k in range(3):
        wanted, got = ({"loss": torch.as_tensor(float(loss))} for loss in (same()["loss"], call()))
        require_agreement(f"{JAX}, step {k}", relative_errors(got, wanted))
    return call


def _in_turns(calls: Mapping[str, Callable[[], object]], conditions: Conditions) -> dict[str, Measured]:
    return interleaved(calls, conditions.repeats, stopwatch(conditions.device))
