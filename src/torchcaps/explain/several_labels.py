"""Images with several labels: which labels go together, and which were missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps.checks import check_shapes
from torchcaps.explain.canvas import (
    INK,
    MAX_NAME,
    MUTED,
    RIGHT,
    SMALL,
    TEXT,
    TITLE,
    WRONG,
    check_pictures,
    new_figure,
    numbers,
    pixels,
    shortened,
    show,
)
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Images in a row, and names in a line below an image.
_COLUMNS, _NAMES = 6, 2


@typed
def co_occurrence(labels: Tensor) -> Tensor:
    """Compute which share of the images with one label have another one, too.

    Args:
        labels: ``[N, J]`` bool.

    Returns:
        ``[J, J]``: row i has, of the images with label i, the shares that have each label; NaN where no image has it.

    Raises:
        ValueError: labels of another shape or kind.

    Example:
        >>> import torch
        >>> co_occurrence(torch.tensor([[True, True], [True, False]]))
        tensor([[1.0000, 0.5000],
                [1.0000, 1.0000]])
    """
    check_shapes(labels=(labels, "N J"))
    if labels.dtype != torch.bool:
        raise ValueError(f"labels must be bool, got {labels.dtype}")
    there = labels.float()
    return there.T @ there / there.sum(dim=0).unsqueeze(1)


@typed
def draw_co_occurrence(panels: Sequence[tuple[str, Tensor]], classes: Sequence[str]) -> Figure:
    """Draw one or several :func:`co_occurrence` side by side, such as that of true and of predicted labels.

    Args:
        panels: title and shares ``[J, J]`` of each.
        classes: J names.

    Raises:
        ValueError: there is no panel, or the number of names is not that of the classes.
    """
    n = len(classes)
    if not panels or any(list(shares.shape) != [n, n] for _, shares in panels):
        got = [list(shares.shape) for _, shares in panels]
        raise ValueError(f"panels must hold shares [J, J] with J={n} as there are classes, got {got}")
    side = min(7.0, max(2.6, 1.2 + 0.42 * n))
    figure = new_figure(side * len(panels), side)
    names = [shortened(name) for name in classes]
    size = min(TEXT, 260 / n)
    for k, (axes, (title, shares)) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False)[0], panels)):
        axes.imshow(numbers(shares), vmin=0, vmax=1, cmap="Blues", interpolation="nearest")
        axes.set_title(title, fontsize=TITLE, color=INK, loc="left", pad=8)
        axes.set_xticks(range(n), names, fontsize=size, color=INK, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(n), names if k == 0 else [""] * n, fontsize=size, color=INK)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if n <= 15:
            _write_shares(axes, shares, min(SMALL, 120 / n))
        axes.set_xlabel("also has", fontsize=TEXT, color=MUTED)
    return figure


def _write_shares(axes: Any, shares: Tensor, size: float) -> None:
    """Write each share in per cent into its cell."""
    for i, row in enumerate(shares.tolist()):
        for j, share in enumerate(row):
            text = "–" if share != share else f"{100 * share:.0f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=size, color="white" if share > 0.6 else INK)


@typed
def draw_labels(images: Tensor, labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> Figure:
    """Draw images with the labels that were found (green), missed (red), and predicted in vain (red, with "not").

    Args:
        images: ``[B, C, H, W]``, values 0 … 1, at least one.
        labels: true ones, ``[B, J]`` bool.
        predicted: ``[B, J]`` bool.
        classes: J names.

    Raises:
        ValueError: shapes that do not fit, or no image.
    """
    check_shapes(images=(images, "B C H W"), labels=(labels, "B J"), predicted=(predicted, "B J"))
    if not len(images) or labels.shape[1] != len(classes):
        raise ValueError(f"images must be some, and classes {labels.shape[1]} names; got {len(images)}, {len(classes)}")
    check_pictures(images=(images, "B C H W"))
    n_columns = min(_COLUMNS, len(images))
    n_rows = -(-len(images) // n_columns)
    height, width = images.shape[2:]
    said = [_lines(a, b, classes) for a, b in zip(labels.tolist(), predicted.tolist(), strict=True)]
    most = max(map(len, said))
    figure = new_figure(max(3.0, 1.5 * n_columns), n_rows * (1.5 * height / width + 0.15 * most + 0.1))
    for k, axes in enumerate(figure.subplots(n_rows, n_columns, squeeze=False).flat):
        if k >= len(images):
            axes.set_visible(False)
            continue
        show(axes, pixels(images[k]))
        for place, (text, colour) in enumerate(said[k]):
            axes.annotate(
                text, (0, 0), (0, -11 - 10 * place), "axes fraction", textcoords="offset points", fontsize=SMALL,
                color=colour,
            )  # fmt: skip
        # The layout makes room for what is said below an image.
        axes.set_xlabel("\n" * (most - 1), fontsize=SMALL)
    return figure


def _lines(labels: list[bool], predicted: list[bool], classes: Sequence[str]) -> list[tuple[str, str]]:
    """Write what is said below an image, line by line with its colour; of many labels some are counted."""
    both = list(zip(classes, labels, predicted, strict=True))
    kinds = (
        ("", RIGHT, [name for name, true, said in both if true and said]),
        ("missed ", WRONG, [name for name, true, said in both if true and not said]),
        ("not ", WRONG, [name for name, true, said in both if said and not true]),
    )
    lines = [(word, colour, names) for word, colour, names in kinds if names]
    if not lines:
        return [("✓ no label", RIGHT)]
    return [(f"{word}{_some(names)}", colour) for word, colour, names in lines]


def _some(names: Sequence[str]) -> str:
    """Write the first names, and how many more there are."""
    more = f" +{len(names) - _NAMES}" if len(names) > _NAMES else ""
    return ", ".join(shortened(name, MAX_NAME) for name in names[:_NAMES]) + more
