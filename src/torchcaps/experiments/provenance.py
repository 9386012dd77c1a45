"""Where a number comes from: versions, commit, device."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """Versions of what took part."""
    names = ("torchcaps", "torch", "numpy", "lightning")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def commit() -> str | None:
    """The commit of the source that ran, with "-dirty" where it was changed; None outside a checkout."""
    source = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=source, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # An installed copy may lie inside somebody else's checkout: then its files are not tracked.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", "../..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def device_in_words(device: torch.device) -> str:
    """Such as "NVIDIA H200" or "Intel(R) Xeon(R) Processor, 1 thread"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{platform.machine()} GPU (mps)"
    n = torch.get_num_threads()
    return f"{_cpu_name()}, {n} thread{'s' if n > 1 else ''}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
