"""Votes as points of a plane, iteration by iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.draw.canvas import INK, LINES, MUTED, SERIES, SMALL, TEXT, TITLE, new_figure, numbers, shortened
from torchcaps.analysis.votes import Votes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGEST = 60.0  # area of the dot of a capsule that gives itself whole, in points²


def draw_votes(votes: Sequence[Votes], names: Sequence[str]) -> Figure:
    """One row a class, one column an iteration; a dot is a vote, a cross with an ellipse the class capsule.

    The plane of a row is that in which the votes taken in the end differ most, and is the same in all of its
    columns; all rows have one scale. A dot's area is the responsibility R, it is the darker the more
    active the capsule that casts it. The ellipse is the capsule's Gaussian at one standard deviation.

    Args:
        votes: as :func:`torchcaps.analysis.class_votes` gives them, of one image.
        names: of their classes, as many.

    Raises:
        ValueError: no votes, other numbers of names or of iterations.
    """
    if isinstance(votes, Votes):  # a tuple itself
        raise ValueError("votes must be several, such as [votes], got one")
    lengths = {len(each.coupling) for each in votes}
    if len(lengths) != 1 or len(names) != len(votes):
        raise ValueError(
            f"votes must be one or more of as many iterations and names, got {len(votes)} of "
            f"{sorted(lengths)} iterations and {len(names)} names"
        )
    n_iters = lengths.pop()
    planes = [each.plane() for each in votes]
    reach = max(_reach(each.plane().project(each.votes), each) for each in votes)
    figure = new_figure(2.75 * n_iters + 0.7, 2.95 * len(votes) + 0.3)
    grid = figure.subplots(len(votes), n_iters, squeeze=False)
    for row, each, plane, name in zip(grid, votes, planes, names, strict=True):
        points = numbers(plane.project(each.votes))
        means, spreads = plane.project(each.mean).cpu(), plane.project_variance(each.variance).cpu()
        opacity = (0.06 + 0.69 * numbers(each.activation)).clip(0, 0.75)
        for t, axes in enumerate(row):
            areas = _LARGEST * numbers(each.coupling[t])
            axes.scatter(*points.T, s=areas, alpha=opacity, color=SERIES[0], linewidths=0, zorder=2)
            axes.plot(*_ellipse(means[t], spreads[t]), color=SERIES[1], linewidth=1.6, zorder=3)
            axes.plot(*means[t].tolist(), "+", color=SERIES[1], markersize=9, markeredgewidth=1.8, zorder=4)
            _plain(axes, reach)
            axes.set_title(
                f"iteration {t + 1}: activation {each.scores[t]:.2f}", fontsize=TITLE - 1, color=INK, loc="left", pad=7
            )
            first, second = (f"{100 * share:.0f} %" for share in plane.share.tolist())
            if t == 0:
                axes.set_ylabel(f"votes for {shortened(name, 22)}\n2nd axis ({second})", fontsize=TEXT, color=MUTED)
            axes.set_xlabel(f"1st axis ({first} of variance)", fontsize=SMALL, color=MUTED)
    return figure


def _reach(points: Tensor, votes: Votes) -> float:
    """Half the width of a picture that holds nearly all votes (far ones get hardly any R)."""
    weight = (votes.coupling.amax(dim=0) * votes.activation).cpu()
    radius, order = points.norm(dim=1).cpu().sort()
    inside = (weight[order].cumsum(0) <= 0.97 * weight.sum()).sum()
    return 1.15 * float(radius[min(int(inside), len(radius) - 1)]) or 1.0


def _ellipse(mean: Tensor, covariance: Tensor) -> np.ndarray:
    """One standard deviation about the mean of a Gaussian of the plane, ``[2, 100]``."""
    variance, axes = torch.linalg.eigh(covariance.double())
    angle = torch.linspace(0, 2 * math.pi, 100, dtype=torch.float64, device="cpu")
    circle = torch.stack((angle.cos(), angle.sin()))
    return (mean.double()[:, None] + axes @ (variance.clamp_min(0).sqrt()[:, None] * circle)).numpy()


def _plain(axes: Any, reach: float) -> None:
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.tick_params(labelsize=SMALL, colors=MUTED, length=0)
    axes.locator_params(nbins=5)
    axes.grid(color=LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
