"""Where in the image a capsule looks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import capsnet
from torchcaps.layers import ConvCaps


class Field(NamedTuple):
    """Receptive fields along one axis of the image, in pixels.

    Attributes:
        first: centre of the first capsule's field.
        step: from one capsule's centre to the next.
        size: extent of a field.
        n: capsules along this axis.
    """

    first: float
    step: int
    size: int
    n: int

    @property
    def edges(self) -> tuple[float, float]:
        """Where the map of capsules begins and ends when each takes ``step`` pixels about its centre."""
        return self.first - self.step / 2, self.first + (self.n - 0.5) * self.step


def receptive_fields_of(model: nn.Module) -> tuple[Field, Field]:
    """Receptive fields of the capsules below the class capsules, along rows and along columns.

    Pixel 0 has its centre at 0. For CapsNet on 28×28 the fields are 17 pixels wide, with centres at
    8, 10 … 18.

    Raises:
        ValueError: the model is no CapsNet.
    """
    model = capsnet(model)
    layers = [(model.conv.kernel_size, 1, model.conv.padding)]
    layers += [((model.primary.kernel_size,) * 2, model.primary.stride, (model.primary.padding,) * 2)]
    for layer in model.hidden:
        assert isinstance(layer, ConvCaps)
        layers.append((layer.kernel_size, layer.stride, (0, 0)))
    fields = []
    for axis in (0, 1):
        first, step, size = 0.0, 1, 1
        for kernel, stride, padding in layers:
            first += ((kernel[axis] - 1) / 2 - int(padding[axis])) * step
            size += (kernel[axis] - 1) * step
            step *= stride
        fields.append(Field(first, step, size, model.map_shape[1 + axis]))
    return fields[0], fields[1]


def capsule_places(model: nn.Module) -> Tensor:
    """Centre of the receptive field of every capsule below the class capsules.

    Args:
        model: a CapsNet.

    Returns:
        (row, column) in pixels, ``[I, 2]``, in the order of the couplings: type, row, column.

    Raises:
        ValueError: the model is no CapsNet.
    """
    rows, columns = (
        field.first + field.step * torch.arange(field.n, dtype=torch.float32) for field in receptive_fields_of(model)
    )
    places = torch.cartesian_prod(rows, columns)  # [H·W, 2]
    return places.repeat(capsnet(model).map_shape[0], 1)
