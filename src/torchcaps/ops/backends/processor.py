"""The processor of this machine."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's name."""
    named = (line for line in _told() if line.startswith("model name"))
    return next((line.split(":", 1)[1].strip() for line in named), platform.processor() or platform.machine())


def is_amd() -> bool:
    """Tell whether AMD has made it."""
    return "AuthenticAMD" in platform.processor() or any("AuthenticAMD" in line for line in _told())


@functools.cache
def _told() -> tuple[str, ...]:
    """Return what Linux says of its processors, nothing elsewhere."""
    try:
        return tuple(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
    except OSError:
        return ()
