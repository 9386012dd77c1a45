"""Backend "cpu": C++ compiled on first use for the machine it runs on."""

from torchcaps.ops.fused.cpu.library import load, why_not, wrong_devices

__all__ = ["load", "why_not", "wrong_devices"]
