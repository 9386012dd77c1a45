"""What a model says of many images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.ops.checks import check_at_least


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, n_classes: int = 1, batch_size: int = 100) -> Tensor:
    """The classes that a model finds in images, the likeliest first.

    Args:
        model: any model of :mod:`torchcaps.models`; put it into evaluation mode before.
        images: ``[B, C, H, W]``, values 0 … 1.
        n_classes: classes K to be found in each image; 2 for pairs.
        batch_size: images that are looked at together.

    Returns:
        ``[B, K]`` int64.

    Raises:
        ValueError: ``n_classes`` or ``batch_size`` below 1.
    """
    check_at_least("n_classes", n_classes, 1)
    check_at_least("batch_size", batch_size, 1)
    return torch.cat([model(part).scores.topk(n_classes, dim=1).indices for part in images.split(batch_size)])
