"""In which precision routing and warping compute, whatever the caller's is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchcaps.ops.fused.constant import constant_when_compiled


def at_least_float32(x: Tensor) -> Tensor:
    """Widen half precision: sums over many numbers lose too much in it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Where autocast rounds nothing on the device of x; some, such as "meta", know of no autocast.

    Only where it is on: else programs of ``torch.export`` and ONNX would have regions that change nothing. What is
    exported without autocast has none, so that autocast rounds there: export under autocast what is to run under it.
    """
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if _autocasts(kind) else nullcontext()


@constant_when_compiled  # torch.compile of torch 2.11, for one, cannot trace the question
def _autocasts(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
