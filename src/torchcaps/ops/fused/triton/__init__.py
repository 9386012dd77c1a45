"""Backend "triton": kernels for CUDA devices."""

from torchcaps.ops.fused.triton.library import is_interpreted, load, why_not, wrong_devices

__all__ = ["is_interpreted", "load", "why_not", "wrong_devices"]
