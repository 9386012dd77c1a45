"""How good a classifier's probabilities are: whether they rank images rightly, and whether they are to be believed.

Of a network with capsules the probability of a class is its capsule's length or activation, as the papers read it: that
the class is there. Each lies in 0 … 1 by itself, so those of an image do not sum to 1. Of a CNN, and of
routing whose activations are logits, it is the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

#: Bins of confidence, all of one width, as in Guo et al. 2017.
N_BINS = 15


def area_under_roc(labels: Tensor, probabilities: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Compute the area under the ROC curve of each class against the rest, and its mean.

    0.5 is what guessing comes to. It asks for the order of images alone, so a CNN and capsules can be compared.
    torchmetrics computes it, as it comes with Lightning.

    Args:
        labels: ``[N, J]`` bool, whether an image shows a class.
        probabilities: ``[N, J]``, 0 … 1.
        classes: their names.

    Returns:
        ``auc``: by class, None where all images show it, or none does; ``auc_macro``: the mean over the others, None
        where there are none. Both are None for probabilities that are not finite.

    Example:
        >>> import torch
        >>> labels = torch.tensor([[True, False], [True, False], [False, False]])
        >>> area_under_roc(labels, torch.tensor([[0.9, 0.1], [0.4, 0.2], [0.6, 0.1]]), ("cat", "dog"))
        {'auc': {'cat': 0.5, 'dog': None}, 'auc_macro': 0.5}
    """
    from torchmetrics.functional.classification import binary_auroc

    areas = dict[str, float | None]()
    for name, there, scores in zip(classes, labels.cpu().T, as_probabilities(probabilities).T, strict=True):
        known = bool(there.any()) and not bool(there.all()) and bool(scores.isfinite().all())
        areas[name] = binary_auroc(scores, there.long()).item() if known else None
    some = [area for area in areas.values() if area is not None]
    return {"auc": areas, "auc_macro": sum(some) / len(some) if some else None}


def calibration_error(confidence: Tensor, right: Tensor) -> float | None:
    """Compute the expected calibration error: how far confidence lies from the share that is right, on average.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, equation 3, with 15 bins.

    Args:
        confidence: ``[N]``, 0 … 1.
        right: ``[N]`` bool.

    Returns:
        0 … 1; None without images, or where a confidence is not finite.

    Example:
        >>> import torch
        >>> error = calibration_error(torch.tensor([0.9, 0.9, 0.9, 0.9]), torch.tensor([True, True, True, False]))
        >>> round(error, 4)
        0.15
    """
    from torchmetrics.functional.classification import binary_calibration_error

    confidence = as_probabilities(confidence)
    if not len(confidence) or not confidence.isfinite().all():
        return None
    return binary_calibration_error(confidence, right.cpu().long(), n_bins=N_BINS, norm="l1").item()


def confidences(labels: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is taken as confidence, and whether it is borne out.

    Args:
        labels: ``[N]``, or ``[N, J]`` bool of images with several labels.
        probabilities: ``[N, J]``.

    Returns:
        Of one label an image: the probability of the predicted class ``[N]``, and whether that is the true one. Of
        several: every probability ``[N · J]``, and whether the image shows that class.
    """
    if labels.dim() == 2:
        return probabilities.flatten(), labels.flatten()
    largest, predicted = (found.squeeze(1) for found in probabilities.topk(1, dim=1))
    return largest, predicted == labels


def as_probabilities(values: Tensor) -> Tensor:
    """Return float64 values on the CPU, none beyond 0 … 1 by rounding.

    torchmetrics takes a batch with a value beyond for logits. Of float32 logits its sigmoid makes all large ones equal.
    """
    return values.detach().cpu().double().clamp(0, 1)
