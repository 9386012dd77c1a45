"""Losses and the measure of networks that say of every pixel what is there."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import as_number, check_flag, check_floating, check_positive, check_shapes
from torchcaps.ops.losses import check_values, margin_loss, reduced
from torchcaps.ops.precision import at_least_float32

#: Lengths count as at least this far from 0 and from 1 in logarithms (Keras' ε).
_EPS = 1e-7


def dice_loss(lengths: Tensor, target: Tensor, *, smooth: float = 1e-5, reduction: str = "mean") -> Tensor:
    """Ask for lengths that overlap with the true masks, whatever share of the image these are.

    L = 1 − (2 Σ_p y_p l_p + ε) / (Σ_p y_p + Σ_p l_p + ε) for each class, over the pixels p of an image; the mean over
    the classes.

    Args:
        lengths: of the class capsules, or other scores 0 … 1, ``[B, J, H, W]``.
        target: masks y, 0 … 1, ``[B, J, H, W]``.
        smooth: ε, which gives a class that is neither there nor found a loss of 0.
        reduction: "mean" over the batch, "sum", or "none" for the loss of each image ``[B]``.

    Returns:
        A scalar, 0 for an empty batch; or ``[B]`` without reduction. (The authors of SegCaps put logits of the lengths
        into the sums; here they are lengths.)

    Raises:
        ValueError: shapes that do not fit, masks outside 0 … 1, a ``smooth`` that is not positive, an unknown
            ``reduction``.

    Example:
        >>> import torch
        >>> lengths = torch.tensor([[[[0.5, 1.0, 0.5]]]])
        >>> dice_loss(lengths, torch.tensor([[[[1, 1, 0]]]]))  # 1 − 2 · 1.5 / (2 + 2)
        tensor(0.2500)

    Source: Milletari, Navab, Ahmadi 2016, V-Net, arXiv 1606.04797, without the squares in their denominator.
    """
    lengths, target = _checked("lengths", lengths, target)
    check_positive("smooth", smooth)
    smooth = as_number("smooth", smooth)
    both = (lengths * target).sum(dim=(2, 3))  # [B, J]
    total = lengths.sum(dim=(2, 3)) + target.sum(dim=(2, 3))
    return reduced((1 - (2 * both + smooth) / (total + smooth)).mean(dim=1), reduction)


def weighted_cross_entropy(
    lengths: Tensor, target: Tensor, *, positive_weight: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Take the length of a class capsule as the probability of its class at a pixel, and ask for the true one.

    L = −w y log l − (1 − y) log(1 − l), the mean over the classes and pixels of an image.

    Args:
        lengths: l of the class capsules, or other scores 0 … 1, ``[B, J, H, W]``. They count as at least 1e-7 and at
            most 1 − 1e-7, so that logarithms are finite.
        target: masks y, 0 … 1, ``[B, J, H, W]``.
        positive_weight: w, such as background pixels for each pixel of a class that is small.
        reduction: "mean" over the batch, "sum", or "none" for the loss of each image ``[B]``.

    Returns:
        A scalar, 0 for an empty batch; or ``[B]`` without reduction.

    Raises:
        ValueError: shapes that do not fit, masks outside 0 … 1, a weight that is not positive, an unknown
            ``reduction``.

    Example:
        >>> import torch
        >>> lengths = torch.tensor([[[[0.5, 0.75]]]])
        >>> weighted_cross_entropy(lengths, torch.tensor([[[[1, 0]]]]), positive_weight=2)  # (2 ln 2 + ln 4) / 2
        tensor(1.3863)

    Source: LaLonde, Bagci 2018, arXiv 1804.04241, and its code.
    """
    lengths, target = _checked("lengths", lengths, target)
    check_positive("positive_weight", positive_weight)
    weight = as_number("positive_weight", positive_weight)
    lengths = lengths.clamp(_EPS, 1 - _EPS)
    loss = -(weight * target * lengths.log() + (1 - target) * (1 - lengths).log())
    return reduced(loss.mean(dim=(1, 2, 3)), reduction)


