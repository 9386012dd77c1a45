"""The one type that every routing and every capsule layer returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Routed(NamedTuple):
    """Capsules: what each one says (pose) and how sure it is that it is there (activation).

    Attributes:
        pose: ``[B, J, D]``, or ``[B, T, H, W, D]`` for a map of capsules.
        activation: ``[B, J]`` or ``[B, T, H, W]``, in 0 … 1. For vector capsules the pose's length.
        coupling: ``[B, I, J]``, how much of each lower capsule went to each upper one in the last
            iteration; None unless it was asked for, and for capsules that no routing made.
    """

    pose: Tensor
    activation: Tensor
    coupling: Tensor | None = None
