"""Reconstructions of an auto-encoder of capsules: part by part, unit by unit, and under transformations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.explain.canvas import INK, MUTED, TEXT, check_pictures, new_figure, pixels, show, tiled
from torchcaps.explain.models import as_autoencoder, inspects_model
from torchcaps.ops.affine import warp
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@typed
@inspects_model
def part_reconstructions(model: nn.Module, image: Tensor) -> Tensor:
    """Reconstruct what each capsule adds to one image ``[C, H, W]``: ``[J, C, H, W]``, without the background.

    Raises:
        ValueError: the model is another one, or the image does not fit it.
    """
    model = as_autoencoder(model)
    check_shapes(image=(image, "C H W"))
    pose, presence, _ = model.encode(image.unsqueeze(0))
    alone = presence[0].diag()  # [J, J]: row j has capsule j only
    return model.decode(pose.expand(len(alone), *pose.shape[1:]), alone) - model.background


@typed
@inspects_model
def generative_units(model: nn.Module) -> Tensor:
    """Return the generation units' weights of every capsule, or its template, in pixels.

    Args:
        model: a transforming auto-encoder.

    Returns:
        ``[J, G, C, h, w]``: G pictures for every capsule; a template is a single one.

    Raises:
        ValueError: the model is another one.

    Source: Hinton, Krizhevsky, Wang 2011, after figure 2.
    """
    return as_autoencoder(model).generative_units()


@typed
@inspects_model
def transformation_sweep(model: nn.Module, image: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Reconstruct one image under many transformations, for example beyond those of the training.

    Args:
        model: a transforming auto-encoder.
        image: image before the transformation, ``[C, H, W]``.
        matrices: K transformations, ``[K, 3, 3]``.

    Returns:
        The transformed images, and the reconstructions from the untransformed image and each transformation; both
        ``[K, C, H, W]``.

    Raises:
        ValueError: the model is another one, or the shapes do not fit.
    """
    model = as_autoencoder(model)
    check_pictures(image=(image, "C H W"))
    check_shapes(image=(image, "C H W"), matrices=(matrices, "K 3 3"))
    images = image.expand(len(matrices), *image.shape)
    return warp(images, matrices), model(images, matrices).images


_COLUMN = 0.8  # inches of an image


@typed
def draw_image_rows(rows: Sequence[tuple[str, Tensor]], titles: Sequence[str] = ()) -> Figure:
    """Draw rows of images, such as inputs, targets and reconstructions.

    Args:
        rows: name and images ``[K, C, H, W]`` of each row, values 0 … 1, with the same K in all rows.
        titles: titles of the columns.

    Raises:
        ValueError: there are no images, or rows of different lengths.
    """
    lengths = {len(images) if images.dim() else 0 for _, images in rows}
    if len(lengths) != 1 or 0 in lengths:
        got = [list(images.shape) for _, images in rows]
        raise ValueError(f"rows must hold equally many images, at least one, got shapes {got}")
    for name, images in rows:
        check_pictures(**{f"rows, {name},": (images, "K C H W")})
    n = lengths.pop()
    figure = new_figure(1.5 + _COLUMN * n, 0.3 + 0.25 * bool(titles) + (_COLUMN + 0.06) * len(rows))
    grid = figure.subplots(len(rows), n, squeeze=False)
    for axes, (name, images) in zip(grid, rows, strict=True):
        for each, picture in zip(axes, pixels(images), strict=True):
            show(each, picture)
        axes[0].set_ylabel(name, fontsize=TEXT, color=MUTED, rotation=0, ha="right", va="center")
    for axes, title in zip(grid[0], titles, strict=False):
        axes.set_title(title, fontsize=TEXT, color=INK, pad=4)
    return figure


@typed
def draw_transformation_sweep(
    true: Tensor, reconstructions: Tensor, titles: Sequence[str], within: Sequence[bool]
) -> Figure:
    """Draw one image under stronger and stronger transformations, above its reconstructions.

    Args:
        true: transformed images ``[K, C, H, W]``, values 0 … 1.
        reconstructions: reconstructions ``[K, C, H, W]``.
        titles: K names of the transformations.
        within: K flags of the transformations that training covers; titles of the others get a star.

    Raises:
        ValueError: there are no images, or different numbers of them.
    """
    sizes = check_pictures(true=(true, "K C H W"), reconstructions=(reconstructions, "K C H W"))
    for name, given in (("titles", titles), ("within", within)):
        if len(given) != sizes["K"]:
            raise ValueError(f"{name} must be K={sizes['K']} as there are images, got {len(given)}")
    starred = [title if known else f"{title} *" for title, known in zip(titles, within, strict=True)]
    return draw_image_rows((("transformed", true), ("reconstructed", reconstructions)), starred)


@typed
def draw_generative_units(units: Tensor, n_capsules: int = 12, n_units: int = 16) -> Figure:
    """Draw a row of pictures for each capsule; grey is 0, brighter adds light, darker takes it away.

    All share one scale, that of the strongest pixel shown.

    Args:
        units: those of :func:`generative_units`, ``[J, G, C, h, w]``. Templates (G = 1) are all shown in rows of eight,
            whatever the other arguments.
        n_capsules: largest number of rows.
        n_units: largest number of pictures in a row.
    """
    check_pictures(units=(units, "J G C h w"))
    check_at_least("n_capsules", n_capsules, 1)
    check_at_least("n_units", n_units, 1)
    if units.shape[1] == 1:
        n = min(8, len(units))
        units = torch.cat((units, units.new_zeros(-len(units) % n, *units.shape[1:])))
        units = units.squeeze(1).unflatten(0, (-1, n))
    else:
        units = units[:n_capsules, :n_units]
    sheet = tiled(pixels(0.5 + 0.5 * units / units.abs().max().clamp_min(1e-12)))
    height, width, _ = sheet.shape
    figure = new_figure(9.0, max(1.0, 9.0 * height / width))
    show(figure.subplots(), sheet)
    return figure
