"""The squash, the two losses, and the chance of agreement by accident: `python docs/figures/curves.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from drawing import HERE, save

from torchcaps import margin_loss, spread_loss, squash
from torchcaps.explain.canvas import LINES, MUTED, SERIES, TEXT, new_figure, scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHIN = 0.2  #: how near votes must be, in each component
POINTS = 200_000  #: draws of the simulation


def draw_squash() -> Figure:
    """Draw the length after squashing against the length before."""
    length = torch.linspace(0, 6, 241)
    after = squash(length[:, None])[:, 0]
    figure = new_figure(5.6, 2.9)
    axes = figure.subplots()
    axes.plot(length, after, color=SERIES[0], linewidth=2)
    axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
    for n in (0.5, 1.0, 3.0):
        v = float(squash(torch.tensor([n])))
        axes.plot(n, v, "o", color=SERIES[1], markersize=5)
        axes.annotate(f"{n:g} → {v:.2f}", (n, v), (7, -11), textcoords="offset points", fontsize=TEXT)
    scales(axes, "length after squashing", "length of s before squashing")
    return figure


def draw_losses() -> Figure:
    """Draw the margin loss against a length, and the spread loss against the lead of the true class."""
    figure = new_figure(8.6, 3.0)
    left, right = figure.subplots(1, 2)
    length = torch.linspace(0, 1, 101)
    for present, name, colour in ((1, "class is present", SERIES[0]), (0, "class is absent", SERIES[1])):
        target = torch.tensor([[present]])
        left.plot(length, [margin_loss(each.reshape(1, 1), target) for each in length], color=colour, label=name)
    scales(left, "margin loss of one class", "length of its capsule")
    lead = torch.linspace(-0.5, 1, 151)
    for margin, colour in zip((0.2, 0.5, 0.9), SERIES, strict=False):
        values = [spread_loss(_activations(each), torch.tensor([0]), margin) for each in lead]
        right.plot(lead, values, color=colour, label=f"margin {margin}")
    scales(right, "spread loss of one wrong class", "lead of the true class, $a_t - a_i$")
    for axes in (left, right):
        axes.legend(fontsize=TEXT, frameon=False)
    return figure


def _activations(lead: torch.Tensor) -> torch.Tensor:
    """Return activations of a true and a wrong class, ``[1, 2]``."""
    return torch.stack(((0.5 + lead / 2), (0.5 - lead / 2)))[None]


def chance(n_votes: int, n_components: int) -> float:
    """Compute how likely n votes, uniform in −1 … 1, lie within 0.2 of the first in every component."""
    # For a first vote x the share of −1 … 1 within the distance is an integral with a closed form for one other vote;
    # for several it is taken numerically.
    x = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    share = ((x + WITHIN).clamp(max=1) - (x - WITHIN).clamp(min=-1)) / 2
    return float((share ** (n_votes - 1)).mean()) ** n_components


def simulated(n_votes: int, n_components: int) -> float:
    """Count in how many of 200,000 draws they do."""
    generator = torch.Generator().manual_seed(0)
    votes = 2 * torch.rand(POINTS, n_votes, n_components, generator=generator) - 1
    near = (votes - votes[:, :1]).abs() <= WITHIN
    return float(near.flatten(1).all(dim=1).float().mean())


def draw_chance() -> Figure:
    """Draw the chance of agreement by accident against the size of a pose."""
    figure = new_figure(6.4, 3.4)
    axes: Any = figure.subplots()
    sizes = torch.arange(1, 17).tolist()
    for n_votes, colour in zip((2, 3, 5), SERIES, strict=False):
        axes.semilogy(sizes, [chance(n_votes, d) for d in sizes], color=colour, label=f"{n_votes} votes")
        counted = [(d, p) for d in range(1, 6) if (p := simulated(n_votes, d)) * POINTS >= 20]
        axes.plot(*zip(*counted, strict=True), "o", color=colour, markersize=4)
    scales(axes, "chance that random votes agree", "components of a pose")
    axes.set_ylim(1e-20, 2)
    axes.grid(color=LINES, linewidth=0.6)
    axes.legend(fontsize=TEXT, frameon=False, loc="lower left")
    return figure


def make(folder: Path = HERE) -> list[Path]:
    """Draw all three."""
    return [
        save(draw_squash(), "squash", folder),
        save(draw_losses(), "losses", folder),
        save(draw_chance(), "agreement-by-accident", folder),
    ]


if __name__ == "__main__":
    make()
