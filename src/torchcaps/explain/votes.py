"""Votes for one class capsule, and the Gaussian that each iteration of EM routing fits to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_floating, check_shapes
from torchcaps.explain.canvas import (
    INK,
    LINES,
    MUTED,
    SERIES,
    SMALL,
    TEXT,
    TITLE,
    check_pictures,
    new_figure,
    numbers,
    shortened,
)
from torchcaps.explain.models import em_class_caps, inspects_model
from torchcaps.explain.pca import PrincipalComponents, principal_components
from torchcaps.explain.trace import trace_routing
from torchcaps.ops import matrix_votes
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Votes(NamedTuple):
    """I votes for one class in one image, routed for 1 … r iterations.

    Attributes:
        votes: V_i, as vectors, ``[I, D]``; they are the same in every iteration.
        activation: activations of the capsules that cast the votes, ``[I]``.
        coupling: R_i that each iteration's M-step takes, ``[r, I]``.
        mean: the class capsule's pose after each iteration, ``[r, D]``.
        variance: variance of the votes about the mean, weighted by R_i a_i (without the floor that routing adds),
            ``[r, D]``.
        scores: the class capsule's activation after each iteration, ``[r]``.
    """

    votes: Tensor
    activation: Tensor
    coupling: Tensor
    mean: Tensor
    variance: Tensor
    scores: Tensor

    def plane(self) -> PrincipalComponents:
        """Compute the plane in which the votes that the class takes in the end differ most."""
        return principal_components(self.votes, self.coupling[-1] * self.activation)


@typed
@inspects_model
def class_votes(model: nn.Module, image: Tensor, label: int, n_iters: int | None = None) -> Votes:
    """Record how EM routing fits a class capsule to the votes for it.

    Args:
        model: any network whose class capsules are ClassCaps with EM routing.
        image: ``[C, H, W]``, values 0 … 1.
        label: the class.
        n_iters: number of iterations r of the class capsules, by default their own; the layers below keep theirs.

    Returns:
        :class:`Votes`.

    Raises:
        ValueError: the model routes otherwise, the image does not fit it, there is no such class, or ``n_iters`` is
            below 1.

    Source: Hinton, Sabour, Frosst 2018, section 3.
    """
    classes = em_class_caps(model)
    n_iters = classes.n_iters if n_iters is None else n_iters
    check_at_least("n_iters", n_iters, 1)
    check_shapes(image=(image, "C H W"))
    check_choice("label", label, range(classes.n_out))
    lower = trace_routing(model, image.unsqueeze(0)).classes.lower
    votes = votes_for_classes(model, lower.pose)[0, :, label]  # [I, D]
    activation = lower.activation.flatten()
    steps = [classes(lower, n_iters=t, return_coupling=True) for t in range(1, n_iters + 1)]
    coupling = torch.stack([step.coupling[0, :, label] for step in steps])  # [r, I]
    mean = torch.stack([step.pose[0, label].flatten() for step in steps])  # [r, D]
    weight = coupling * activation
    weight = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-12)
    variance = torch.einsum("ri,rid->rd", weight, (votes - mean[:, None]).square())
    scores = torch.stack([step.activation[0, label] for step in steps])
    return Votes(votes, activation, coupling, mean, variance, scores)


@typed
def votes_for_classes(model: nn.Module, pose: Tensor) -> Tensor:
    """Compute the votes of the map below the class capsules, with the coordinates that are added.

    Args:
        model: any network whose class capsules are ClassCaps with EM routing.
        pose: poses of the map, ``[B, T, H, W, 4, 4]`` or ``[B, T, H, W, D]``.

    Returns:
        V_ij as vectors, ``[B, I, J, D]`` with I = T·H·W.

    Raises:
        ValueError: the model routes otherwise.
    """
    classes = em_class_caps(model)
    assert isinstance(classes.weight, Tensor)
    check_floating("pose", pose)
    vectors = pose.flatten(4) if pose.dim() == 6 else pose
    if vectors.dim() != 5 or (vectors.shape[1], vectors.shape[4]) != (classes.n_types, classes.d_in):
        wanted = f"[B, T={classes.n_types}, H, W, d_in={classes.d_in}]"
        raise ValueError(f"pose must be {wanted} or matrices, got shape {list(pose.shape)}")
    height, width = pose.shape[2:4]
    weight = classes.weight.repeat_interleave(height * width, dim=0)  # [I, J, ...]
    matrices = pose.flatten(1, 3) if pose.dim() == 6 else pose.flatten(1, 3).unsqueeze(-2)
    votes = matrix_votes(matrices, weight).flatten(3)
    offset = classes.offset(height, width)
    return votes if offset is None else votes + offset.to(votes)[:, None]


_LARGEST = 60.0  # area of the dot of a capsule that gives itself whole, in points²


@typed
def draw_votes(votes: Sequence[Votes], names: Sequence[str]) -> Figure:
    """Draw a row for each class and a column for each iteration; dots are votes, a cross and its ellipse the class.

    The plane of a row is that in which the votes taken in the end differ most. It is the same in all columns, and all
    rows share one scale. A dot's area is the responsibility R; it is darker the more active the capsule is that casts
    the vote. The ellipse is the class capsule's Gaussian at one standard deviation.

    Args:
        votes: those of :func:`class_votes`, of one image.
        names: name of the class of each.

    Raises:
        ValueError: there are no votes, or the numbers of names or iterations differ.
    """
    for each in votes:
        axes = {"votes": "I D", "activation": "I", "coupling": "r I", "mean": "r D", "variance": "r D", "scores": "r"}
        check_pictures(**{f"votes.{name}": (getattr(each, name), form) for name, form in axes.items()})
        if not each.votes.isfinite().all():
            raise ValueError("votes.votes must hold finite numbers, got others")
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
    """Return half the width of a picture that holds nearly all votes (far ones get hardly any R)."""
    weight = (votes.coupling.amax(dim=0) * votes.activation).cpu()
    radius, order = points.norm(dim=1).cpu().sort()
    inside = (weight[order].cumsum(0) <= 0.97 * weight.sum()).sum()
    return 1.15 * float(radius[min(int(inside), len(radius) - 1)]) or 1.0


def _ellipse(mean: Tensor, covariance: Tensor) -> np.ndarray:
    """Trace one standard deviation about the mean of a Gaussian of the plane, ``[2, 100]``."""
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
