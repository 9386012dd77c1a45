"""Backend "triton", kernels for CUDA devices: where it is available, and how its kernels are cut and started."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import shutil
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.backends.errors import found, missing
from torchcaps.ops.backends.tracing import constant_when_compiled
from torchcaps.ops.backends.triton_ahead import noted

#: What the kernels were written for, and pyproject.toml asks for.
LEAST_VERSION = (3, 4)
#: The routings that there are kernels for, and the folders of these.
KERNELS = {"dynamic": "dynamic", "em": "em", "variational_bayes": "em"}
#: The dtypes that they read.
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Compute capability that they were compiled and tried for, and triton is made for: Ampere, 2020.
LEAST_CAPABILITY = (8, 0)
#: What the kernels of a routing do not take of poses and matrices, in words; filled by the routing itself.
LIMITS: dict[str, Callable[[Tensor, Tensor], str | None]] = {}
#: Programs that fill the greatest devices; long sums are cut into parts until there are as many.
PROGRAMS = 512
#: Terms of a part, at least: each part is written to memory once.
LEAST = 8
#: Multiply and add round once. Said here, for triton's default is to change, and an environment variable changes it.
FUSED = {"enable_fp_fusion": True}
#: Only where the kernel says so: the same expression comes out alike in every kernel.
APART = {"enable_fp_fusion": False}


def load(name: str) -> Any:
    """Import the ``triton_kernels.py`` of a routing; triton is imported here and nowhere else.

    Within :func:`~torchcaps.ops.backends.triton_ahead.compile_ahead` its kernels only note how they would be started.

    Raises:
        Unavailable: triton cannot be imported; the message says why.
    """
    return noted(found(_attempt(name)))


@constant_when_compiled
def why_not(name: str) -> str | None:
    """Return the reason why kernels ``<name>`` cannot be used here; None where they can."""
    return missing(_attempt(name))


@constant_when_compiled
def is_interpreted(name: str) -> bool:
    """Tell whether kernels ``<name>`` run in triton's interpreter, on the CPU: very slowly, for tests."""
    got = _attempt(name)
    return isinstance(got, ModuleType) and bool(got.INTERPRETED)


def wrong_devices(name: str, kinds: set[str], n_devices: int) -> str | None:
    """Name the device that this backend needs, if the tensors are elsewhere; None where they are right."""
    if kinds == {"cpu"} and is_interpreted(name):
        return None
    return None if kinds == {"cuda"} and n_devices == 1 else "one CUDA device"


def wrong_sizes(name: str, tensors: tuple[Tensor, ...]) -> str | None:
    """Describe why the kernels do not take such tensors; None where they do.

    So that "auto" takes the reference where naming them raises.
    """
    poses, matrices = roles(tensors)
    for x in (poses, matrices):
        if x.dtype not in DTYPES:
            return f"the kernels read {', '.join(str(kind) for kind in DTYPES)}, not {x.dtype}"
    return LIMITS[name](poses, matrices) if name in LIMITS else None


def roles(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Find the poses, which come first, and the matrices: the next tensor with as many axes or more."""
    return tensors[0], next((x for x in tensors[1:] if x.dim() >= tensors[0].dim()), tensors[0])


def unfit(device: torch.device) -> str | None:
    """Return the reason why no kernel runs on this device; None where one may."""
    if device.type != "cuda":
        return None  # the interpreter's
    if not torch.cuda.is_available():
        return "torch finds no GPU here on which the kernels could be checked"
    got = torch.cuda.get_device_capability(device)
    if got >= LEAST_CAPABILITY:
        return None
    least, got = (".".join(map(str, x)) for x in (LEAST_CAPABILITY, got))
    return (
        f"the kernels want a GPU of compute capability {least} or more, {torch.cuda.get_device_name(device)} has {got}"
    )


def has_compiler() -> bool:
    """Tell whether triton finds a C compiler to build its launchers, by the rules of its ``runtime/build.py``.

    On Windows it brings one.
    """
    return os.name == "nt" or bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))


def allows_tf32() -> bool:
    """Tell whether the user allows TF32 products, by the older or the newer of torch's switches."""
    matmul = torch.backends.cuda.matmul
    try:
        return matmul.fp32_precision == "tf32"
    except (AttributeError, AssertionError, RuntimeError):  # torch before 2.9
        return torch.get_float32_matmul_precision() != "highest"


def on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a context in which kernels start on the device of their tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def cut(n: int, programs: int) -> int:
    """Cut n terms into parts, each done by so many programs; returns the terms of a part, at least 1."""
    parts = max(1, min(math.ceil(PROGRAMS / max(1, programs)), math.ceil(n / LEAST)))
    return max(1, math.ceil(n / parts))


def power(n: int) -> int:
    """Round n up to a power of two, at least 1."""
    return 1 << max(0, n - 1).bit_length()


@cache
def _attempt(name: str) -> ModuleType | str:
    if name not in KERNELS:
        return f"it has no kernels for {name}"
    try:
        version = importlib.import_module("triton").__version__
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST_VERSION:
            return f"triton must be {'.'.join(map(str, LEAST_VERSION))} or newer, got {version}"
        kernels = importlib.import_module(f"torchcaps.ops.{KERNELS[name]}.triton_kernels")
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    if torch.version.hip and not kernels.INTERPRETED:  # which torch calls "cuda", too
        return f"the kernels were never tried on AMD's ROCm, which this torch is built for ({torch.version.hip})"
    return kernels
