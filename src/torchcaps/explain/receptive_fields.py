"""Receptive fields of capsules: where in the image each one looks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_choice
from torchcaps.explain.models import as_capsnet, unwrap
from torchcaps.layers.shapes import WINDOW, conv_size, receptive_field
from torchcaps.models import CapsNet, MatrixCapsNet
from torchcaps.typed import typed

#: (left, right, bottom, top) in pixels of the image, pixel 0 centred at 0.
Extent = tuple[float, float, float, float]


class ReceptiveField(NamedTuple):
    """Receptive fields along one axis of the image, in pixels.

    Attributes:
        first: centre of the first capsule's field.
        step: distance from one capsule's centre to the next.
        size: extent of a field.
        n: number of capsules along this axis.
    """

    first: float
    step: int
    size: int
    n: int

    @property
    def edges(self) -> tuple[float, float]:
        """Return where the map of capsules begins and ends if each takes ``step`` pixels about its centre."""
        return self.first - self.step / 2, self.first + (self.n - 0.5) * self.step


@typed
def receptive_fields_of(model: nn.Module, layer: int = -1) -> tuple[ReceptiveField, ReceptiveField]:
    """Compute the receptive fields of the capsules of one map, along rows and along columns.

    Pixel 0 has its centre at 0. For CapsNet on 28×28 the fields are 17 pixels wide, with centres at
    8, 10 … 18.

    Args:
        model: a CapsNet or MatrixCapsNet.
        layer: index of the map of capsules: 0 are the primary capsules, −1 those below the classes.

    Raises:
        ValueError: the model has no capsules, or no such layer.

    Example:
        >>> from torchcaps import build
        >>> rows, columns = receptive_fields_of(build("capsnet", (1, 28, 28), 10))
        >>> rows.size, rows.first, rows.step, rows.n
        (17, 8.0, 2, 6)
    """
    model = as_capsnet(model)
    maps: list[nn.Module] = [model.primary, *model.hidden]
    check_choice("layer", layer, range(-len(maps), len(maps)))
    layers = (model.conv, *model.stem, *maps[: 1 + layer % len(maps)])
    size = model.image_shape[1:]
    for each in layers:
        size = conv_size(size, *(getattr(each, name) for name in WINDOW))
    rows, columns = (ReceptiveField(*receptive_field(axis, layers), size[axis]) for axis in (0, 1))
    return rows, columns


@typed
def map_edges(model: nn.Module, layer: int = -1) -> Extent:
    """Return (left, right, bottom, top) of a map of capsules in pixels of the image, each place ``step`` pixels wide.

    Raises:
        ValueError: as :func:`receptive_fields_of`.
    """
    rows, columns = receptive_fields_of(model, layer)
    return *columns.edges, rows.edges[1], rows.edges[0]


@typed
def map_extent(model: nn.Module, images: Tensor, layer: int = -1) -> Extent:
    """Return (left, right, bottom, top) of a map of capsules in pixels; of a network of one's own all of the image.

    Raises:
        ValueError: as :func:`receptive_fields_of`.
    """
    if isinstance(unwrap(model), CapsNet | MatrixCapsNet):
        return map_edges(model, layer)
    height, width = images.shape[-2:]
    return -0.5, width - 0.5, height - 0.5, -0.5


def places_in(extent: Extent, size: tuple[int, int]) -> Tensor:
    """Compute the centres of the cells of a map in pixels, (row, column) ``[H·W, 2]``, row by row.

    Args:
        extent: (left, right, bottom, top) of the map.
        size: H and W, its rows and columns.
    """
    left, right, bottom, top = extent
    centres = [
        first + (last - first) / n * (torch.arange(n, dtype=torch.float32, device="cpu") + 0.5)
        for first, last, n in ((top, bottom, size[0]), (left, right, size[1]))
    ]
    return torch.cartesian_prod(*centres)


@typed
def capsule_places(model: nn.Module) -> Tensor:
    """Compute the centre of the receptive field of every capsule below the class capsules.

    Args:
        model: a CapsNet or MatrixCapsNet.

    Returns:
        (row, column) in pixels, ``[I, 2]``, in the order of the couplings: type, row, column.

    Raises:
        ValueError: the model has no capsules.
    """
    rows, columns = (
        field.first + field.step * torch.arange(field.n, dtype=torch.float32, device="cpu")
        for field in receptive_fields_of(model)
    )
    places = torch.cartesian_prod(rows, columns)  # [H·W, 2]
    return places.repeat(as_capsnet(model).map_shape[0], 1)
