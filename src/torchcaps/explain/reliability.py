"""Whether confidence is to be believed: of images with a confidence of 0.8, are four in five right?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.explain.canvas import INK, LINES, MUTED, SERIES, SMALL, TEXT, new_figure, numbers, scales
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Reliability(NamedTuple):
    """Hold confidence beside what came of it, in K bins of one width.

    Attributes:
        confidence: mean of each bin ``[K]``; NaN where it is empty.
        right: share that was right ``[K]``; NaN where it is empty.
        counts: how many it holds ``[K]``, int64.
    """

    confidence: Tensor
    right: Tensor
    counts: Tensor


@typed
def reliability(confidence: Tensor, right: Tensor, n_bins: int = 15) -> Reliability:
    """Sort predictions into bins by their confidence.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 2.

    Args:
        confidence: ``[N]``, 0 … 1; a bin holds what is above its lower edge, the first one 0 too.
        right: ``[N]`` bool.
        n_bins: K.

    Raises:
        ValueError: shapes that do not fit, no bin, or a confidence beyond 0 … 1.

    Example:
        >>> import torch
        >>> reliability(torch.tensor([0.4, 0.9, 0.8]), torch.tensor([False, True, True]), 2).right
        tensor([0., 1.], dtype=torch.float64)
    """
    check_shapes(confidence=(confidence, "N"), right=(right, "N"))
    check_at_least("n_bins", n_bins, 1)
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise ValueError(f"confidence must be among 0 … 1, got {confidence.min():g} … {confidence.max():g}")
    confidence = confidence.double()
    place = ((confidence * n_bins).ceil().long() - 1).clamp(min=0)
    counts = torch.bincount(place, minlength=n_bins)
    sums = (torch.bincount(place, weights, minlength=n_bins) for weights in (confidence, right.double()))
    means, shares = (total / counts for total in sums)
    return Reliability(means, shares, counts)


@typed
def draw_reliability(found: Reliability, x: str = "confidence", y: str = "share that is right") -> Figure:
    """Draw the share that is right over confidence, and below how many predictions have it.

    On the dashed line confidence is as it should be. Above the line it is too low, below it too
    high. The area of a dot grows with the number of predictions.

    Args:
        found: from :func:`reliability`.
        x: what the confidence is.
        y: what came of it.

    Raises:
        ValueError: there is no prediction.
    """
    check_shapes(**{f"found.{name}": (tensor, "n_bins") for name, tensor in found._asdict().items()})
    if found.counts.is_meta or not found.counts.sum():
        raise ValueError("found must hold a prediction, got none")
    figure = new_figure(4.6, 5.2)
    above, below = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    there = found.counts > 0
    share = found.counts[there] / found.counts.sum()
    above.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    above.plot(numbers(found.confidence[there]), numbers(found.right[there]), color=SERIES[0], linewidth=1.2)
    above.scatter(
        numbers(found.confidence[there]), numbers(found.right[there]), numbers(20 + 260 * share), SERIES[0], zorder=3
    )
    scales(above, y, "")
    width = 1 / len(found.counts)
    edges = [(k + 0.5) * width for k in range(len(found.counts))]
    below.bar(edges, found.counts.tolist(), 0.9 * width, color=LINES)
    scales(below, "", x)
    below.set_ylabel("how many", fontsize=TEXT, color=MUTED)
    below.yaxis.set_major_formatter("{x:,.0f}")
    above.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    above.text(0.03, 0.97, f"{x} too low", fontsize=SMALL, color=INK, va="top")
    above.text(0.97, 0.03, f"{x} too high", fontsize=SMALL, color=INK, ha="right")
    return figure
