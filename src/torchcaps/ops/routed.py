"""The one type that every routing and every capsule layer returns."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import _register_namedtuple

Class = TypeVar("Class", bound=type)


def saveable(cls: Class) -> Class:
    """Let this named tuple of tensors be saved: in exported programs, for which torch has no public name, and alone."""
    _register_namedtuple(cls, serialized_type_name=f"torchcaps.{cls.__name__}")
    torch.serialization.add_safe_globals([cls])
    return cls


@saveable
class Routed(NamedTuple):
    """Capsules: what each one says (pose) and how sure it is that it is there (activation).

    Attributes:
        pose: ``[B, J, D]``, or ``[B, T, H, W, D]`` for a map of capsules.
        activation: ``[B, J]`` or ``[B, T, H, W]``, in 0 … 1. For vector capsules the pose's length.
        coupling: ``[B, I, J]``, of a map ``[B, H', W', T·K_h·K_w, J]``: how much of each lower capsule went to each
            upper one in the last iteration; None unless it was asked for, and for capsules that no routing made.
    """

    pose: Tensor
    activation: Tensor
    coupling: Tensor | None = None


def poses_of(capsules: Routed | Tensor) -> Tensor:
    """Return the poses of capsules; a tensor of poses alone is returned as it is.

    Raises:
        ValueError: neither capsules nor poses, as a whole network's output is.
    """
    if isinstance(capsules, Routed):
        return capsules.pose
    if isinstance(capsules, Tensor):
        return capsules
    raise ValueError(
        f"capsules must be a Routed or a tensor of poses, got a {type(capsules).__name__}: "
        "torchcaps.Routed(pose, activation) makes one, and output.capsules[-1] are the classes of a model's output"
    )
