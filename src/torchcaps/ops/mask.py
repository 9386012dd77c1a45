"""The mask between class capsules and decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_classes, check_shapes, check_tensor
from torchcaps.ops.fused.constant import can_look, is_traced
from torchcaps.ops.precision import at_least_float32
from torchcaps.ops.routed import Routed, poses_of
from torchcaps.ops.squash import safe_norm


def multi_hot(target: Tensor, n_classes: int) -> Tensor:
    """Bring targets to the form ``[B, J]``, 1 where the class is present.

    Args:
        target: class indices ``[B]`` (int64), or already multi-hot ``[B, J]``.
        n_classes: J.

    Raises:
        ValueError: neither form; an index that is not in 0 … J − 1, or a multi-hot value not in 0 … 1
            (looked at on the CPU only, where looking does not stop the device; and not in code that is compiled,
            traced or within ``torch.func``, which cannot look).
    """
    check_tensor("target", target)
    look = can_look(target)
    if target.dim() == 1 and target.dtype == torch.int64:
        if look:
            check_classes("target", target, n_classes)
        return _one_hot(target, n_classes)
    if target.dim() == 2 and target.shape[1] == n_classes:
        if look and not 0 <= float(target.min()) <= float(target.max()) <= 1:
            raise ValueError(f"multi-hot target must hold 0 … 1, got {target.min()} … {target.max()}")
        return target
    raise ValueError(
        f"target must be class indices [B] (int64) or multi-hot [B, J={n_classes}], "
        f"got shape {list(target.shape)} of {target.dtype}"
    )


def _one_hot(classes: Tensor, n_classes: int) -> Tensor:
    """torch's own, which looks at the values, or where there may be none what does not have to."""
    if is_traced():
        return (classes.unsqueeze(-1) == torch.arange(n_classes, device=classes.device)).long()
    return F.one_hot(classes, n_classes)


def mask_capsules(capsules: Routed | Tensor, target: Tensor | None = None) -> Tensor:
    """Set every capsule but the target's to zero.

    Args:
        capsules: of the classes, or their poses alone, ``[B, J, D]``; matrices ``[B, J, 4, 4]`` are poses of size 16.
        target: class indices ``[B]`` or multi-hot ``[B, J]`` (several classes stay): the true ones,
            as in training. None keeps the most active capsule (of poses alone the longest), as in test.

    Returns:
        ``[B, J, D]``.

    Raises:
        ValueError: shapes that do not fit.

    Source: Sabour et al. 2017, section 4.1.
    """
    pose = poses_of(capsules)
    if pose.dim() == 4:
        check_shapes(pose=(pose, "B J 4 4"))
        pose = pose.flatten(2)
    sizes = check_shapes(pose=(pose, "B J D"))
    if target is None:
        activation = capsules.activation if isinstance(capsules, Routed) else safe_norm(at_least_float32(pose))
        check_shapes(pose=(pose, "B J D"), activation=(activation, "B J"))
        mask = _one_hot(activation.argmax(dim=1), sizes["J"])
    else:
        mask = multi_hot(target, sizes["J"])
        if len(mask) != sizes["B"]:
            raise ValueError(f"target must have B={sizes['B']} rows as pose has, got shape {list(target.shape)}")
    mask = mask.unsqueeze(2).to(pose.dtype)
    return torch.where(mask == 0, 0, pose * mask)  # for ∞ · 0 is no zero
