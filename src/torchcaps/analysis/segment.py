"""Two overlapping images taken apart again, each from its own capsule."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.analysis.needs import decodable, decoder_of, observing
from torchcaps.checks import check_at_least, check_shapes


class Segmentation(NamedTuple):
    """What was found in pairs of images.

    Attributes:
        images: the pairs as the network sees them, ``[B, C, H, W]``.
        labels: the two true classes ``[B, 2]``.
        parts: the two images, ``[B, 2, C, H, W]``.
        predicted: the two predicted classes ``[B, 2]``, a right one in the place of its label.
        reconstructions: decoded from the predicted capsules, ``[B, 2, C, H, W]``.
    """

    images: Tensor
    labels: Tensor
    parts: Tensor
    predicted: Tensor
    reconstructions: Tensor

    @property
    def right(self) -> Tensor:
        """Where both classes were found, ``[B]`` bool."""
        return (self.predicted == self.labels).all(dim=1)


@observing
def segment(model: nn.Module, images: Tensor, labels: Tensor, parts: Tensor) -> Segmentation:
    """Find the two classes in each pair, and reconstruct each from its own capsule alone.

    Args:
        model: with a decoder.
        images: pairs ``[B, C, H, W]``, values 0 … 1; see :class:`torchcaps.data.Pairs`.
        labels: their two different classes ``[B, 2]`` int64.
        parts: the two images alone, ``[B, 2, C, H, W]``.

    Returns:
        :class:`Segmentation`.

    Raises:
        ValueError: the model has no decoder, the shapes do not fit, or there is one class.

    Source: Sabour et al. 2017, section 6, figure 5.
    """
    decoder = decoder_of(model)
    check_shapes(images=(images, "B C H W"), labels=(labels, "B K"), parts=(parts, "B K C H W"))
    if labels.shape[1] != 2:
        raise ValueError(f"labels must be [B, 2], got shape {list(labels.shape)}")
    scores, pose = decodable(model, images)
    check_at_least("the number of classes", scores.shape[1], 2)
    predicted = scores.topk(2, dim=1).indices
    crossed = (predicted == labels.flip(1)).any(dim=1, keepdim=True)
    predicted = torch.where(crossed, predicted.flip(1), predicted)
    return Segmentation(images, labels, parts, predicted, decoder.each(pose, predicted))


def red_and_green(parts: Tensor) -> Tensor:
    """Lay two images over each other in two colours: yellow where both are bright.

    Args:
        parts: ``[..., 2, C, H, W]``, values 0 … 1.

    Returns:
        ``[..., H, W, 3]``: red is the first (the mean of its channels), green the second, no blue.
    """
    red, green = parts.mean(dim=-3).unbind(dim=-3)
    return torch.stack((red, green, torch.zeros_like(red)), dim=-1)
