"""Backend "cpu": C++ compiled on first use for the machine it runs on."""

from torchcaps.ops.fused.cpu.library import Unavailable, load, why_not

__all__ = ["Unavailable", "load", "why_not"]
