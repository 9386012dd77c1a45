"""Backend "triton": kernels for CUDA devices."""

from torchcaps.ops.fused.triton.library import is_interpreted, load, why_not, wrong_devices
from torchcaps.ops.fused.triton.trust import switch, why_not_auto

__all__ = ["is_interpreted", "load", "switch", "why_not", "why_not_auto", "wrong_devices"]
