"""How sure a network is of what, how decided its couplings are, and what disturbed images do to it."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from study.analysis.attacks import fgsm, predict
from study.draw.charts import Bars, draw_charts
from study.measures.said import Said, per_cent
from study.measures.sample import bar, name_of, networks, number, sample
from torchcaps.explain import trace_routing
from torchcaps.report import EvaluatedRun
from torchcaps.training.probabilities import calibration_error, confidences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_IMAGES = 1000
#: Standard deviation of the noise, and the change of a pixel by the gradient's sign, on the scale of 0 … 1.
NOISE, EPSILON = 0.2, 0.05
#: Images at a time.
_BATCH = 50


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Evaluate on images as they are, on noisy ones, and on ones changed against the network.

    Args:
        tested: the run.
        beside: another on the same data.
        n: test images; :data:`N_IMAGES` by default.

    Returns:
        For "run" and "beside" the ``error``; the expected calibration error ``ece`` (of scores without bounds after a
        softmax); the error under Gaussian ``noise`` and under one step along the gradient's sign, ``fgsm``; and the
        ``entropy`` of couplings (see :func:`entropy`), None where there are none.

    Raises:
        ValueError: a run on pairs, or runs on different images.

    Source: Guo et al. 2017 (calibration), Goodfellow et al. 2015 (fgsm).
    """
    every = networks(tested, beside)
    images, labels = sample(tested, n, N_IMAGES)
    noise = NOISE * torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).to(images)
    values: dict[str, Any] = {"n": len(images), "noise": NOISE, "epsilon": EPSILON}
    for part, each in every.items():
        model = each.model
        attack = partial(fgsm, model, epsilon=EPSILON)
        pieces = list(zip(images.split(_BATCH), labels.split(_BATCH), strict=True))
        against = [attack(some, true) for some, true in bar(pieces, f"{name_of(each)}: against it")]
        probabilities = torch.cat([_probabilities(each, some) for some, _ in pieces])
        values[part] = {
            "error": _error(model, images, labels),
            "ece": number(_or_nan(calibration_error(*confidences(labels, probabilities)))),
            "noise": _error(model, (images + noise).clamp(0, 1), labels),
            "fgsm": _error(model, torch.cat(against), labels),
            "entropy": _mean_entropy(model, [some for some, _ in pieces]),
        }
    return values


def entropy(coupling: Tensor) -> Tensor | None:
    """Compute the entropy of couplings, divided by the largest: 1 where nothing is decided, 0 where all is.

    Args:
        coupling: ``[B, I, J]``, of which those of a child sum to 1, or else those of a parent.

    Returns:
        ``[B]``, the mean over the children (or parents); None where neither sum to 1.
    """
    for dim in (2, 1):
        total = coupling.sum(dim=dim, keepdim=True)
        if coupling.shape[dim] > 1 and torch.allclose(total, torch.ones_like(total), atol=1e-3):
            found = -torch.special.xlogy(coupling, coupling).sum(dim=dim) / math.log(coupling.shape[dim])
            return found.mean(dim=1)
    return None


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first: all of it."""
    found = values[part]
    said = {
        "error": per_cent(found["error"], 2),
        "calibration error": per_cent(found["ece"], 2),
        f"error under noise of {values['noise']:g}": per_cent(found["noise"], 2),
        f"error after one step of {values['epsilon']:g} against it": per_cent(found["fgsm"], 2),
    }
    if found["entropy"] is not None:
        said["entropy of couplings"] = Said("{:.3f}", (found["entropy"],))
    return said


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Bars of errors in per cent, by what was done to the images."""
    names = {"error": "as they are", "noise": f"noise {values['noise']:g}", "fgsm": f"step of {values['epsilon']:g}"}
    every = networks(tested, beside)
    bars = {name_of(each): [100 * values[part][key] for key in names] for part, each in every.items()}
    return draw_charts([Bars("Error, %, by images", list(names.values()), bars)])


@torch.no_grad()
def _probabilities(tested: EvaluatedRun, images: Tensor) -> Tensor:
    scores = tested.model(images).scores
    return scores.softmax(dim=1) if tested.config.loss == "cross_entropy" else scores


@torch.no_grad()
def _mean_entropy(model: nn.Module, pieces: list[Tensor]) -> float | None:
    try:
        found = [entropy(trace_routing(model, some).classes.again().coupling) for some in pieces]  # type: ignore[arg-type]
    except ValueError:  # no capsules, or couplings that are not returned
        return None
    kept = [each for each in found if each is not None]
    return number(torch.cat(kept).mean()) if len(kept) == len(found) else None


def _error(model: nn.Module, images: Tensor, labels: Tensor) -> float | None:
    predicted = torch.cat([predict(model, some) for some in images.split(_BATCH)])
    return number((predicted != labels).float().mean())


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
