"""Convolution at the frequencies of small tiles: for large kernels a fifth of the multiplications."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: Outputs of a tile, in a row, where the kernel asks for no more: larger tiles multiply less, but take more memory and
#: dearer transforms.
_OUTPUTS = 8


class Cut(NamedTuple):
    """How one direction of a map is cut into overlapping tiles. A tile has ``step + kernel - 1`` inputs.

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
    def of(size: int, kernel: int, stride: int) -> Cut:
        """For a map and a kernel of these sizes."""
        out, kernel = (size - kernel) // stride + 1, math.ceil(kernel / stride)
        tiles = math.ceil(out / max(_OUTPUTS, kernel - 1))
        step = math.ceil(out / tiles)
        return Cut(out, tiles, step if tiles == 1 else max(step, kernel - 1), kernel)

    @property
    def tile(self) -> int:
        """Inputs of a tile."""
        return self.step + self.kernel - 1

    @property
    def inputs(self) -> int:
        """Inputs of all tiles together, and what fills the last step."""
        return self.tile if self.tiles == 1 else (self.tiles + 1) * self.step

    def __call__(self, x: Tensor) -> Tensor:
        """``[inputs, …]`` to ``[tiles, tile, …]``."""
        if self.tiles == 1:
            return x[None]
        blocks = x.unflatten(0, (self.tiles + 1, self.step))
        # Split, not sliced: the gradients of slices are each written into zeros as large as x.
        own, _ = blocks.split((self.tiles, 1))
        _, later = blocks.split((1, self.tiles))
        shared, _ = later.split((self.kernel - 1, self.step - self.kernel + 1), 1)
        return torch.cat((own, shared), 1)


def cuts(x: Sequence[int], weight: Sequence[int], stride: int) -> tuple[Cut, Cut]:
    """Rows and columns of images ``[…, H, W]`` under kernels ``[…, K_h, K_w]``."""
    rows, columns = (Cut.of(x[dim], weight[dim], stride) for dim in (-2, -1))
    return rows, columns


def worthwhile(x: Sequence[int], weight: Sequence[int], stride: int, gradients: bool) -> bool:
    """Whether :func:`spectral_conv2d` multiplies so much less, for these shapes, that it is faster on a CPU.

    That is less than half as much, transforms included, as it moves more memory; and a little less still without
    ``gradients``, for which the transforms of image and kernel would serve again.
    """
    if min(x) == 0 or min(weight) == 0 or x[2] < weight[2] or x[3] < weight[3]:
        return False
    rows, columns = cuts(x, weight, stride)
    images, n_in, n_out = x[0] * rows.tiles * columns.tiles, stride**2 * x[1], weight[0]
    products = images * n_in * n_out
    there = images * n_in * rows.tile * columns.tile + n_in * n_out * rows.kernel * columns.kernel
    back = images * n_out * rows.step * columns.step
    points = 1.5 * rows.tile * columns.tile
    direct = x[0] * math.prod(weight) * rows.out * columns.out
    return (2 if gradients else 2.3) * points * (products + there + back) < direct


