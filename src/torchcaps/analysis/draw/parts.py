"""What the likeliest classes of each image are made of, laid over the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchcaps.analysis.draw.canvas import INK, MUTED, TEXT, new_figure, numbers, pixels, shortened, show
from torchcaps.analysis.draw.heat import colour_bar, overlay
from torchcaps.analysis.draw.images import verdict
from torchcaps.analysis.parts import Parts
from torchcaps.checks import check_shapes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = ("parts of the\nwinning class", "parts of the\nrunner-up")


def draw_parts(images: Tensor, parts: Parts, labels: Tensor, classes: Sequence[str]) -> Figure:
    """One column an image: itself, and the places that its winning class and the runner-up are made of.

    The maps of one image have one scale, from 0 to its brightest place. Under each stand the class and its
    capsule's activation.

    Args:
        images: ``[B, C, H, W]``; up to about 8 are legible.
        parts: as :func:`torchcaps.analysis.part_maps` gives them for these images.
        labels: true classes ``[B]``.
        classes: J names, at least 2.

    Raises:
        ValueError: the shapes do not fit each other, or there is one class only.
    """
    sizes = check_shapes(images=(images, "B C H W"), labels=(labels, "B"), scores=(parts.scores, "B J"))
    if sizes["J"] != len(classes) or len(classes) < 2:
        raise ValueError(f"classes must be J={sizes['J']} names, at least 2, got {len(classes)}")
    maps, scores = parts.maps.cpu(), parts.scores.cpu()
    n, ratio = sizes["B"], sizes["H"] / sizes["W"]
    figure = new_figure(1.15 * n + 1.9, 3 * (1.15 * ratio + 0.3) + 0.35)
    grid = figure.subplots(3, n, squeeze=False)
    for axes, name in zip(grid[:, 0], ("image", *_ROWS), strict=True):
        axes.set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
    drawn = None
    for k in range(n):
        likeliest: list[int] = scores[k].topk(2).indices.tolist()
        text, colour = verdict(int(labels[k]), likeliest[0], classes)
        show(grid[0, k], pixels(images[k]), text, colour)
        largest = float(maps[k, likeliest].max()) or 1.0
        for axes, j in zip(grid[1:, k], likeliest, strict=True):
            drawn = overlay(axes, images[k], numbers(maps[k, j]) / largest, parts.extent, 1.0)
            axes.set_xlabel(f"{shortened(classes[j], 9)}: {scores[k, j]:.2f}", fontsize=TEXT, color=INK, labelpad=2)
    colour_bar(figure, drawn, grid, "given to the class (1: most in the image)")
    return figure
