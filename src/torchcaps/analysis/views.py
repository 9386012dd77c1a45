"""How a class capsule's activation and pose follow the viewpoint."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import capsnet, observing
from torchcaps.checks import check_at_least, check_choice, check_shapes


class Views(NamedTuple):
    """What the class capsules say of one object from E elevations and A azimuths: means over its images
    from each viewpoint, such as those under several lightings; NaN where there is none.

    Attributes:
        label: the object's class.
        elevation: ascending, ``[E]``.
        azimuth: ascending, ``[A]``.
        activation: of every class capsule, ``[E, A, J]``.
        pose: of the capsule of the object's class, ``[E, A, D]``.
    """

    label: int
    elevation: Tensor
    azimuth: Tensor
    activation: Tensor
    pose: Tensor


@observing
def views(
    model: nn.Module, images: Tensor, label: int, elevation: Tensor, azimuth: Tensor, batch_size: int = 100
) -> Views:
    """Look at one object from all sides.

    Args:
        model: a CapsNet or MatrixCapsNet.
        images: of the object, ``[N, C, H, W]``, values 0 … 1.
        label: its class.
        elevation: of each image, ``[N]``, in any unit.
        azimuth: of each image, ``[N]``.
        batch_size: images at a time.

    Returns:
        :class:`Views`.

    Raises:
        ValueError: the model has no capsules, the images do not fit it, the shapes do not fit each other,
            or there is no such class.

    Source: Hinton, Sabour, Frosst 2018, section 5.1, asks how recognition depends on the viewpoint.
    """
    model = capsnet(model)
    check_shapes(images=(images, "N C H W"), elevation=(elevation, "N"), azimuth=(azimuth, "N"))
    check_at_least("batch_size", batch_size, 1)
    check_choice("label", label, range(model.classes.n_out))
    found = [model(part) for part in images.split(batch_size)]
    activation = torch.cat([output.scores for output in found])  # [N, J]
    pose = torch.cat([output.capsules[-1].pose[:, label].flatten(1) for output in found])  # [N, D]
    elevations, azimuths, means = mean_by_view(torch.cat((activation, pose), dim=1), elevation, azimuth)
    return Views(label, elevations, azimuths, *means.split((activation.shape[1], pose.shape[1]), dim=2))


def mean_by_view(values: Tensor, elevation: Tensor, azimuth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means over all images from the same viewpoint.

    Args:
        values: of each image, ``[N, K]``.
        elevation: ``[N]``.
        azimuth: ``[N]``.

    Returns:
        elevations ``[E]`` and azimuths ``[A]`` that occur, ascending; means ``[E, A, K]``, NaN where no
        image is from both.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_shapes(values=(values, "N K"), elevation=(elevation, "N"), azimuth=(azimuth, "N"))
    elevations, row = elevation.unique(return_inverse=True)
    azimuths, column = azimuth.unique(return_inverse=True)
    place = (row * len(azimuths) + column).to(values.device)
    total = values.new_zeros(len(elevations) * len(azimuths), values.shape[1]).index_add(0, place, values)
    n = place.bincount(minlength=len(total))
    means = total / n[:, None]  # 0 / 0 is NaN
    return elevations, azimuths, means.unflatten(0, (len(elevations), len(azimuths)))
