"""Fourier transforms of small, overlapping tiles of a map, as products of matrices: what convolution multiplies."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.ops.product import product

#: Outputs of a tile, in a row, where the kernel asks for no more. Larger tiles multiply and overlap less, but have more
#: frequencies, each with fewer tiles to share its part of the kernel.
_OUTPUTS = 12


class Tiling(NamedTuple):
    """How one direction of a map is cut into overlapping tiles, of ``step + kernel - 1`` inputs: an even number.

    Attributes:
        out: outputs wanted.
        tiles: tiles that make them.
        step: outputs of a tile, and the distance to the next.
        kernel: taps of one phase of the kernel: every stride-th.
    """

    out: int
    tiles: int
    step: int
    kernel: int

    @staticmethod
    def of(size: int, kernel: int, stride: int) -> Tiling:
        """Tile a map under a kernel of these sizes."""
        out, kernel = (size - kernel) // stride + 1, math.ceil(kernel / stride)
        tiles = math.ceil(out / max(_OUTPUTS, kernel - 1))
        step = math.ceil(out / tiles)
        step = step if tiles == 1 else max(step, kernel - 1)
        return Tiling(out, tiles, step + (step + kernel - 1) % 2, kernel)

    @property
    def tile(self) -> int:
        """Count the inputs of a tile."""
        return self.step + self.kernel - 1

    @property
    def inputs(self) -> int:
        """Count the inputs of all tiles together, and what fills the last step."""
        return self.tile if self.tiles == 1 else (self.tiles + 1) * self.step

    def __call__(self, x: Tensor) -> Tensor:
        """Unfold ``[inputs, …]`` to ``[tiles, tile, …]``."""
        if self.tiles == 1:
            return x[None]
        blocks = x.unflatten(0, (self.tiles + 1, self.step))
        # Split, not sliced: the gradients of slices are each written into zeros as large as x.
        own, _ = blocks.split((self.tiles, 1))
        _, later = blocks.split((1, self.tiles))
        shared, _ = later.split((self.kernel - 1, self.step - self.kernel + 1), 1)
        return torch.cat((own, shared), 1)

    def transposed(self, tiles: Tensor) -> Tensor:
        """Add up ``[tiles, tile, …]`` where they overlap: ``[inputs, …]``, the transpose of the call."""
        if self.tiles == 1:
            return tiles[0]
        x = tiles.new_zeros(self.tiles + 1, self.step, *tiles.shape[2:])
        x[:-1] = tiles[:, : self.step]
        x[1:, : self.kernel - 1] += tiles[:, self.step :]
        return x.flatten(0, 1)


class Transform(NamedTuple):
    """A matrix ``[P, height·width]`` in two steps, which together multiply far less.

    Attributes:
        rows: ``[2G, height]``, in pairs …
        columns: ``[G, P/G, 2·width]``, … of each of which P/G coefficients come.
    """

    rows: Tensor
    columns: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x by the matrix: ``[height, width, N]`` to ``[P, N]``."""
        pairs = product(self.rows, x.flatten(1)).view(len(self.columns), self.columns.shape[2], x.shape[2])
        return product(self.columns, pairs).flatten(0, 1)

    @property
    def size(self) -> int:
        """Count the coefficients P."""
        return math.prod(self.columns.shape[:2])

    def part(self, k: int) -> Transform:
        """Return what makes the k-th of G equal parts of the coefficients."""
        return Transform(self.rows[2 * k : 2 * k + 2], self.columns[k : k + 1])

    def transposed(self, x: Tensor) -> Tensor:
        """Multiply x by the transpose: ``[P, N]`` to ``[height, width, N]``."""
        y = self._rows_of(x)
        return product(self.rows.T, y.flatten(1)).unflatten(1, y.shape[1:])

    def add_transposed(self, x: Tensor, y: Tensor) -> None:
        """Add the product with the transpose to y ``[height, width, N]``."""
        y.view(len(y), -1).addmm_(self.rows.T, self._rows_of(x).flatten(1))

    def _rows_of(self, x: Tensor) -> Tensor:
        """Undo the second step: ``[P, N]`` to ``[2G, width, N]``."""
        pairs = product(self.columns.mT, x.unflatten(0, self.columns.shape[:2]))
        return pairs.view(len(self.rows), self.columns.shape[2] // 2, x.shape[1])


def transforms(rows: Tiling, columns: Tiling, like: Tensor) -> list[Transform]:
    """Build the bilinear form y = inverseᵀ · ((signal · tile) ⊙ (response · kernel)), over P real products.

    Returns:
        signal: of tiles ``[height, width]``.
        response: of kernels.
        inverse: of the outputs that the tile's edges do not reach, ``[step, step']``.
    """
    waves, lines = _matrices(rows.tile, columns.tile)
    cropped = (rows.tile, columns.tile), (rows.kernel, columns.kernel), (rows.step, columns.step)
    made = []
    for (height, width), line in zip(cropped, lines, strict=True):
        pairs = line.reshape(*line.shape[:2], 2, columns.tile)[..., :width].reshape(*line.shape[:2], 2 * width)
        parts = (torch.from_numpy(part).to(like.device, like.dtype) for part in (waves[:, :height], pairs))
        made.append(Transform(*parts))
    return made


@functools.cache  # of arrays: a tensor belongs to the mode of its first call, such as inference
def _matrices(height: int, width: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Build the rows of all three transforms, and the columns of each, uncropped and in float64; both sizes are even.

    Images are real: the coefficient at (-u, -v) is the conjugate of that at (u, v), and one of the two is enough. Of
    rows these are u = 0 and height/2, which are real and make the first pair, and those between, whose pairs are real
    and imaginary part. Of the first pair's columns the same ones are enough, of the other pairs' are all.
    """
    (ends, _), (re, im) = _waves((0, height // 2), height), _waves(range(1, height // 2), height)
    waves = np.concatenate((ends, np.stack((re, im), 1).reshape(-1, height)))
    (alone, _), halves, (re, im) = (_waves(v, width) for v in ((0, width // 2), range(1, width // 2), range(width)))
    of_complex = np.concatenate((re, -im), 1), np.concatenate((im, re), 1)
    lines = []
    for real, pair in zip(_factors(alone, *halves), _factors(np.zeros((0, 2 * width)), *of_complex), strict=True):
        first = np.zeros_like(pair)  # two of its rows stay 0, so that all pairs have as many
        first[: len(real), :width] = first[len(real) : 2 * len(real), width:] = real
        lines.append(np.stack((first, *[pair] * (height // 2 - 1))))
    lines[-1] /= height * width
    return waves, lines


def _factors(alone: np.ndarray, re: np.ndarray, im: np.ndarray) -> list[np.ndarray]:
    """Return the matrices that give the factors of signal and response, and those that make up outputs."""
    # (a + ib)(c - id) = (p - q) + i(p - r) with p = (a + b)c, q = b(c - d), r = a(c + d).
    signal, response, inverse = (re + im, im, re), (re, re - im, re + im), (2 * (re + im), -2 * re, -2 * im)
    return [np.concatenate((alone, *parts)) for parts in (signal, response, inverse)]


def _waves(frequencies: Sequence[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return real and imaginary part of e^(-2πi·fx/size), each ``[frequencies, size]``."""
    angle = -2 * np.pi * np.array(frequencies, dtype=np.float64)[:, None] * np.arange(size) / size
    return np.cos(angle), np.sin(angle)
