"""Colours, empty figures, pixels and titles that all figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchcaps.checks import check_classes, check_shapes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FIRST",
    "HIGHLIGHT",
    "INK",
    "LINES",
    "MAX_NAME",
    "MUTED",
    "RIGHT",
    "SECOND",
    "SERIES",
    "SMALL",
    "TEXT",
    "TITLE",
    "WRONG",
    "bare",
    "check_names",
    "check_pictures",
    "colour_bar",
    "new_figure",
    "numbers",
    "overlay",
    "pixels",
    "scales",
    "shortened",
    "show",
    "tiled",
    "verdict",
]

INK, MUTED, LINES = "#1d2433", "#667085", "#d5dae3"
RIGHT, WRONG = "#13804a", "#cc2f1d"
#: The red of a pair's first image, dark enough for text on white.
FIRST = "#d62f2f"
#: The green of its second.
SECOND = "#1f8f3f"
SERIES = ("#2458b8", "#d9730d", "#13804a", "#8a3fb5", "#0e8a9a", "#b0305c", "#7a6a1c", "#475467")
#: Two colours that stand out from each other: orange and blue.
HIGHLIGHT = (SERIES[1], SERIES[0])
SMALL, TEXT, TITLE = 8.0, 9.5, 11.0

#: Characters of a class name above an image.
MAX_NAME = 9


def new_figure(width: float, height: float) -> Figure:
    """Create an empty white figure of this size in inches, outside of pyplot's global list of figures."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib, which the extra 'train' brings: see Install in README") from error
    return Figure(figsize=(width, height), facecolor="white", layout="constrained")


def check_pictures(**named: tuple[Tensor, str]) -> dict[str, int]:
    """Check shapes as :func:`~torchcaps.checks.check_shapes` does; what can be drawn is of floats, and is there.

    Raises:
        ValueError: as there; integers, a tensor without numbers, or an axis of size 0.
    """
    sizes = check_shapes(**named)
    for name, (tensor, _) in named.items():
        if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
            raise ValueError(
                f"{name} must hold floats 0 … 1 (torchcaps.data.to_float), got {tensor.dtype} of shape "
                f"{list(tensor.shape)} on {tensor.device}"
            )
    return sizes


def check_names(classes: Sequence[str], **named: Tensor) -> None:
    """Check that there is a name for each class among these labels.

    Raises:
        ValueError: naming the first labels of which one has no name.
    """
    for name, labels in named.items():
        if labels.is_floating_point() or labels.is_meta:
            raise ValueError(f"{name} must hold classes, got {labels.dtype} on {labels.device}")
        check_classes(name, labels, len(classes))


def pixels(images: Tensor) -> np.ndarray:
    """Convert images ``[..., C, H, W]`` of values 0 … 1 into RGB pixels ``[..., H, W, 3]``.

    Three channels are colours. Two are a stereo pair, of which the first (the left eye's) is shown in grey. Any other
    number is averaged.
    """
    if images.shape[-3] == 2:
        images = images[..., :1, :, :]
    if images.shape[-3] != 3:
        images = images.mean(dim=-3, keepdim=True).expand(*images.shape[:-3], 3, *images.shape[-2:])
    return numbers(images.clamp(0, 1).movedim(-3, -1))


def numbers(x: Tensor) -> np.ndarray:
    """Convert a tensor for matplotlib, which knows neither devices nor bfloat16."""
    return x.detach().cpu().float().numpy()


def tiled(rows: np.ndarray, gap: int = 1) -> np.ndarray:
    """Tile rows of pictures ``[R, K, H, W, 3]`` into one picture, ``gap`` white pixels between them."""
    n_rows, n_columns, height, width, _ = rows.shape
    sheet = np.ones((n_rows * (height + gap) - gap, n_columns * (width + gap) - gap, 3), dtype=np.float32)
    for i in range(n_rows):
        for j in range(n_columns):
            top, left = i * (height + gap), j * (width + gap)
            sheet[top : top + height, left : left + width] = rows[i, j]
    return sheet


def show(axes: Any, picture: np.ndarray, title: str = "", colour: str = INK, size: float = TEXT) -> None:
    """Show one picture, pixel by pixel, without scales."""
    axes.imshow(picture, interpolation="nearest", vmin=0, vmax=1)
    bare(axes)
    if title:
        axes.set_title(title, fontsize=size, color=colour, pad=4)


def bare(axes: Any) -> None:
    """Remove ticks and frame."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def scales(axes: Any, title: str, x: str) -> None:
    """Style a plain chart: title, light grid, no box."""
    axes.set_title(title, fontsize=TITLE, color=INK, loc="left", pad=8)
    axes.set_xlabel(x, fontsize=TEXT, color=MUTED)
    axes.tick_params(labelsize=SMALL, colors=MUTED, length=0, which="both")
    axes.grid(color=LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def shortened(name: str, n: int = 12) -> str:
    """Shorten a class name so that it fits beside a picture."""
    return name if len(name) <= n else name[: n - 1] + "…"


def overlay(axes: Any, image: Tensor, values: np.ndarray, extent: tuple[float, ...], largest: float) -> Any:
    """Lay a map of capsules over the image that they see, and return it (for a colour bar).

    Args:
        axes: axes to draw on.
        image: ``[C, H, W]``.
        values: values of the map, ``[H', W']``.
        extent: (left, right, bottom, top) of the map in pixels of the image.
        largest: the value that is brightest.
    """
    height, width = image.shape[1:]
    axes.imshow(0.45 * pixels(image).mean(axis=2), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    left, right, bottom, top = extent
    dy, dx = (bottom - top) / values.shape[0], (right - left) / values.shape[1]
    drawn = axes.imshow(
        np.pad(values, 1),  # a margin in which the colours fade out
        alpha=np.pad(np.full(values.shape, 0.85), 1),
        extent=(left - dx, right + dx, bottom + dy, top - dy),
        cmap="inferno",
        vmin=0,
        vmax=largest,
        interpolation="bilinear",
        zorder=2,
    )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    bare(axes)
    return drawn


def colour_bar(figure: Figure, drawn: Any, axes: Any, label: str) -> None:
    """Add the colour bar of an overlay beside all these axes."""
    bar = figure.colorbar(drawn, ax=axes, shrink=0.7, aspect=30, pad=0.01)
    bar.set_label(label, fontsize=TEXT, color=MUTED)
    bar.ax.tick_params(labelsize=SMALL, colors=MUTED, length=0)
    bar.outline.set_visible(False)


def verdict(label: int, predicted: int, classes: Sequence[str]) -> tuple[str, str]:
    """Return the title above an image and its colour: "✓ 7" or, in red, "✗ 7 predicted 1" in three lines."""
    true, taken = shortened(classes[label], MAX_NAME), shortened(classes[predicted], MAX_NAME)
    return (f"✓ {true}", RIGHT) if label == predicted else (f"✗ {true}\npredicted\n{taken}", WRONG)