def pixel_margin_loss(
    lengths: Tensor,
    target: Tensor,
    *,
    positive: float = 0.9,
    negative: float = 0.1,
    absent_weight: float = 0.5,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Apply :func:`margin_loss` to every pixel, and average over the pixels of an image.

    Args:
        lengths: of the class capsules, ``[B, J, H, W]``.
        target: masks, 0 … 1, ``[B, J, H, W]``; several classes may be at one pixel.
        positive: margin m⁺.
        negative: margin m⁻.
        absent_weight: λ.
        weight: factor on the loss of each class, ``[J]``; all 1 by default.
        reduction: "mean" over the batch, "sum", or "none" for the loss of each image ``[B]``.

    Returns:
        A scalar, 0 for an empty batch; or ``[B]`` without reduction. (The authors of SegCaps have half of it.)

    Raises:
        ValueError: shapes that do not fit, masks outside 0 … 1, and as :func:`margin_loss`.

    Example:
        >>> import torch
        >>> lengths = torch.tensor([[[[0.4, 0.6]]]])
        >>> pixel_margin_loss(lengths, torch.tensor([[[[1, 0]]]]))  # (0.5² + 0.5 · 0.5²) / 2
        tensor(0.1875)

    Source: Sabour et al. 2017, equation 4; LaLonde, Bagci 2018, arXiv 1804.04241, and its code.
    """
    lengths, target = _checked("lengths", lengths, target)
    n_images, n_classes, height, width = lengths.shape
    each = margin_loss(
        lengths.movedim(1, 3).reshape(-1, n_classes),
        target.movedim(1, 3).reshape(-1, n_classes),
        positive=positive,
        negative=negative,
        absent_weight=absent_weight,
        weight=weight,
        reduction="none",
    )
    return reduced(each.view(n_images, height * width).mean(dim=1), reduction)


@torch.no_grad()
def dice_score(scores: Tensor, target: Tensor, *, threshold: float = 0.5, per_image: bool = False) -> Tensor:
    """Measure the overlap of predicted and true masks: ``2 |A ∩ B| / (|A| + |B|)``, the Sørensen-Dice coefficient.

    Args:
        scores: of each class at each pixel, ``[B, J, H, W]``.
        target: masks; above ½ is inside, ``[B, J, H, W]``.
        threshold: a class is predicted where its score is above it.
        per_image: measure each image by itself; else all pixels of the batch together.

    Returns:
        ``[J]``, or ``[B, J]`` for each image: 1 where a class is neither there nor predicted.

    Raises:
        ValueError: shapes that do not fit, masks outside 0 … 1, a threshold that is no number.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[[[0.9, 0.8, 0.2]]]])
        >>> dice_score(scores, torch.tensor([[[[1, 0, 0]]]]))  # 2 · 1 / (2 + 1)
        tensor([0.6667])

    Source: Dice 1945, Measures of the Amount of Ecologic Association Between Species, Ecology 26.
    """
    scores, target = _checked("scores", scores, target)
    check_flag("per_image", per_image)
    found, there = scores > as_number("threshold", threshold), target > 0.5
    over = (2, 3) if per_image else (0, 2, 3)
    both, total = (found & there).sum(dim=over), found.sum(dim=over) + there.sum(dim=over)
    return torch.where(total == 0, 1.0, 2 * both / total.clamp_min(1)).to(scores.dtype)


def _checked(name: str, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and masks in float32 at least.

    Raises:
        ValueError: shapes that differ, or an axis of size 0 other than the batch, scores that are integers, masks
            outside 0 … 1 (looked at on the CPU only, and not in compiled code).
    """
    sizes = check_shapes(**{name: (scores, "B J H W"), "target": (target, "B J H W")})
    check_floating(name, scores)
    if not (sizes["J"] and sizes["H"] and sizes["W"]):
        raise ValueError(f"{name} must have a class and a pixel at least, got shape {list(scores.shape)}")
    check_values(target, "target must hold")
    scores = at_least_float32(scores)
    return scores, target.to(scores.dtype)
