"""One to ten iterations of a trained network's routing: error, how decided couplings are, how well votes agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchcaps import analysis
from torchcaps.analysis.draw.charts import Lines, draw_charts
from torchcaps.experiments.measures.sample import bar, name_of, networks, numbers, sample
from torchcaps.experiments.tested import Tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_ITERS = tuple(range(1, 11))
N_IMAGES = 1000


def measure(tested: Tested, *, beside: Tested | None = None, n: int | None = None) -> dict[str, Any]:
    """Route the same votes with every number of iterations.

    Args:
        tested: the run of a CapsNet.
        beside: of another, such as one trained with another number of iterations.
        n: test images; :data:`N_IMAGES` by default.

    Returns:
        ``n_iters``; for "run" and "beside" the number of iterations it was ``trained_with``, and at each number its
        ``error``, ``entropy`` and ``agreement`` (see :func:`torchcaps.analysis.routing_statistics`).

    Raises:
        ValueError: a run on pairs, a model without dynamic routing to its classes, or runs on different images.
    """
    every = networks(tested, beside)
    images, labels = sample(tested, n, N_IMAGES)
    values: dict[str, Any] = {"n": len(images), "n_iters": list(N_ITERS)}
    for part, each in every.items():
        wrong, entropy, agreement = 0, 0, 0
        pieces = list(zip(images.split(50), labels.split(50), strict=True))
        for some, true in bar(pieces, f"{name_of(each)}: iterations"):
            found = analysis.routing_statistics(each.model, some, N_ITERS)
            wrong = wrong + (found.scores.argmax(dim=2) != true).sum(dim=1)
            entropy, agreement = entropy + found.entropy.sum(dim=1), agreement + found.agreement.sum(dim=1)
        values[part] = {
            "trained_with": each.model.classes.n_iters,  # type: ignore[union-attr]
            "error": numbers(wrong / len(images)),
            "entropy": numbers(entropy / len(images)),
            "agreement": numbers(agreement / len(images)),
        }
    return values


def draw(values: dict[str, Any], tested: Tested, beside: Tested | None = None) -> Figure:
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
            unit=what == "entropy",
        )
        for what, title in (
            ("error", "Error"),
            ("entropy", "Entropy of couplings / log J"),
            ("agreement", "Agreement: mean cosine"),
        )
    ]
    return draw_charts(charts)
