"""Couplings over the image, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchcaps.analysis.couplings import Couplings
from torchcaps.analysis.draw.canvas import INK, MUTED, TEXT, new_figure, numbers, pixels, shortened, show
from torchcaps.analysis.draw.heat import colour_bar, overlay
from torchcaps.checks import check_shapes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_couplings(
    image: Tensor, couplings: Couplings, classes: Sequence[str], index: int = 0, n_classes: int = 10
) -> Figure:
    """One row an iteration, one column a class: the brighter a place, the more it votes for the class.

    All maps have one scale. Under each stands the class capsule's activation (its length, in a CapsNet).

    Args:
        image: ``[C, H, W]``.
        couplings: as :func:`torchcaps.analysis.coupling_maps` gives them for this image.
        classes: J names.
        index: which image of ``couplings`` this is.
        n_classes: show the likeliest so many, in their own order.

    Raises:
        ValueError: several images, another number of names than of classes, or an index of no image.
    """
    check_shapes(image=(image, "C H W"))
    n, n_images = couplings.scores.shape[2], couplings.scores.shape[1]
    if len(classes) != n:
        raise ValueError(f"classes must be {n} names, got {len(classes)}")
    if index not in range(n_images):
        raise ValueError(f"index must be one of 0 … {n_images - 1}, got {index!r}")
    maps, scores = couplings.maps[:, index].cpu(), couplings.scores[:, index].cpu()  # [r, J, H, W], [r, J]
    shown: list[int] = scores[-1].topk(min(n_classes, len(classes))).indices.sort().values.tolist()
    height, width = image.shape[1:]
    n_iters = len(maps)
    figure = new_figure(0.75 * (len(shown) + 1) + 1.1, (0.75 * height / width + 0.24) * n_iters + 0.25)
    grid = figure.subplots(n_iters, len(shown) + 1, squeeze=False)
    largest, drawn = float(maps[:, shown].max()) or 1.0, None
    for t, row in enumerate(grid):
        show(row[0], pixels(image), "input" if t == 0 else "", MUTED)
        row[0].set_ylabel(f"iteration {t + 1}", fontsize=TEXT, color=MUTED)
        best = int(scores[t].argmax())
        for axes, j in zip(row[1:], shown, strict=True):
            drawn = overlay(axes, image, numbers(maps[t, j]), couplings.extent, largest)
            if t == 0:
                axes.set_title(
                    shortened(classes[j], 8), fontsize=TEXT + (2 if len(classes[j]) < 4 else 0), color=INK, pad=4
                )
            weight = "bold" if j == best else "normal"
            axes.set_xlabel(f"{scores[t, j]:.2f}", fontsize=TEXT, color=INK, labelpad=2, fontweight=weight)
    colour_bar(figure, drawn, grid, "activity × coupling")
    return figure
