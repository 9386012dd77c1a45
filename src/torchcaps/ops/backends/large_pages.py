"""Memory on large pages, for tensors that are made anew at every call.

Memory that a tensor of many megabytes gives back goes back to the system. When the next one is written, each 4 KB of it
cost a page fault: to fill 157 MB so takes seven times as long as on pages of 2 MB. Linux gives those where it is asked,
unless it has been set never to do so. torch asks for all its memory where ``THP_MEM_ALLOC_ENABLE=1`` is set.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: Bytes from which on it is worth a call of the system.
_LARGE = 2**22
_PAGE = 2**21
_MADV_HUGEPAGE = 14


def is_large(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Tell whether such a tensor gets large pages here."""
    n = dtype.itemsize
    for extent in shape:
        n *= extent
    return n >= _LARGE and _madvise() is not None


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Make a tensor on the CPU, of any values, on large pages where :func:`is_large` says so."""
    made = torch.empty(tuple(shape), dtype=dtype, device="cpu")
    advise = _madvise()
    if advise is not None and made.nbytes >= _LARGE:
        first = (made.data_ptr() + _PAGE - 1) // _PAGE * _PAGE
        last = (made.data_ptr() + made.nbytes) // _PAGE * _PAGE
        advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)  # advice: may be refused
    return made


@functools.cache
def _madvise() -> Callable[..., Any] | None:
    """Return the function of the C library; None where there is none, as on macOS and Windows."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
