"""A transforming auto-encoder on the bundled digits, trained in a minute: `python docs/figures/transforming.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from drawing import HERE, save
from torch import Tensor, nn

from torchcaps import load, load_model, recipe, train
from torchcaps.data import to_float
from torchcaps.explain import draw_image_rows
from torchcaps.explain.canvas import LINES, MUTED, SERIES, new_figure, scales
from torchcaps.ops.affine import shift_matrix, warp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHIFTS = tuple(range(-3, 4))  # pixels; training has −2 … 2 of each image, so −4 … 4 between two


def trained() -> nn.Module:
    """Train the recipe digits-translation on one thread, so that numbers are the same again."""
    config = replace(recipe("digits-translation"), threads=1)
    with TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", progress="none")
        return load_model(Path(folder) / "run").model.eval()


def shifted(images: Tensor, by: float) -> tuple[Tensor, Tensor]:
    """Return shifts to the right as matrices, and the images shifted."""
    matrix = shift_matrix(torch.tensor([by, 0.0]).expand(len(images), 2))
    return matrix, warp(images, matrix)


def draw_images(model: nn.Module, images: Tensor) -> Figure:
    """Draw what the network sees, what it draws without and with a shift, and what it should."""
    matrix, target = shifted(images, 3.0)
    with torch.no_grad():
        drawn = model(images, matrix).images
        still = model(images).images
    figure = draw_image_rows(
        (("seen", images), ("drawn, told nothing", still), ("drawn, told 3 px", drawn), ("as it should be", target))
    )
    for axes in figure.axes:  # where the middle of an image is
        axes.axvline((images.shape[-1] - 1) / 2, color=SERIES[1], linewidth=1.1, linestyle="--")
    return figure


def draw_poses(model: nn.Module, images: Tensor) -> Figure:
    """Draw how far the x of three capsules moves as the image moves."""
    figure = new_figure(4.8, 3.8)
    axes: Any = figure.subplots()
    with torch.no_grad():
        before = model.encode(images)
        sure = before.activation.mean(dim=0).topk(3).indices
        axes.plot(SHIFTS, SHIFTS, color=MUTED, linewidth=0.9, linestyle=":", label="slope 1")
        for j, colour in zip(sure.tolist(), SERIES, strict=False):
            moved = [model.encode(shifted(images, s)[1]).pose[:, j, 0] - before.pose[:, j, 0] for s in SHIFTS]
            middle = [float(each.mean()) for each in moved]
            spread = [float(each.std()) for each in moved]
            axes.errorbar(SHIFTS, middle, spread, fmt="o-", color=colour, markersize=4, label=f"capsule {j}")
    scales(axes, "pixels that a capsule's x moves", "pixels that the image moves")
    axes.grid(color=LINES, linewidth=0.6)
    axes.legend(frameon=False)
    return figure


def make(folder: Path = HERE) -> list[Path]:
    """Train, and draw both."""
    model = trained()
    images = to_float(load("digits").test.images[:200])
    return [
        save(draw_images(model, images[:8]), "transforming-images", folder),
        save(draw_poses(model, images), "transforming-poses", folder),
    ]


if __name__ == "__main__":
    make()
