"""Twelve votes in the plane, routed by both routings: `python docs/figures/twelve_votes.py`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from drawing import HERE, save
from torch import Tensor

from torchcaps import Capsules, dynamic_routing_from_votes, em_routing_from_votes
from torchcaps.explain.canvas import INK, LINES, MUTED, SERIES, SMALL, TEXT, TITLE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What twelve parts say of the pose of parent A: the first seven agree.
FOR_A = [
    (0.9, 0.7), (1.0, 0.8), (0.8, 0.8), (0.9, 0.9), (1.1, 0.7), (1.0, 0.6), (0.8, 0.6),
    (-0.9, 0.3), (0.2, -1.0), (-0.4, 0.9), (0.6, -0.5), (-0.8, -0.7),
]  # fmt: skip
#: What they say of parent B: the last five agree.
FOR_B = [
    (0.9, -0.6), (-0.3, 1.0), (0.5, 0.9), (-1.0, 0.6), (0.1, -0.9), (1.0, 0.3), (-0.5, 0.2),
    (-0.9, -0.6), (-0.8, -0.7), (-1.0, -0.7), (-0.9, -0.8), (-0.8, -0.5),
]  # fmt: skip
VOTES = torch.stack((torch.tensor(FOR_A), torch.tensor(FOR_B)), dim=1)[None]  # [1, 12, 2, 2]
ITERATIONS = (1, 2, 3, 5)


def by_dynamic(n_iters: int) -> Capsules:
    """Route the votes by agreement."""
    return dynamic_routing_from_votes(VOTES, n_iters=n_iters, return_coupling=True)


def by_em(n_iters: int) -> Capsules:
    """Route the votes by EM: all parts are sure of themselves, and β is 0."""
    zero = torch.zeros(2)
    return em_routing_from_votes(
        VOTES, torch.ones(1, 12), zero, zero, n_iters=n_iters, final_lambda=1.0, return_coupling=True
    )


def variances(routed: Capsules) -> Tensor:
    """Return the variances of both Gaussians, ``[2, 2]``, weighted by the responsibilities of the last M-step."""
    assert routed.coupling is not None
    r = routed.coupling[0]  # [I, J]
    squares = (VOTES[0] - routed.pose[0]).square()
    return torch.einsum("ij,ijd->jd", r, squares) / r.sum(dim=0)[:, None] + 1e-6


def draw(steps: dict[int, Capsules], *, ellipses: bool) -> Figure:
    """Draw a row for each parent and a column for each iteration; a line is as wide as its coupling."""
    figure = new_figure(2.35 * len(steps) + 0.3, 5.2)
    grid = figure.subplots(2, len(steps), squeeze=False)
    for column, (t, routed) in enumerate(steps.items()):
        for parent, axes in enumerate(grid[:, column]):
            _panel(axes, routed, parent, ellipses)
            title = f"iteration {t}\n" if parent == 0 else ""
            axes.set_title(
                f"{title}activation {routed.activation[0, parent]:.2f}", fontsize=TEXT, color=INK, loc="left"
            )
    for name, axes in zip("AB", grid[:, 0], strict=True):
        axes.set_ylabel(f"votes for parent {name}", fontsize=TITLE, color=INK)
    return figure


def _panel(axes: Any, routed: Capsules, parent: int, ellipses: bool) -> None:
    assert routed.coupling is not None
    pose = routed.pose[0, parent]
    for vote, c in zip(VOTES[0, :, parent], routed.coupling[0, :, parent].tolist(), strict=True):
        x, y = zip(vote.tolist(), pose.tolist(), strict=True)
        axes.plot(x, y, color=SERIES[0], linewidth=4 * c, alpha=0.45, solid_capstyle="round", zorder=2)
        axes.plot(*vote.tolist(), "o", color=SERIES[0], markersize=3.5, alpha=0.25 + 0.75 * c, zorder=3)
    if ellipses:
        angle = torch.linspace(0, 2 * math.pi, 80)
        ring = pose[:, None] + variances(routed)[parent].sqrt()[:, None] * torch.stack((angle.cos(), angle.sin()))
        axes.plot(*ring.numpy(), color=SERIES[1], linewidth=1.5, zorder=4)
    axes.plot(0, 0, ".", color=MUTED, markersize=3)
    axes.plot(*pose.tolist(), "X", color=SERIES[1], markersize=8, markeredgecolor="white", zorder=5)
    axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axes.tick_params(labelsize=SMALL, colors=MUTED, length=0)
    axes.grid(color=LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def make(folder: Path = HERE) -> list[Path]:
    """Draw both routings."""
    return [
        save(draw({t: by_dynamic(t) for t in ITERATIONS}, ellipses=False), "twelve-votes-dynamic", folder),
        save(draw({t: by_em(t) for t in ITERATIONS}, ellipses=True), "twelve-votes-em", folder),
    ]


if __name__ == "__main__":
    make()
