"""Images as vectors in which neighbours ought to be of one class: pixels, principal components, codes, poses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from study.analysis.object_frame import mean_layout, object_frames, parts_in_frame, pose_code
from torchcaps.data.images import to_float
from torchcaps.explain import principal_components
from torchcaps.models import PlainAutoencoder, Transforming
from torchcaps.ops import Capsules, affine_inverse, warp

#: Dimensions that are kept of each kind of vector but pixels.
N_DIMS = 50


class Codes(NamedTuple):
    """The same images in one kind of vector.

    Attributes:
        name: what they are.
        train: of the unlabelled images, ``[N, D]``.
        val: to choose on, ``[V, D]``.
        test: to report on, ``[M, D]``.
    """

    name: str
    train: Tensor
    val: Tensor
    test: Tensor


Splits = tuple[Tensor, Tensor, Tensor]


def pixel_codes(images: Splits) -> list[Codes]:
    """Pixels as they are, and their principal components."""
    flat = [to_float(part).flatten(1) for part in images]
    return [Codes("pixels", *flat), reduced("principal components of pixels", flat)]


def model_codes(name: str, model: nn.Module, images: Splits) -> list[Codes]:
    """What an auto-encoder finds in the images: a plain one's code, or what capsules say.

    Of capsules: their poses as they are; as seen from the frame of the whole (:mod:`study.analysis.object_frame`);
    found again after the image was brought into that frame; and the pixels of that image.

    Args:
        name: of the run, for the names of the codes.
        model: in evaluation mode.
        images: uint8 ``[N, C, H, W]``, three times.

    Raises:
        ValueError: the model is no auto-encoder.
    """
    if isinstance(model, PlainAutoencoder):
        return [reduced(f"code of {name}", [_found(model, to_float(part)).pose.flatten(1) for part in images])]
    if not isinstance(model, Transforming):
        raise ValueError(f"{name} must be the run of an auto-encoder, got one of a {type(model).__name__}")
    unit, floats = model.unit, [to_float(part) for part in images]
    seen = [_found(model, part) for part in floats]
    layout = mean_layout(seen[0].pose, seen[0].activation, unit)
    back = [affine_inverse(object_frames(part.pose, part.activation, layout, unit)) for part in seen]
    framed = [_warped(part, matrix) for part, matrix in zip(floats, back, strict=True)]
    again = [_found(model, part) for part in framed]
    return [
        reduced(f"poses of {name}, as they are", [pose_code(p.pose, p.activation, unit) for p in seen]),
        reduced(f"poses of {name}", [parts_in_frame(p.pose, p.activation, layout, unit) for p in seen]),
        reduced(f"poses of {name}, found again", [parts_in_frame(p.pose, p.activation, layout, unit) for p in again]),
        reduced(f"pixels in the frame of {name}", [part.flatten(1) for part in framed]),
    ]


def reduced(name: str, parts: list[Tensor], n_dims: int = N_DIMS) -> Codes:
    """The principal components of the first part, of all of them."""
    plane = principal_components(parts[0], k=min(n_dims, parts[0].shape[1]))
    return Codes(name, *map(plane.project, parts))


def _warped(images: Tensor, matrix: Tensor) -> Tensor:
    """:func:`torchcaps.ops.warp` of many images."""
    return torch.cat([warp(*part) for part in zip(images.split(1000), matrix.split(1000), strict=True)])


@torch.no_grad()
def _found(model: PlainAutoencoder | Transforming, images: Tensor) -> Capsules:
    found = [model.encode(part) for part in images.split(1000)]
    return Capsules(torch.cat([each.pose for each in found]), torch.cat([each.activation for each in found]))
