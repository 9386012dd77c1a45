"""In which precision ops compute, whatever the caller's is; and known numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchcaps.ops.backends.tracing import constant_when_compiled


def at_least_float32(x: Tensor) -> Tensor:
    """Widen half precision: sums over many numbers lose too much in it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def computed_in(*tensors: Tensor) -> torch.dtype:
    """Return the dtype that tensors are routed in: float64 where one of them has it, float32 otherwise."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Make a context without autocast on the device of x; some, such as "meta", know of no autocast.

    Only where it is on: else programs of ``torch.export`` and ONNX would have regions that change nothing. What is
    exported without autocast has none, so that autocast rounds there: export under autocast what is to run under it.
    """
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if autocasts(kind) else nullcontext()


@constant_when_compiled  # torch.compile of torch 2.11, for one, cannot trace the question
def autocasts(kind: str) -> bool:
    """Tell whether autocast is on for this kind of device."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def constant(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Write a few numbers ``[n]``, of the dtype and on the device of ``like``, without a copy from the host.

    ``like.new_tensor(numbers)`` would copy them from the host: that waits for a GPU, and is an error while a CUDA graph
    is captured.
    """
    return torch.stack([like.new_full((), number) for number in numbers])
