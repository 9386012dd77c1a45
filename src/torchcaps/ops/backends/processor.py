"""The processor of this machine."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path


def processor() -> str:
    """Return the processor's name."""
    named = (line for line in _told() if line.startswith("model name"))
    return next((line.split(":", 1)[1].strip() for line in named), platform.processor() or platform.machine())


def amd_family() -> int:
    """Return the family of an AMD processor, as 25 for Zen 3 and 4 and 26 for Zen 5; 0 of any other processor."""
    told = (platform.processor(), *_told())  # the first as Windows says it: AMD64 Family 26 Model 68 …, AuthenticAMD
    if not any("AuthenticAMD" in line for line in told):
        return 0
    found = (re.search(r"^cpu family\s*: (\d+)|\bFamily (\d+)", line) for line in told)
    return next((int(match[1] or match[2]) for match in found if match), 0)


@functools.cache
def _told() -> tuple[str, ...]:
    """Return what Linux says of its processors, nothing elsewhere."""
    try:
        return tuple(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
    except OSError:
        return ()
