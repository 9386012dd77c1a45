"""What every classifier returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchcaps.ops import Routed


class Output(NamedTuple):
    """One forward pass.

    Attributes:
        scores: ``[B, J]``; lengths 0 … 1 of the class capsules, or a CNN's logits. The largest is
            the prediction (for two digits the two largest).
        capsules: the capsules of every layer, the class capsules last; empty for a CNN.
    """

    scores: Tensor
    capsules: tuple[Routed, ...] = ()
