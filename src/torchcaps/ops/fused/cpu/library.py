"""A compiled library, loaded, and on torch's own threads."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from torchcaps.ops.fused.cpu.build import Unavailable, build


@cache
def load(name: str) -> ctypes.CDLL:
    """Build and load ``<name>.cpp``, which includes ``parallel.h``.

    Raises:
        Unavailable: see :func:`torchcaps.ops.fused.cpu.build.build`.
    """
    path = build(name)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"cannot load {path}: {error}") from error
    library.use_openmp(_openmp())
    return library


@torch.compiler.assume_constant_result
@cache
def why_not(name: str) -> str | None:
    """Why ``<name>.cpp`` cannot be used here; None where it can."""
    try:
        load(name)
    except Unavailable as error:
        return str(error)
    return None


def _openmp() -> ctypes.c_void_p:
    """The entry to the OpenMP that torch runs on, or null.

    Its idle threads spin for a while: a second set of threads would fight them for the cores.
    """
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            return ctypes.cast(torch_library.GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return ctypes.c_void_p()
