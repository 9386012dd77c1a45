"""What the decoder sees in an image, class by class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import decodable, decoder_of, observing
from torchcaps.checks import check_shapes


class Reconstructions(NamedTuple):
    """Images beside what their capsules say.

    Attributes:
        images: ``[B, C, H, W]``.
        labels: true classes ``[B]``.
        predicted: predicted classes ``[B]``.
        from_predicted: decoded from the predicted class's capsule, ``[B, C, H, W]``.
        from_true: decoded from the true class's capsule, ``[B, C, H, W]``.
    """

    images: Tensor
    labels: Tensor
    predicted: Tensor
    from_predicted: Tensor
    from_true: Tensor


@observing
def reconstruct(model: nn.Module, images: Tensor, labels: Tensor) -> Reconstructions:
    """Decode each image twice: as what it was taken for, and as what it is.

    Args:
        model: with a decoder.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: true classes ``[B]`` int64.

    Returns:
        :class:`Reconstructions`.

    Raises:
        ValueError: the model has no decoder, or the shapes do not fit.

    Source: Sabour et al. 2017, section 4.1, figure 3.
    """
    decoder = decoder_of(model)
    check_shapes(images=(images, "B C H W"), labels=(labels, "B"))
    scores, pose = decodable(model, images)
    predicted = scores.argmax(dim=1)
    both = decoder.each(pose, torch.stack((predicted, labels), dim=1))  # [B, 2, C, H, W]
    return Reconstructions(images, labels, predicted, both[:, 0], both[:, 1])
