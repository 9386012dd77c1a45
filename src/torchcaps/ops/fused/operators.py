"""What every operator of a routing has in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def computed_in(*tensors: Tensor) -> torch.dtype:
    """The dtype that tensors are routed in: float64 where one of them has it, float32 otherwise."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def refuse_second_derivative(routed_backward: Any, impl: str) -> None:
    """Let the gradient of an operator say that it has none itself."""

    def refuse(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError(f"impl='{impl}' has no second derivative: take impl='reference' where one is needed")

    routed_backward.register_autograd(refuse)