def spectral_conv2d(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Two-dimensional convolution without bias, as :func:`torch.nn.functional.conv2d`.

    A strided convolution is a sum of plain ones, of each phase of the stride. These are taken in tiles, by the
    convolution theorem: one product of matrices a frequency, for all tiles and images at once, and as the numbers are
    complex, three real ones (Gauss). The tiles are so small that their Fourier transforms are products of matrices too.

    Rounding errors are relative to the largest number in a tile, where those of a direct convolution are relative to
    what the kernel sees: beside a pixel a hundred times the others they are larger, and infinity or NaN fills the
    tile. In bfloat16 they are about three times those of a direct convolution, whose factors are not rounded again.
    For the gradient, the coefficients of x and weight are kept: some three times as many numbers as x has, and P/K²
    times as many as weight has, with P of the order of 1.5 times the inputs of a tile.

    Args:
        x: ``[B, C, H, W]``.
        weight: ``[C', C, K_h, K_w]``, of the same dtype.
        stride: in both directions.
        padding: zeros on every side.

    Returns:
        ``[B, C', H', W']``, with the strides of channels last.

    Source: Mathieu, Henaff, LeCun 2014 (products at frequencies); Lavin, Gray 2016 (tiles, and transforms as matrices).
    """
    rows, columns = cuts([size + 2 * padding for size in x.shape], weight.shape, stride)
    matrices = _matrices(rows.tile, columns.tile, rows.kernel, columns.kernel)
    signal, response, inverse = (torch.from_numpy(matrix).to(x.device, x.dtype) for matrix in matrices)
    n_images, n_in, n_out = len(x), stride**2 * x.shape[1], len(weight)
    n_tiles = rows.tiles * columns.tiles

    phases = _phases(x.permute(2, 3, 0, 1), rows.inputs, columns.inputs, stride, padding)  # [Y, X, s, s, B, C]
    tiles = rows(columns(phases.transpose(0, 1)).movedim(2, 0))  # [Y/y, y, X/x, x, s, s, B, C]
    tiles = tiles.permute(1, 3, 0, 2, 6, 4, 5, 7).reshape(rows.tile * columns.tile, n_tiles * n_images * n_in)
    spectra = (signal @ tiles).view(len(signal), n_tiles * n_images, n_in)

    taps = _phases(weight.permute(2, 3, 1, 0), rows.kernel, columns.kernel, stride)  # [Y, X, s, s, C, C']
    responses = (response @ taps.reshape(rows.kernel * columns.kernel, n_in * n_out)).view(len(response), n_in, n_out)

    y = inverse @ torch.bmm(spectra, responses).view(len(signal), n_tiles * n_images * n_out)
    y = y.view(rows.step, columns.step, rows.tiles, columns.tiles, n_images, n_out).permute(4, 2, 0, 3, 1, 5)
    y = y.reshape(n_images, rows.tiles * rows.step, columns.tiles * columns.step, n_out)
    return y[:, : rows.out, : columns.out].permute(0, 3, 1, 2)


def _phases(x: Tensor, rows: int, columns: int, stride: int, padding: int = 0) -> Tensor:
    """``[H, W, …]``, padded, and cropped or filled up with zeros, to ``[rows, columns, stride, stride, …]``."""
    before, (height, width) = padding, (size - padding for size in (rows * stride, columns * stride))
    x = F.pad(x, (0, 0) * (x.dim() - 2) + (before, width - x.shape[1], before, height - x.shape[0]))
    return x.unflatten(1, (columns, stride)).unflatten(0, (rows, stride)).transpose(1, 2)


@functools.cache  # of arrays: a tensor belongs to the mode of its first call, such as inference
def _matrices(
    height: int, width: int, kernel_height: int, kernel_width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bilinear form y = inverse · ((signal · tile) ⊙ (response · kernel)), over P real products, in float64.

    Returns:
        signal: ``[P, height·width]``.
        response: ``[P, kernel_height·kernel_width]``.
        inverse: ``[step·step', P]``, of those outputs that the tile's edges do not reach.
    """
    # Images are real: the coefficient at (-u, -v) is the conjugate of that at (u, v), and one of the two is enough.
    partners = {(u, v): (-u % height, -v % width) for u in range(height) for v in range(width)}
    alone, _ = _waves([here for here, there in partners.items() if here == there], height, width)
    re, im = _waves([here for here, there in partners.items() if here < there], height, width)
    # (a + ib)(c - id) = (p - q) + i(p - r) with p = (a + b)c, q = b(c - d), r = a(c + d).
    signal = np.concatenate((alone, re + im, im, re))
    response = np.concatenate((alone, re, re - im, re + im))[:, :kernel_height, :kernel_width]
    inverse = np.concatenate((alone, 2 * (re + im), -2 * re, -2 * im)) / (height * width)
    inverse = inverse[:, : height - kernel_height + 1, : width - kernel_width + 1]
    signal, response, inverse = (matrix.reshape(len(matrix), -1) for matrix in (signal, response, inverse))
    return signal, response, inverse.T


def _waves(frequencies: list[tuple[int, int]], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts of e^(-2πi(uy/height + vx/width)), each ``[frequencies, height, width]``."""
    u, v = np.array(frequencies, dtype=np.float64).reshape(-1, 2).T[..., None, None]
    angle = -2 * np.pi * (u * np.arange(height)[:, None] / height + v * np.arange(width) / width)
    return np.cos(angle), np.sin(angle)
