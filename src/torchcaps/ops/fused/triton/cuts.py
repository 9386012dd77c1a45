"""How work is cut into programs: by the sizes alone, so that results depend on nothing else."""

from __future__ import annotations

import math

#: Programs that fill the greatest devices; long sums are cut into parts until there are as many.
PROGRAMS = 512
#: Terms of a part, at least: each part is written to memory once.
LEAST = 8
#: Multiply and add round once. Said here, for triton's default is to change, and an environment variable changes it.
FUSED = {"enable_fp_fusion": True}
#: Only where the kernel says so: the same expression comes out alike in every kernel.
APART = {"enable_fp_fusion": False}


def cut(n: int, programs: int) -> int:
    """Of n terms, how many a part has, at least 1, where each part is done by so many programs."""
    parts = max(1, min(math.ceil(PROGRAMS / max(1, programs)), math.ceil(n / LEAST)))
    return max(1, math.ceil(n / parts))


def power(n: int) -> int:
    """The least power of two that is not below n, at least 1."""
    return 1 << max(0, n - 1).bit_length()
