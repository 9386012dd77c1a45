"""What every operator of a routing has in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def computed_in(*tensors: Tensor) -> torch.dtype:
    """The dtype that tensors are routed in: float64 where one of them has it, float32 otherwise."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def refuse_forward_derivative(*tensors: Tensor | None) -> None:
    """Say that an operator has none where ``torch.compile`` hid from "auto" that one is asked for; torch would take 0.

    Raises:
        NotImplementedError: a tensor has a tangent.
    """
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError("compiled routing has no forward derivative: take impl='reference' for one")


def refuse_second_derivative(routed_backward: Any, impl: str) -> None:
    """Let the gradient of an operator say that it has none itself."""

    def refuse(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError(f"impl='{impl}' has no second derivative: take impl='reference' where one is needed")

    routed_backward.register_autograd(refuse)
