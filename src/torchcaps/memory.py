"""How the command line's process takes its memory: in large pages, and kept once it has it."""

from __future__ import annotations

import ctypes
import os
import platform

#: Of glibc's malloc.h: from what size on a block is taken from the system alone, and what may stay unused at the end.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1
#: The most that glibc before 2.35 takes for a threshold.
_LARGEST_BEFORE = 2**25


def keep_memory() -> None:
    """Keep the memory of a training step for the next one; to be called before torch takes any.

    By default every large tensor is new memory from the system, which has to clear it page by page: a good part of the
    time of a step of CapsNet on a CPU. Peak memory grows a little. Whoever has set torch's or glibc's own variables
    (``THP_MEM_ALLOC_ENABLE``, ``MALLOC_…_``, ``GLIBC_TUNABLES``) is left to them; elsewhere than under glibc only the
    first is set.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    own = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not own:
        libc = ctypes.CDLL(None)
        if not libc.mallopt(_MMAP_THRESHOLD, _LARGEST_INT):
            libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BEFORE)
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST_INT)
