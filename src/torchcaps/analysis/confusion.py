"""Which class is taken for which."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_classes, check_shapes


def confusion_matrix(labels: Tensor, predicted: Tensor, n_classes: int) -> Tensor:
    """Count how often each class was predicted for each true one.

    Args:
        labels: true classes, ``[B]``, integers.
        predicted: predicted classes, ``[B]``, integers.
        n_classes: J.

    Returns:
        Counts ``[J, J]`` int64: the row is the true class, the column the predicted one.

    Raises:
        ValueError: shapes that do not fit, or a class that is not in 0 … J − 1.
    """
    check_shapes(labels=(labels, "B"), predicted=(predicted, "B"))
    for name, classes in (("labels", labels), ("predicted", predicted)):
        check_classes(name, classes, n_classes)
    return torch.bincount(labels.long() * n_classes + predicted.long(), minlength=n_classes**2).view(
        n_classes, n_classes
    )
