"""One to ten iterations of a trained network's routing: error, how decided couplings are, how well votes agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from study.analysis import routing_statistics
from study.draw.charts import Lines, draw_charts
from study.measures.said import Said
from study.measures.sample import bar, choose, name_of, networks, numbers, spaced
from torchcaps.report import EvaluatedRun
from torchcaps.training.objective import wrong

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_ITERS = tuple(range(1, 11))
N_IMAGES = 1000


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Route the same votes with every number of iterations.

    Args:
        tested: the run of a CapsNet, on single images or on pairs (of which both must be right).
        beside: of another, such as one trained with another number of iterations.
        n: test images, or pairs; :data:`N_IMAGES` by default.

    Returns:
        ``n_iters``; for "run" and "beside" the number of iterations it was ``trained_with``, and at each number its
        ``error``, ``entropy``, ``active_entropy`` and ``agreement`` (see
        :func:`torchcaps.routing_statistics`).

    Raises:
        ValueError: a model without dynamic routing to its classes, or runs on different images.
    """
    every = networks(tested, beside)
    pairs = tested.config.data.pairs
    chosen = spaced(len(tested.images), n, N_IMAGES) if pairs else choose(tested, n, N_IMAGES)
    images, labels = tested.images[chosen], tested.labels[chosen]
    values: dict[str, Any] = {"n": len(images), "n_iters": list(N_ITERS)}
    for part, each in every.items():
        total: dict[str, Any] = dict.fromkeys(("error", "entropy", "active_entropy", "agreement"), 0)
        pieces = list(zip(images.split(50), labels.split(50), strict=True))
        for some, true in bar(pieces, f"{name_of(each)}: iterations"):
            found = routing_statistics(each.model, some, N_ITERS)
            here = found._asdict() | {"error": torch.stack([wrong(scores, true) for scores in found.scores]).float()}
            total = {what: sums + here[what].sum(dim=1) for what, sums in total.items()}
        values[part] = {
            "trained_with": each.model.classes.n_iters,  # type: ignore[union-attr]
            **{what: numbers(sums / len(images)) for what, sums in total.items()},
        }
    return values


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first: the fewest iterations, those of training, and the most."""
    found, made = values[part], {}
    first, last = values["n_iters"][0], values["n_iters"][-1]
    for n in sorted({first, found["trained_with"], last} & set(values["n_iters"])):
        k = values["n_iters"].index(n)
        made[f"iterations in test: {n}"] = Said(
            "error {:.1%}, entropy of active capsules {:.3f}, agreement of all {:.3f}",
            tuple(found[what][k] for what in ("error", "active_entropy", "agreement")),
        )
    return made


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Three curves over the number of iterations."""
    every = networks(tested, beside)
    charts = [
        Lines(
            title,
            "iterations in test",
            values["n_iters"],
            {
                f"{name_of(each)} (trained with {values[part]['trained_with']})": values[part][what]
                for part, each in every.items()
            },
            unit=what == "active_entropy",
        )
        for what, title in (
            ("error", "Error"),
            ("active_entropy", "Entropy / log J of active capsules"),
            ("agreement", "Agreement of all capsules: mean cosine"),
        )
    ]
    return draw_charts(charts)
