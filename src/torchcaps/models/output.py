"""What every model returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from torchcaps.ops import Routed
from torchcaps.ops.routed import saveable


@saveable
class Output(NamedTuple):
    """One forward pass.

    Attributes:
        scores: ``[B, J]``; lengths 0 … 1 of the class capsules, or a CNN's logits. The largest is
            the prediction (for two digits the two largest).
        capsules: the capsules of every layer, the class capsules last; empty for a CNN.
    """

    scores: Tensor
    capsules: tuple[Routed, ...] = ()


@saveable
class Transformed(NamedTuple):
    """One forward pass of an auto-encoder that is given the transformation of its image.

    Attributes:
        images: as they should look transformed, ``[B, C, H, W]``.
        capsules: found in the untransformed images: poses ``[B, J, 2]`` (points) or ``[B, J, 3, 3]``, presences
            ``[B, J]`` as activation. A plain auto-encoder has its code there, ``[B, 1, D]``.
    """

    images: Tensor
    capsules: Routed


def as_output(output: Any) -> Any:
    """Return scores or capsules alone, as a network of one's own may return them, as an :class:`Output`."""
    if isinstance(output, Tensor):
        return Output(output)
    return Output(output.activation, (output,)) if isinstance(output, Routed) else output
