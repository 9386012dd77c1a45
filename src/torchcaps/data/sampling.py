"""How often each training image is shown, so that rare classes are shown as often as others."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_weights(labels: Tensor) -> Tensor:
    """Weight each image by 1 / how many images have its class: drawn so, all classes are shown equally often.

    Args:
        labels: classes ``[N]``, or several labels an image ``[N, J]`` (bool). An image with several counts as one of
            its rarest; those without any are a class of their own.

    Returns:
        ``[N]`` float64, on the CPU.

    Example:
        >>> import torch
        >>> balanced_weights(torch.tensor([0, 0, 1])).tolist()
        [0.5, 0.5, 1.0]
    """
    labels = labels.cpu()
    if labels.dim() == 2:
        counts = labels.sum(dim=0).double()  # [J]
        none = ~labels.any(dim=1)
        share = torch.where(labels, 1 / counts, 0).amax(dim=1)  # [N]
        return torch.where(none, 1 / none.sum().double(), share)
    return 1 / torch.bincount(labels).double()[labels]
