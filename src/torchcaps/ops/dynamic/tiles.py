"""How dynamic routing is cut into programs: by sizes and dtypes alone, so that results depend on nothing else."""

from __future__ import annotations

import math
from typing import NamedTuple

from torchcaps.ops.backends.triton import FUSED, power

#: Bytes of the matrix of one pair of capsules, at most: it must fit into shared memory.
LARGEST = 65536
#: Bytes of a tile of matrices beyond which loads do not run ahead, and more warps share it.
LARGE = 16384
#: The least that a product of matrices takes.
LEAST = 16


class Tile(NamedTuple):
    """How a kernel is cut.

    Attributes:
        images: images of a block, at most.
        elements: of poses of a chunk of lower capsules, at most, but one capsule at the least.
        warps: of a program.
        stages: of loads that run ahead of a loop.
        programs: wanted at the least; sums are cut into parts until there are as many.
        registers: of a thread, at most; None leaves it to the compiler, which may take so many that few programs fit.
    """

    images: int
    elements: int
    warps: int
    stages: int
    programs: int = 528
    registers: int | None = None


#: For each kernel, where float32 or float64 is multiplied; the quickest of some twenty on an H100, over three problems.
TILES = {
    "logits_pass": Tile(32, 64, 4, 3),
    "sums_pass": Tile(32, 32, 2, 3, 2112),
    "pose_gradient_pass": Tile(16, 64, 2, 2),
    "weight_gradient_pass": Tile(16, 128, 4, 2, registers=255),
}
#: The same where bfloat16 is, for one problem.
NARROW_TILES = {
    "logits_pass": Tile(16, 128, 4, 2),
    "sums_pass": Tile(64, 64, 4, 2),
    "pose_gradient_pass": Tile(16, 128, 4, 2),
    "weight_gradient_pass": Tile(16, 128, 4, 2, registers=255),
}


class Sizes(NamedTuple):
    """B, I, J, d_in and d_out of a problem.

    Attributes:
        itemsize: bytes of the numbers that are computed with.
        narrow: whether u and weight are of bfloat16.
    """

    images: int
    lower: int
    upper: int
    d_in: int
    d_out: int
    itemsize: int = 4
    narrow: bool = False


class Launch(NamedTuple):
    """What one kernel is started with.

    Attributes:
        blocks: of images.
        chunks: of lower capsules.
        constants: of the kernel, and options of the compiler.
        programs: wanted at the least.
    """

    blocks: int
    chunks: int
    constants: dict[str, int]
    programs: int

    def parts(self, terms: int, others: int, least: int = 2) -> tuple[int, int]:
        """Cut a sum into parts, each done by ``others`` programs: their number, and the terms of each."""
        parts = max(1, min(math.ceil(self.programs / max(1, others)), terms // least))
        per_part = max(1, math.ceil(terms / parts))
        return math.ceil(terms / per_part), per_part


def too_large(d_in: int, d_out: int, itemsize: int) -> str | None:
    """Say what the kernels take, where the matrix of one pair of capsules is too large for a tile."""
    largest = LARGEST // itemsize
    if max(power(d_in), LEAST) * max(power(d_out), LEAST) <= largest:
        return None
    return (
        f"at most {largest:,} numbers of a matrix, d_in and d_out each rounded up to a power of two of at least "
        f"{LEAST}, got d_in={d_in}, d_out={d_out}"
    )


def launch(kernel: str, sizes: Sizes) -> Launch:
    """Cut the work of a kernel.

    Raises:
        ValueError: the matrix of one pair of capsules is too large for a tile.
    """
    tile = (NARROW_TILES if sizes.narrow else TILES)[kernel]
    inputs, outputs = power(sizes.d_in), max(power(sizes.d_out), LEAST)
    wrong = too_large(sizes.d_in, sizes.d_out, sizes.itemsize)
    if wrong is not None:
        raise ValueError(f"backend='triton' takes {wrong}: take backend='reference'")
    room = max(LEAST, min(tile.elements, tile.elements * LEAST // outputs) * 4 // sizes.itemsize)
    together = min(max(inputs, room), max(LEAST, power(sizes.lower) * inputs)) // inputs
    images = max(LEAST, min(tile.images, power(sizes.images)) * 4 // sizes.itemsize)
    if together * inputs * outputs * sizes.itemsize > LARGE:
        tile = tile._replace(warps=8, stages=1)
    constants = {"D": sizes.d_in, "J": sizes.upper, "E": sizes.d_out}
    constants |= {"N": images, "KI": together, "DP": inputs, "EP": outputs}
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    options |= {} if tile.registers is None else {"maxnreg": tile.registers}
    return Launch(
        math.ceil(sizes.images / images), math.ceil(sizes.lower / together), constants | options | FUSED, tile.programs
    )


def rows(sizes: Sizes, parts: int) -> tuple[tuple[int], dict[str, int]]:
    """Choose the programs of the passes over rows (image, upper capsule), and their constants."""
    elements = power(sizes.d_out)
    together = min(max(1, 1024 // elements), power(parts), 64)
    constants = {"E": sizes.d_out, "R": 4, "PP": together, "EP": elements, "num_warps": 4 if together > 4 else 1}
    return (math.ceil(sizes.images * sizes.upper / 4),), constants | FUSED
