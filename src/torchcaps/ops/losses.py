"""Training losses of capsule networks, and the mask between class capsules and decoder."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import (
    as_number,
    check_beside,
    check_choice,
    check_classes,
    check_floating,
    check_positive,
    check_shapes,
    check_tensor,
)
from torchcaps.ops.backends.tracing import has_values, is_traced
from torchcaps.ops.precision import at_least_float32, constant
from torchcaps.ops.squash import safe_norm
from torchcaps.types import Capsules, as_pose

MARGINS = ("linear", "sigmoid")
REDUCTIONS = ("mean", "sum", "none")


def margin_loss(
    lengths: Tensor,
    target: Tensor,
    *,
    positive: float = 0.9,
    negative: float = 0.1,
    absent_weight: float = 0.5,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Ask present classes for a length above ``positive`` and absent ones for one below ``negative``.

    L_k = T_k max(0, 0.9 − ‖v_k‖)² + 0.5 (1 − T_k) max(0, ‖v_k‖ − 0.1)², summed over k.

    Args:
        lengths: of the class capsules, as they are (no softmax), ``[B, J]``.
        target: class indices ``[B]``, or multi-hot ``[B, J]`` where several classes may be present.
        positive: margin m⁺.
        negative: margin m⁻.
        absent_weight: λ, which keeps early learning from shrinking all lengths.
        weight: factor on L_k of each class, ``[J]``, such as more than 1 for rare classes; all 1 by default.
        reduction: "mean" over the batch, "sum", or "none" for the loss of each image ``[B]``.

    Returns:
        A scalar, 0 for an empty batch; or ``[B]`` without reduction.

    Raises:
        ValueError: shapes that do not fit, a class out of range, a margin or weight that is no number, or an unknown
            ``reduction``.

    Example:
        >>> import torch
        >>> lengths = torch.tensor([[0.9, 0.1, 0.1], [0.4, 0.1, 0.6]])
        >>> margin_loss(lengths, torch.tensor([0, 0]), reduction="none")  # 0, and 0.5² + 0.5 · 0.5²
        tensor([0.0000, 0.3750])

    Source: Sabour et al. 2017, section 3, equation 4.
    """
    sizes = check_shapes(lengths=(lengths, "B J"))
    positive, negative = as_number("positive", positive), as_number("negative", negative)
    absent_weight = as_number("absent_weight", absent_weight)
    lengths = at_least_float32(lengths)
    present = multi_hot(target, sizes["J"], lengths).to(lengths.dtype)  # [B, J]
    if len(present) != sizes["B"]:
        raise ValueError(f"target must have B={sizes['B']} rows as lengths has, got shape {list(target.shape)}")
    too_short = (positive - lengths).clamp_min(0).square()
    too_long = (lengths - negative).clamp_min(0).square()
    loss = present * too_short + absent_weight * (1 - present) * too_long  # [B, J]
    if weight is not None:
        check_shapes(weight=(weight, "J"), lengths=(lengths, "B J"))
        loss = loss * weight.to(loss)
    return reduced(loss.sum(dim=1), reduction)


