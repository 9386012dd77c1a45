"""Perturb single dimensions of a class capsule and decode, to see what they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_classes, check_int64, check_shapes
from torchcaps.explain.canvas import (
    INK,
    MUTED,
    SERIES,
    SMALL,
    TEXT,
    bare,
    check_pictures,
    new_figure,
    pixels,
    shortened,
    tiled,
)
from torchcaps.explain.models import Decode, class_capsules, decoding, inspects_model
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: −0.25 … 0.25 in steps of 0.05, as in the paper.
OFFSETS = tuple(round(0.05 * k, 2) for k in range(-5, 6))


@typed
@inspects_model
def perturb(
    model: nn.Module,
    images: Tensor,
    classes: Tensor,
    offsets: tuple[float, ...] = OFFSETS,
    *,
    decoder: Decode | None = None,
) -> Tensor:
    """Decode each image's class capsule with one dimension changed, for every dimension and offset.

    Args:
        model: any network that returns its class capsules, see :func:`~torchcaps.explain.class_capsules`.
        images: ``[B, C, H, W]``, values 0 … 1.
        classes: class of each image whose capsule is perturbed, ``[B]`` int64.
        offsets: K numbers added to the dimension, in units of the decoder's ``pose_scale`` where it has one: 1 for the
            paper's capsules.
        decoder: maps class poses ``[B, J, D]`` and a class of each image ``[B]`` to images; by default the model's own.

    Returns:
        ``[B, D, K, C, H, W]``; an offset of 0 gives the plain reconstruction.

    Raises:
        ValueError: there is no decoder, the model returns no capsules, the shapes do not fit, or there are no images or
            offsets.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> model = build("capsnet_small", (1, 28, 28), 10)
        >>> perturb(model, torch.rand(1, 1, 28, 28), torch.tensor([3])).shape
        torch.Size([1, 16, 11, 1, 28, 28])

    Source: Sabour et al. 2017, section 5.1, figure 4.
    """
    with decoding(model, decoder) as decode:
        check_at_least("the number of images", check_shapes(images=(images, "B C H W"), classes=(classes, "B"))["B"], 1)
        if not offsets:
            raise ValueError("offsets must hold at least one number, got none")
        _, pose = class_capsules(model, images)
        check_int64("classes", classes)
        check_classes("classes", classes, pose.shape[1])
        n_dims, n = pose.shape[2], len(offsets)
        step = pose.new_tensor(offsets) * getattr(decode, "pose_scale", 1.0)
        change = torch.eye(n_dims, dtype=pose.dtype, device=pose.device)[:, None] * step[:, None]
        change = change.flatten(0, 1)  # [D·K, D]
        grids = [
            decode(one + change[:, None], target.expand(len(change)))  # the mask drops the other capsules
            for one, target in zip(pose, classes, strict=True)
        ]
    return torch.stack(grids).unflatten(1, (n_dims, n))


@typed
def dimension_strengths(grids: Tensor) -> Tensor:
    """Measure how much each dimension changes the picture: the mean absolute difference of its two ends.

    Args:
        grids: those of :func:`perturb`, ``[B, D, K, C, H, W]``.

    Returns:
        ``[B, D]``.
    """
    check_pictures(grids=(grids, "B D K C H W"))
    return (grids[:, :, -1] - grids[:, :, 0]).abs().mean(dim=(2, 3, 4))


_GAP = 1


@typed
def draw_perturbations(grid: Tensor, offsets: Sequence[float] = OFFSETS) -> Figure:
    """Draw every dimension of one image's class capsule: a row each, decoded from left to right.

    Args:
        grid: one image's grid from :func:`perturb`, ``[D, K, C, H, W]``.
        offsets: the K offsets.

    Raises:
        ValueError: the number of offsets is not that of the columns.
    """
    sizes = check_pictures(grid=(grid, "D K C H W"))
    _check_offsets(sizes["K"], offsets)
    ratio = (sizes["H"] + _GAP) / (sizes["W"] + _GAP)
    figure = new_figure(0.62 * sizes["K"] + 0.55, 0.62 * ratio * sizes["D"] + 0.25)
    axes = figure.subplots()
    _sheet(axes, pixels(grid), [str(d) for d in range(sizes["D"])], offsets)
    axes.set_ylabel("k of pose[..., k]", fontsize=TEXT, color=MUTED)
    return figure


@typed
def draw_strongest(grids: Tensor, names: Sequence[str], offsets: Sequence[float] = OFFSETS, n: int = 3) -> Figure:
    """Draw the dimensions that change the picture most, for several images.

    Args:
        grids: those of :func:`perturb`, ``[B, D, K, C, H, W]``.
        names: B names of what the images show.
        offsets: the K offsets.
        n: number of dimensions for each image.

    Raises:
        ValueError: the number of names or offsets is not that of the grids.
    """
    sizes = check_pictures(grids=(grids, "B D K C H W"))
    check_at_least("n", n, 1)
    _check_offsets(sizes["K"], offsets)
    if len(names) != sizes["B"]:
        raise ValueError(f"names must be B={sizes['B']} as there are grids, got {len(names)}")
    n = min(n, sizes["D"])
    ratio = (sizes["H"] + _GAP) / (sizes["W"] + _GAP)
    n_columns = 1 if sizes["B"] == 1 else 2
    n_rows = -(-sizes["B"] // n_columns)
    cell = 0.37
    figure = new_figure((cell * sizes["K"] + 0.8) * n_columns, (cell * ratio * n + 0.35) * n_rows + 0.1)
    strongest = dimension_strengths(grids).topk(n, dim=1).indices
    every = figure.subplots(n_rows, n_columns, squeeze=False).flat
    for k, axes in enumerate(every):
        if k >= sizes["B"]:
            axes.set_visible(False)
            continue
        dims = strongest[k].tolist()
        shown = offsets if k < n_columns else None
        _sheet(axes, pixels(grids[k, dims]), [str(d) for d in dims], shown)
        name = shortened(names[k], 9)
        axes.set_ylabel(name, fontsize=TEXT + 4, color=INK, rotation=0, ha="right", va="center", labelpad=10)
    return figure


def _sheet(axes: Any, cells: np.ndarray, rows: list[str], offsets: Sequence[float] | None) -> None:
    """Draw cells ``[R, K, H, W, 3]`` with names of the rows, and of the columns where offsets are given."""
    n_rows, n_columns, height, width, _ = cells.shape
    axes.imshow(tiled(cells, _GAP), interpolation="nearest", vmin=0, vmax=1)
    bare(axes)
    axes.set_yticks([(height + _GAP) * i + height / 2 for i in range(n_rows)], rows, fontsize=SMALL, color=MUTED)
    if offsets is not None:
        at = [(width + _GAP) * j + width / 2 for j in range(n_columns)]
        axes.set_xticks(
            at, [f"{x:+.2f}".replace("-", "−") if x else "0" for x in offsets], fontsize=SMALL - 1.5, color=MUTED
        )
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    if offsets is not None and 0 in offsets:
        middle = list(offsets).index(0) * (width + _GAP)
        left, right = middle - 1, middle + width
        edge = len(cells) * (height + _GAP) - 1
        limits = {"xlim": axes.get_xlim(), "ylim": axes.get_ylim()}
        axes.plot(
            [left, right, right, left, left], [-1, -1, edge, edge, -1], color=SERIES[1], linewidth=1.5, clip_on=False
        )
        axes.set(**limits)


def _check_offsets(n: int, offsets: Sequence[float]) -> None:
    if len(offsets) != n:
        raise ValueError(f"offsets must be K={n} as the grid has columns, got {len(offsets)}")
