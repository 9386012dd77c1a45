"""Backend "cpu", C++ that the wheel brings or that is compiled on first use: loaded, and on torch's own threads."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.ops.backends.build import build
from torchcaps.ops.backends.errors import Unavailable, found, missing
from torchcaps.ops.backends.shipped import shipped
from torchcaps.ops.backends.tracing import constant_when_compiled, have_tangents, is_plain

#: The dtypes that are compiled, and what their functions end in.
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}
_LOCK = threading.Lock()
_FORKED = False


def load(name: str) -> ctypes.CDLL:
    """Load the library of ``<name>.cpp``, which includes ``parallel.h``; once in a process.

    The wheel's own is taken where it has one for this processor. Else it is compiled.

    Raises:
        Unavailable: see :func:`torchcaps.ops.backends.build.build`.
        ValueError: see :func:`torchcaps.ops.backends.shipped.shipped`.
    """
    return found(_attempt(name))


@constant_when_compiled
def why_not(name: str) -> str | None:
    """Return the reason why ``<name>.cpp`` cannot be used here; None where it can."""
    return missing(_attempt(name))


def takes(name: str, *tensors: Tensor) -> bool:
    """Tell whether ``<name>.cpp`` can compute with tensors as they are, of code that runs as it stands."""
    if not is_plain():  # before any size is asked for, which a program that is exported would then insist on
        return False
    if any(x.device.type != "cpu" or x.dtype not in SUFFIXES or x.numel() == 0 for x in tensors):
        return False
    return not have_tangents(*tensors) and why_not(name) is None


def wrong_devices(name: str, kinds: set[str], n_devices: int) -> str | None:
    """Name the device that this backend needs, if the tensors are elsewhere; None where they are right."""
    del name, n_devices  # there is one CPU
    return None if kinds == {"cpu"} else "the CPU"


@cache
def _attempt(name: str) -> ctypes.CDLL | str:
    """Load the library, or return why there is none. A failure is not tried again at every call."""
    with _LOCK:  # threads that ask together wait for one compiler
        try:
            library = _shipped(name) or ctypes.CDLL(str(build(name)))
        except (OSError, Unavailable) as error:
            return str(error)
        library.use_openmp(openmp())  # a library that the parent of a forked process has loaded forgets it by itself
        return library


def _shipped(name: str) -> ctypes.CDLL | None:
    path = shipped(name)
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError as error:  # such as on a system whose C library it does not know: a compiler may be there
        logging.getLogger("torchcaps").warning("the wheel's %s does not load: %s", path, error)
        return None


def _in_a_forked_process() -> None:
    global _FORKED, _LOCK
    _FORKED, _LOCK = True, threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_process)


def openmp() -> ctypes.c_void_p:
    """Return the entry to the OpenMP that torch runs on, ``GOMP_parallel``, or null.

    Its idle threads spin for a while: a second set of threads would fight them for the cores. A forked process has none
    of its parent's threads, for which OpenMP would wait for ever: there it is null.
    """
    if _FORKED:
        return ctypes.c_void_p()
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            return ctypes.cast(torch_library.GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return ctypes.c_void_p()
