"""What is there: versions, system, processor, compiler, GPUs, and room in the cache folder."""

from __future__ import annotations

import os
import platform
import shutil
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torchcaps import __version__
from torchcaps.ops.backends import build, verdicts
from torchcaps.ops.backends.errors import Unavailable
from torchcaps.ops.backends.processor import processor
from torchcaps.ops.backends.shipped import shipped

#: What the layers need beside torch, what speeds them up, and what training and the command line need.
PACKAGES = ("numpy", "triton", "lightning", "jsonargparse", "pooch", "scikit-learn", "scipy", "matplotlib", "pillow")
ABSENT = "not installed"
#: What the environment says to torch, to triton or to torchcaps, if it says anything.
VARIABLES = ("TORCHCAPS_TRITON", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "CC", "CXX")


def versions() -> dict[str, str]:
    """Return the versions of torchcaps and of what it stands on."""
    found = {"torchcaps": __version__, "python": platform.python_version(), "torch": torch.__version__}
    return found | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ABSENT


def machine() -> dict[str, Any]:
    """System, processor, compiler, and where compiled code is kept."""
    folder = build.library_folder()
    try:
        compiler = build.compiler()
    except Unavailable as error:
        compiler = str(error)
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "compiler": compiler,
        "library": _library(),
        "folder": str(folder),
        "free_bytes": _free(folder),
        "writable": _is_writable(folder),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _library() -> str:
    """Return where the compiled routing of CPUs comes from."""
    try:
        found = shipped("dynamic")
    except ValueError as error:
        return str(error)
    return "compiled on this machine" if found is None else f"{found.name}, which came with the wheel"


def gpus() -> dict[str, Any]:
    """Every GPU that torch sees; or what there is to be said where it sees none."""
    with warnings.catch_warnings(record=True) as said:  # of a driver that is too old
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    found: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "driver": verdicts.driver() if available or has_driver() else None,
        "said": [" ".join(str(warning.message).split()) for warning in said],
        "cards": [_card(k) for k in range(torch.cuda.device_count())] if available else [],
    }
    if available:
        found["tf32"] = {"products": _tf32(torch.backends.cuda.matmul), "convolutions": _tf32(torch.backends.cudnn)}
    return found


def has_driver() -> bool:
    """Return whether this machine has NVIDIA's driver, whatever torch sees."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _card(index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    return {
        "device": f"cuda:{index}",
        "name": torch.cuda.get_device_name(index),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(index))),
        "memory_bytes": total,
        "free_bytes": free,
    }


def _tf32(switches: Any) -> bool | None:
    try:
        return bool(switches.allow_tf32)
    except RuntimeError:  # where torch's older and newer switches were both used
        return None


def _free(folder: Path) -> int | None:
    """Bytes that are free where the folder is, or will be."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


def _is_writable(folder: Path) -> bool:
    """Return whether it can be written to, or be made; nothing is."""
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
    except (OSError, StopIteration):
        return False
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
