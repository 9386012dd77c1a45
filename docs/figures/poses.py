"""Parts, their votes for a face, and coordinate addition: `python docs/figures/poses.py`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from drawing import HERE, save
from torch import Tensor

from torchcaps.explain.canvas import INK, LINES, MUTED, SERIES, SMALL, TEXT, TITLE, new_figure
from torchcaps.ops import AffineParts, affine_inverse, affine_matrix, coordinate_offset, matrix_votes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("left eye", "right eye", "mouth")


def placed(degrees: float, x: float, y: float) -> Tensor:
    """Make the pose of something that is turned and stands at (x, y): a 3×3 matrix."""
    turn = torch.tensor(math.radians(degrees))
    return affine_matrix(AffineParts(turn, torch.ones(2), torch.zeros(()), torch.tensor([float(x), float(y)])))


FACE = placed(0, 0, 0)
PARTS = torch.stack((placed(0, -1.0, -0.7), placed(0, 1.0, -0.7), placed(0, 0, 1.0)))
#: From each part to the face: W_i = M_i⁻¹ · face, which a network learns. No viewpoint is in it.
TO_FACE = affine_inverse(PARTS) @ FACE


def votes_of(parts: Tensor) -> Tensor:
    """Let each part vote for the pose of the face, ``[3, 3, 3]``: V_i = M_i W_i."""
    return matrix_votes(parts[None], TO_FACE[:, None])[0, :, 0]


def scenes() -> dict[str, Tensor]:
    """Return the parts of an upright face, of one seen otherwise, and of one whose mouth is out of place."""
    view = placed(30, 0.5, 0.3)
    moved = torch.stack((*PARTS[:2], placed(60, 1.3, 1.2)))
    return {"upright": PARTS, "turned by 30° and shifted": view @ PARTS, "mouth out of place": moved}


def draw_votes() -> Figure:
    """Draw the parts of each scene, and the three votes for the face."""
    figure = new_figure(9.4, 3.2)
    for axes, (name, parts) in zip(figure.subplots(1, 3), scenes().items(), strict=True):
        votes = votes_of(parts)
        for part, vote, colour in zip(parts, votes, SERIES, strict=False):
            axes.annotate(
                "", vote[:2, 2].tolist(), part[:2, 2].tolist(),
                arrowprops={"arrowstyle": "->", "color": colour, "alpha": 0.55, "shrinkB": 6},
            )  # fmt: skip
        for k, (part, colour) in enumerate(zip(parts, SERIES, strict=False)):
            _part(axes, part, NAMES[k], colour)
        for k, (vote, colour) in enumerate(zip(votes, SERIES, strict=False)):
            _frame(axes, vote, colour, 0.5, 3.6 - 1.1 * k)
        axes.set_title(name, fontsize=TITLE, color=INK)
        axes.set(xlim=(-2.3, 2.7), ylim=(2.6, -2.0), aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_color(LINES)
    return figure


def _frame(axes: Any, pose: Tensor, colour: str, length: float, width: float) -> None:
    """Draw a pose as its two axes."""
    x, y = pose[:2, 2].tolist()
    for direction in (0, 1):
        dx, dy = (length * pose[:2, direction]).tolist()
        axes.plot([x, x + dx], [y, y + dy], color=colour, linewidth=width, solid_capstyle="round")
    axes.plot(x, y, "o", color=colour, markersize=2 + width)


def _part(axes: Any, pose: Tensor, name: str, colour: str) -> None:
    """Draw an eye or a mouth in its pose."""
    angle = torch.linspace(0, 2 * math.pi, 60)
    eye = torch.stack((0.42 * angle.cos(), 0.2 * angle.sin(), torch.ones(60)))
    bow = torch.linspace(-0.7, 0.7, 60)
    mouth = torch.stack((bow, 0.25 - 0.5 * bow.square(), torch.ones(60)))
    points = pose @ (mouth if name == "mouth" else eye)
    axes.plot(*points[:2].numpy(), color=colour, linewidth=2)
    _frame(axes, pose, colour, 0.28, 1.2)


def draw_coordinates() -> Figure:
    """Draw where 4×4 capsules stand in an image of 32 pixels, and their votes without and with their coordinates."""
    offset = coordinate_offset(4, 4, 16, spacing=(6.0, 6.0), scale=32.0)  # [4, 4, 16]
    row, column = offset[..., 3].flatten(), offset[..., 7].flatten()
    figure = new_figure(9.0, 3.3)
    places, without, added = figure.subplots(1, 3)
    x, y = 32 * column + 16, 32 * row + 16
    places.scatter(x, y, c=SERIES[0], s=28)
    for across, down, i in zip(x.tolist(), y.tolist(), range(16), strict=True):
        places.text(across, down - 1.4, str(i + 1), fontsize=SMALL, color=MUTED, ha="center")
    places.set(xlim=(0, 32), ylim=(32, 0), aspect="equal", xticks=(0, 16, 32), yticks=(0, 16, 32))
    places.set_title("16 capsules in the image (pixels)", fontsize=TEXT, color=INK)
    for axes, share, name in ((without, 0, "votes without coordinates"), (added, 1, "votes with coordinates")):
        axes.scatter(0.1 + share * column, 0.2 + share * row, c=SERIES[1], s=28)
        axes.set(xlim=(-0.4, 0.6), ylim=(0.7, -0.3), aspect="equal")
        axes.set_title(name, fontsize=TEXT, color=INK)
        axes.set_xlabel("second element of the right-hand column", fontsize=SMALL, color=MUTED)
    without.annotate("all 16", (0.1, 0.2), (8, 6), textcoords="offset points", fontsize=TEXT)
    without.set_ylabel("first element", fontsize=SMALL, color=MUTED)
    for axes in (places, without, added):
        axes.tick_params(labelsize=SMALL, colors=MUTED, length=0)
        axes.grid(color=LINES, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    return figure


def make(folder: Path = HERE) -> list[Path]:
    """Draw both."""
    return [
        save(draw_votes(), "votes-of-a-face", folder),
        save(draw_coordinates(), "coordinate-addition", folder),
    ]


if __name__ == "__main__":
    make()
