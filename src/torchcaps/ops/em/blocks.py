"""How the work of EM routing's kernels is cut into programs: by the sizes and the dtype alone."""

from __future__ import annotations

import math

import torch

from torchcaps.ops.backends.triton import APART, power

#: Threads of a warp; each has one vote at a time.
WARP = 32
#: Warps of a program, and registers of a thread, at most: by itself the compiler takes fewer and spills some. Few
#: warps, for programs of many registers leave no place for many.
WARPS_AND_REGISTERS = {
    "begin_pass": (4, 64),
    "child_pass": (4, 128),
    "parent_pass of two states": (4, 128),
    "parent_pass of three states": (4, 168),
    "parent_pass of five states": (2, 176),
    "pose_pass": (4, 168),
    "weight_pass": (4, 168),
}
#: In float64, where a number takes two, and with offsets or a gradient of R from outside, of which there is little.
MOST_REGISTERS = 255
#: Warps that fill the greatest devices several times over; long sums are cut into parts until there are as many.
MOST_WARPS = 8192
#: Terms of a part, at least: for each, 33 numbers of a parent or 16 of a weight are written.
LEAST = 8


def blocks(kernel: str, n_lanes: int, dtype: torch.dtype, *, extras: bool = False) -> tuple[dict[str, int], int]:
    """Choose how many lanes a program has, one for each thread, and how many programs there are.

    ``extras`` says whether votes have offsets, or R a gradient from outside.
    """
    most, registers = WARPS_AND_REGISTERS[kernel]
    size = min(power(math.ceil(n_lanes / WARP)), most) * WARP
    registers = MOST_REGISTERS if dtype == torch.float64 or extras else registers
    return {"N": size, "num_warps": size // WARP, "maxnreg": registers} | APART, math.ceil(n_lanes / size)


def parts(n: int, n_warps: int) -> tuple[int, int]:
    """Cut a sum of n terms, each part done by so many warps: how many parts, and how many terms each has."""
    most = max(1, min(MOST_WARPS // max(1, n_warps), n // LEAST))
    per_part = max(1, math.ceil(n / most))
    return max(1, math.ceil(n / per_part)), per_part
