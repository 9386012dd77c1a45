"""What is asked of a trained network beyond its error, one file a measure; ``protocols.md`` says how and why.

Each ``measure`` takes a finished run, and beside it another one (a CNN), and returns plain numbers; each ``draw``
makes a picture of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from study.measures import (
    averaged,
    equivariance,
    matched,
    pairs,
    picasso,
    profile,
    robustness,
    routing,
    transfer,
)
from study.measures.said import Said

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Measure(NamedTuple):
    """How a measure is taken and drawn.

    Attributes:
        measure: of a :class:`~torchcaps.report.evaluated.EvaluatedRun`, ``beside`` another one or None, of ``n`` test
            images or its own number; plain JSON values, among them ``n``, "run" and "beside".
        draw: of these values and the same runs.
        headline: of these values and "run" or "beside", what to read first: a line of numbers each, by what it is.
        n: its own number of test images; None takes all.
    """

    measure: Callable[..., dict[str, Any]]
    draw: Callable[..., Figure]
    headline: Callable[[dict[str, Any], str], dict[str, Said]]
    n: int | None = None


#: Every measure, by name.
MEASURES: dict[str, Measure] = {
    "robustness": Measure(robustness.measure, robustness.draw, robustness.headline, robustness.N_IMAGES),
    "equivariance": Measure(equivariance.measure, equivariance.draw, equivariance.headline, equivariance.N_IMAGES),
    "picasso": Measure(picasso.measure, picasso.draw, picasso.headline, picasso.N_IMAGES),
    "routing": Measure(routing.measure, routing.draw, routing.headline, routing.N_IMAGES),
    "matched": Measure(matched.measure, matched.draw, matched.headline, None),
    "pairs": Measure(pairs.measure, pairs.draw, pairs.headline, pairs.N_PAIRS),
    "transfer": Measure(transfer.measure, transfer.draw, transfer.headline, transfer.SIZES[0]),
    "profile": Measure(profile.measure, profile.draw, profile.headline, profile.N_IMAGES),
    "averaged": Measure(averaged.measure, averaged.draw, averaged.headline, None),
}
