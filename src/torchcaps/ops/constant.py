"""Known numbers as tensors, without a copy from the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def constant(numbers: Sequence[float], like: Tensor) -> Tensor:
    """A few numbers ``[n]``, of the dtype and on the device of ``like``, written there.

    ``like.new_tensor(numbers)`` would copy them from the host: that waits for a GPU, and is an error while a CUDA graph
    is captured.
    """
    return torch.stack([like.new_full((), number) for number in numbers])
