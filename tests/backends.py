"""Marks for tests that hold for every implementation of a routing, each where it is available."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch

from torchcaps.ops.backends import native, triton
from torchcaps.ops.backends.dispatch import BACKENDS, which_backend
from torchcaps.ops.backends.errors import Unavailable

needs_cpu = pytest.mark.skipif(native.why_not("dynamic") is not None, reason=str(native.why_not("dynamic")))

_NO_TRITON = triton.why_not("dynamic")
_INTERPRETED = _NO_TRITON is None and triton.is_interpreted("dynamic")
#: For tests that move their tensors to ``DEVICES[backend]``.
needs_triton = pytest.mark.skipif(
    _NO_TRITON is not None or not (_INTERPRETED or torch.cuda.is_available()), reason=str(_NO_TRITON)
)
#: For tests whose tensors are on the CPU.
needs_interpreter = pytest.mark.skipif(
    not _INTERPRETED, reason=_NO_TRITON or "triton's kernels are compiled here: only the interpreter takes CPU tensors"
)


def spilled() -> int:
    """Return the bytes that a thread may hold in memory instead of registers.

    None as triton 3.6 compiles, whose kernels were timed. From 3.8 on, which lays out the same code otherwise, a few
    numbers of a thread.
    """
    return 32 if tuple(map(int, version("triton").split(".")[:2])) >= (3, 8) else 0


DEVICES = {"reference": "cpu", "cpu": "cpu", "triton": "cpu" if _INTERPRETED else "cuda"}

backends = pytest.mark.parametrize(
    "backend",
    ["reference", pytest.param("cpu", marks=needs_cpu), pytest.param("triton", marks=needs_interpreter)],
)


def available(routing: str) -> tuple[str, ...]:
    """Every implementation that is available here for tensors on the CPU."""

    def is_there(backend: str) -> bool:
        try:
            return which_backend(routing, backend, torch.zeros(1)) == backend
        except (Unavailable, ValueError):
            return False

    return tuple(filter(is_there, BACKENDS))
