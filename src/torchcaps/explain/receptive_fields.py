"""Receptive fields of capsules: where in the image each one looks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_choice
from torchcaps.explain.models import as_capsnet
from torchcaps.layers.shapes import WINDOW, conv_size, receptive_field


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


def receptive_fields_of(model: nn.Module, layer: int = -1) -> tuple[ReceptiveField, ReceptiveField]:
    """Compute the receptive fields of the capsules of one map, along rows and along columns.

    Pixel 0 has its centre at 0. For CapsNet on 28×28 the fields are 17 pixels wide, with centres at
    8, 10 … 18.

    Args:
        model: a CapsNet or MatrixCapsNet.
        layer: index of the map of capsules: 0 are the primary capsules, −1 those below the classes.

    Raises:
        ValueError: the model has no capsules, or no such layer.
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


def map_edges(model: nn.Module, layer: int = -1) -> tuple[float, float, float, float]:
    """Return (left, right, bottom, top) of a map of capsules in pixels of the image, each place ``step`` pixels wide.

    Raises:
        ValueError: as :func:`receptive_fields_of`.
    """
    rows, columns = receptive_fields_of(model, layer)
    return *columns.edges, rows.edges[1], rows.edges[0]


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