def spread_loss(
    activations: Tensor,
    target: Tensor,
    margin: float | Tensor,
    *,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Ask the true class for an activation larger than every other one's by ``margin``.

    L = Σ_{i≠t} max(0, m − (a_t − a_i))².

    Args:
        activations: of the class capsules, 0 … 1, ``[B, J]``.
        target: class indices, ``[B]``.
        margin: m, raised during training (:func:`spread_margin`); or a tensor ``[]`` of it, such as a CUDA graph reads
            anew in every replay; its value is checked on the CPU only.
        weight: factor on the loss of the images of each class, ``[J]``; all 1 by default.
        reduction: "mean" over the batch, weighted if there are weights, as ``torch.nn.functional.cross_entropy`` has
            it; "sum"; or "none" for the loss of each image ``[B]``.

    Returns:
        A scalar, 0 for an empty batch; or ``[B]`` without reduction. (The authors' released code also divides by
        the number of classes.)

    Raises:
        ValueError: shapes that do not fit, a class out of range, a margin that is not above 0, or an unknown
            ``reduction``.

    Example:
        >>> import torch
        >>> activations = torch.tensor([[0.8, 0.5, 0.1]])
        >>> spread_loss(activations, torch.tensor([0]), margin=0.5)  # (0.5 - 0.3)²
        tensor(0.0400)

    Source: Hinton, Sabour, Frosst 2018, section 4.1, equation 3.
    """
    sizes = check_shapes(activations=(activations, "B J"), target=(target, "B"))
    if isinstance(margin, Tensor) and not has_values(margin):
        check_shapes(margin=(margin, ""))
    else:
        check_positive("margin", margin)
        margin = as_number("margin", margin)
    activations = at_least_float32(activations)
    true = multi_hot(target, sizes["J"], activations).bool()  # [B, J]
    a_t = activations.where(true, 0).sum(dim=1, keepdim=True)  # [B, 1]; the gradient of an index would be scattered
    too_near = (margin - (a_t - activations)).clamp_min(0).square()
    loss = too_near.masked_fill(true, 0).sum(dim=1)  # [B]
    if weight is None:
        return reduced(loss, reduction)
    check_shapes(weight=(weight, "J"), activations=(activations, "B J"))
    check_choice("reduction", reduction, REDUCTIONS)
    of_image = (weight.to(loss) * true).sum(dim=1)
    total = reduced(loss * of_image, "none" if reduction == "none" else "sum")
    return total / of_image.sum().clamp_min(torch.finfo(loss.dtype).tiny) if reduction == "mean" else total


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Return the mean, the sum or all of the losses ``[B]``.

    Raises:
        ValueError: an unknown ``reduction``.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return loss
    return loss.sum() / max(1, len(loss)) if reduction == "mean" else loss.sum()


def spread_margin(progress: float, schedule: str = "linear") -> float:
    """Compute the margin m of the spread loss in the course of training.

    Args:
        progress: part of the run that is done, 0 … 1.
        schedule: "linear", from 0.2 to 0.9 (the paper); or "sigmoid", 0.2 + 0.79 · sigmoid(min(10, 40 p − 4)),
            the released code's, whose step/50,000 is 40 p for its 2,000,000 steps.

    Raises:
        ValueError: ``progress`` outside 0 … 1, or an unknown schedule.

    Example:
        >>> spread_margin(0.0), round(spread_margin(1.0), 3)
        (0.2, 0.9)
    """
    check_choice("schedule", schedule, MARGINS)
    progress = as_number("progress", progress)
    if not 0 <= progress <= 1:
        raise ValueError(f"progress must be within 0 … 1, got {progress}")
    if schedule == "linear":
        return 0.2 + 0.7 * progress
    return 0.2 + 0.79 / (1 + math.exp(-min(10.0, 40 * progress - 4)))


def reconstruction_loss(reconstruction: Tensor, image: Tensor) -> Tensor:
    """Sum squared differences over the pixels; mean over the batch.

    The paper adds it to the margin loss with weight 0.0005. Its authors' code divides the margin
    loss by 20 and not this one: on the paper's scale that is a weight of 0.01.

    Args:
        reconstruction: made from the masked capsules (:func:`mask_capsules`), ``[B, C, H, W]``.
        image: what it should be, values 0 … 1, ``[B, C, H, W]``.

    Returns:
        A scalar; 0 for an empty batch.

    Raises:
        ValueError: the shapes differ, or the image has integers.

    Example:
        >>> import torch
        >>> reconstruction_loss(torch.ones(2, 1, 3, 3), torch.zeros(2, 1, 3, 3))
        tensor(9.)

    Source: Sabour et al. 2017, section 4.1.
    """
    sizes = check_shapes(reconstruction=(reconstruction, "B C H W"), image=(image, "B C H W"))
    if not image.is_floating_point():
        raise ValueError(f"image must be floats 0 … 1 (torchcaps.data.to_float), got {image.dtype}")
    difference = at_least_float32(reconstruction) - at_least_float32(image)
    return difference.square().sum() / max(1, sizes["B"])


def pose_loss(found: Tensor, wanted: Tensor, unit: float = 1.0) -> Tensor:
    """Average the squared difference of poses over the batch, the capsules and the columns of their matrices.

    A direction counts relative to its own mean square over the batch, so that capsules do not come nearer by making
    their matrices small; a point (x, y, w) in units of (unit · w)², so that they do not by moving away from the centre.

    Args:
        found: ``[B, J, 2]``, points, or ``[B, J, 3, 3]``, matrices of two directions and a point; in pixels.
        wanted: of the same shape.
        unit: pixels in which points count.

    Returns:
        A scalar, float32 at least; NaN for an empty batch.

    Raises:
        ValueError: the shapes differ, or are not those of poses; a unit that is not positive.

    Example:
        >>> import torch
        >>> pose_loss(torch.zeros(1, 2, 2), torch.ones(1, 2, 2))
        tensor(2.)
    """
    check_floating("found", found)
    check_floating("wanted", wanted)
    check_beside("wanted", wanted, "found", found)
    if found.shape != wanted.shape or list(found.shape[2:]) not in ([2], [3, 3]):
        raise ValueError(
            f"found and wanted must both be [B, J, 2] or [B, J, 3, 3], got {list(found.shape)} and {list(wanted.shape)}"
        )
    check_positive("unit", unit)
    unit = as_number("unit", unit)
    found, wanted = at_least_float32(found), at_least_float32(wanted)
    if found.dim() == 3:  # points are columns (x, y, 1)
        found, wanted = (F.pad(pose, (0, 1), value=1.0).unsqueeze(-1) for pose in (found, wanted))
    weights = constant((1.0, 1.0, unit), wanted).unsqueeze(1)
    error = ((found - wanted) * weights).square().sum(dim=-2).mean(dim=0)  # [J, columns]
    squares = (wanted * weights).square().mean(dim=0)  # [J, 3, columns]
    size = torch.cat((squares[..., :-1].sum(dim=-2), squares[..., 2, -1:]), dim=-1)
    return (error / size).mean()


def multi_hot(target: Tensor, n_classes: int, like: Tensor) -> Tensor:
    """Bring targets to the form ``[B, J]``, 1 where the class is present.

    Args:
        target: class indices ``[B]`` (int64), or already multi-hot ``[B, J]``.
        n_classes: J.
        like: what it is the target of, on the same device.

    Raises:
        ValueError: neither form; another device; an index that is not in 0 … J − 1, or a multi-hot value not in 0 … 1
            (looked at on the CPU only, where looking does not stop the device; and not in code that is compiled,
            traced or within ``torch.func``, which cannot look).
    """
    check_tensor("target", target)
    check_beside("target", target, "the first argument", like)
    look = has_values(target)
    if target.dim() == 1 and target.dtype == torch.int64:
        if look:
            check_classes("target", target, n_classes)
        return _one_hot(target, n_classes)
    if target.dim() == 2 and target.shape[1] == n_classes:
        check_values(target, "multi-hot target must hold")
        return target
    raise ValueError(
        f"target must be class indices [B] (int64) or multi-hot [B, J={n_classes}], "
        f"got shape {list(target.shape)} of {target.dtype}"
    )


def check_values(target: Tensor, wants: str) -> None:
    """Refuse a target with values outside 0 … 1, where values can be read.

    Raises:
        ValueError: saying what it ``wants``, and what was got.
    """
    if not has_values(target):
        return
    lowest, highest = (float(x) for x in target.detach().aminmax())
    if not 0 <= lowest <= highest <= 1:
        raise ValueError(f"{wants} 0 … 1, got {lowest:g} … {highest:g}")


def _one_hot(classes: Tensor, n_classes: int) -> Tensor:
    """Encode classes by torch's function, which reads the values, or without reading them where there may be none."""
    if is_traced():
        return (classes.unsqueeze(-1) == torch.arange(n_classes, device=classes.device)).long()
    return F.one_hot(classes, n_classes)


def mask_capsules(capsules: Capsules | Tensor, target: Tensor | None = None) -> Tensor:
    """Set every capsule but the target's to zero.

    Args:
        capsules: of the classes, or their poses alone, ``[B, J, D]``; matrices ``[B, J, 4, 4]`` are poses of size 16.
        target: class indices ``[B]`` or multi-hot ``[B, J]`` (several classes stay): the true ones,
            as in training. None keeps the most active capsule (of poses alone the longest), as in test.

    Returns:
        ``[B, J, D]``.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> import torch
        >>> pose = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> mask_capsules(pose, torch.tensor([0]))
        tensor([[[1., 2.],
                 [0., 0.]]])

    Source: Sabour et al. 2017, section 4.1.
    """
    pose = as_pose(capsules)
    name = "capsules.pose" if isinstance(capsules, Capsules) else "capsules"
    check_tensor(name, pose)
    if pose.dim() == 4:
        check_shapes(**{name: (pose, "B J 4 4")})
        pose = pose.flatten(2)
    sizes = check_shapes(**{name: (pose, "B J D")})
    check_floating(name, pose)
    if target is None:
        if not (sizes["J"] and sizes["D"]):
            raise ValueError(f"{name} must be [B, J, D] with one class or more, got shape {list(pose.shape)}")
        activation = capsules.activation if isinstance(capsules, Capsules) else safe_norm(at_least_float32(pose))
        check_shapes(**{name: (pose, "B J D"), "capsules.activation": (activation, "B J")})
        mask = _one_hot(activation.argmax(dim=1), sizes["J"])
    else:
        mask = multi_hot(target, sizes["J"], pose)
        if mask.shape[0] != sizes["B"]:  # len would fix the size of an exported batch
            raise ValueError(f"target must have B={sizes['B']} rows as capsules have, got shape {list(target.shape)}")
    mask = mask.unsqueeze(2).to(pose.dtype)
    return torch.where(mask == 0, 0, pose * mask)  # for ∞ · 0 is no zero
