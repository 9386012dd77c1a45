"""Where triton is to be had, and how its kernels are started."""

from __future__ import annotations

import contextlib
import importlib
import re
from functools import cache
from types import ModuleType

import torch

from torchcaps.ops.fused.constant import constant_when_compiled
from torchcaps.ops.fused.unavailable import found, missing

#: What the kernels were written for, and pyproject.toml asks for.
LEAST_VERSION = (3, 4)
#: The routings that there are kernels for.
KERNELS = ("dynamic", "em")


def load(name: str) -> ModuleType:
    """The module ``kernels/<name>.py``; triton is imported here and nowhere else.

    Raises:
        Unavailable: triton cannot be imported; the message says why.
    """
    return found(_attempt(name))


@constant_when_compiled
def why_not(name: str) -> str | None:
    """Why kernels ``<name>`` cannot be used here; None where they can."""
    return missing(_attempt(name))


@constant_when_compiled
def is_interpreted(name: str) -> bool:
    """Whether kernels ``<name>`` run in triton's interpreter, and so on the CPU: very slowly, for tests."""
    got = _attempt(name)
    return isinstance(got, ModuleType) and bool(got.INTERPRETED)


def wrong_devices(name: str, kinds: set[str], n_devices: int) -> str | None:
    """What devices routing wants, if tensors on so many of these kinds are on others; None where they are right."""
    if kinds == {"cpu"} and is_interpreted(name):
        return None
    return None if kinds == {"cuda"} and n_devices == 1 else "one CUDA device"


def on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context in which kernels start on the device of their tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@cache
def _attempt(name: str) -> ModuleType | str:
    if name not in KERNELS:
        return f"it has no kernels for {name}"
    try:
        version = importlib.import_module("triton").__version__
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST_VERSION:
            return f"triton must be {'.'.join(map(str, LEAST_VERSION))} or newer, got {version}"
        return importlib.import_module(f"torchcaps.ops.fused.triton.kernels.{name}")
    except ImportError as error:
        return f"triton cannot be imported: {error}"
