"""Convolution at the frequencies of small tiles: for large kernels a fifth of the multiplications."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function, forward_ad

from torchcaps.ops.backends import large_pages
from torchcaps.ops.backends.tracing import in_functorch, of_many_outputs
from torchcaps.ops.precision import without_autocast
from torchcaps.ops.product import product

#: Outputs of a tile, in a row, where the kernel asks for no more. Larger tiles multiply and overlap less, but have more
#: frequencies, each with fewer tiles to share its part of the kernel.
_OUTPUTS = 12


#: Numbers of all tiles at once, where none are kept for a gradient: 128 MB in float32.
_AT_ONCE = 2**25


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


def tilings(x: Sequence[int], weight: Sequence[int], stride: int) -> tuple[Tiling, Tiling]:
    """Tile rows and columns of images ``[…, H, W]`` under kernels ``[…, K_h, K_w]``."""
    rows, columns = (Tiling.of(x[dim], weight[dim], stride) for dim in (-2, -1))
    return rows, columns


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


def is_faster(x: Sequence[int], weight: Sequence[int], stride: int, gradients: bool) -> bool:
    """Tell whether :func:`spectral_conv2d` multiplies so much less, for these shapes, that it is faster on a CPU.

    That is little more than half as much, transforms included, as it moves more memory; and less than half without
    ``gradients``, for which the transforms of image and kernel would serve again.
    """
    if min(x) == 0 or min(weight) == 0 or x[2] < weight[2] or x[3] < weight[3]:
        return False
    rows, columns = tilings(x, weight, stride)
    images, n_in, n_out = x[0] * rows.tiles * columns.tiles, stride**2 * x[1], weight[0]

    def transform(height: int, width: int) -> int:
        # Each number is read and written for few multiplications, which so take three times as long.
        return 3 * rows.tile * width * (height + 3 * columns.tile)

    products = images * n_in * n_out * 3 * rows.tile * columns.tile / 2
    there = images * n_in * transform(rows.tile, columns.tile) + n_in * n_out * transform(rows.kernel, columns.kernel)
    back = images * n_out * transform(rows.step, columns.step)
    direct = x[0] * math.prod(weight) * rows.out * columns.out
    return (1.8 if gradients else 2.1) * (products + there + back) < direct


def spectral_conv2d(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Convolve in two dimensions without bias, as :func:`torch.nn.functional.conv2d` does.

    A strided convolution is a sum of plain ones, of each phase of the stride. These are taken in tiles, by the
    convolution theorem: one product of matrices a frequency, for all tiles and images at once, and as the numbers are
    complex, three real ones (Gauss). The tiles are so small that their Fourier transforms are products of matrices too.

    Rounding errors are relative to the largest number in a tile, where those of a direct convolution are relative to
    what the kernel sees: beside a pixel a hundred times the others they are larger, and infinity or NaN fills the
    tile. In bfloat16 they are up to three times those of a direct convolution, whose factors are not rounded again.
    For the gradient, the coefficients of x are kept: 1.5 to 3 times as many numbers as x has.

    Args:
        x: ``[B, C, H, W]``.
        weight: ``[C', C, K_h, K_w]``, of the same dtype.
        stride: in both directions.
        padding: zeros on every side.

    Without autograd nothing is kept, and of large maps a few images at a time are taken.

    Returns:
        ``[B, C', H', W']``, with the strides of channels last.

    Source: Mathieu, Henaff, LeCun 2014 (products at frequencies); Lavin, Gray 2016 (tiles, and transforms as matrices).
    """
    rows, columns = tilings([size + 2 * padding for size in x.shape], weight.shape, stride)
    of_image = stride**2 * x.shape[1] * math.prod(cut.tiles * cut.tile for cut in (rows, columns))
    n = max(1, _AT_ONCE // max(1, of_image))
    if n < len(x) and not torch.is_grad_enabled():
        if in_functorch():  # where weights may be batched that a new tensor would not know of
            return torch.cat([spectral_conv2d(some, weight, stride, padding) for some in x.split(n)])
        y = x.new_empty((len(x), rows.out, columns.out, len(weight))).permute(0, 3, 1, 2)
        for part, some in zip(y.split(n), x.split(n), strict=True):  # not put together: parts would lie between others
            part.copy_(spectral_conv2d(some, weight, stride, padding))
        return y
    signal, response, inverse = _transforms(rows, columns, x)
    n_images, n_in, n_out = len(x), stride**2 * x.shape[1], len(weight)
    n_tiles = rows.tiles * columns.tiles

    phases = _phases(x.permute(2, 3, 0, 1), rows.inputs, columns.inputs, stride, padding)  # [Y, X, s, s, B, C]
    tiles = rows(columns(phases.transpose(0, 1)).movedim(2, 0))  # [Y/y, y, X/x, x, s, s, B, C]
    tiles = tiles.permute(1, 3, 0, 2, 6, 4, 5, 7).reshape(rows.tile, columns.tile, n_tiles * n_images * n_in)
    spectra = signal(tiles).unflatten(1, (n_tiles * n_images, n_in))

    taps = _phases(weight.permute(2, 3, 1, 0), rows.kernel, columns.kernel, stride)  # [Y, X, s, s, C, C']
    taps = taps.reshape(rows.kernel, columns.kernel, n_in * n_out)

    y = inverse.transposed(_filter(spectra, taps, response).flatten(1))
    y = y.view(rows.step, columns.step, rows.tiles, columns.tiles, n_images, n_out).permute(4, 2, 0, 3, 1, 5)
    y = y.reshape(n_images, rows.tiles * rows.step, columns.tiles * columns.step, n_out)
    return y[:, : rows.out, : columns.out].permute(0, 3, 1, 2)


def _filter(spectra: Tensor, taps: Tensor, response: Transform) -> Tensor:
    """Multiply the coefficients of tiles ``[P, N, C]`` by those of kernels, of taps ``[height, width, C·C']``.

    Of kernels there are more coefficients than of anything else, P/K² times as many as the weight has numbers. So they
    are made a part at a time, and made again for the gradient.
    """
    if in_functorch() or any(forward_ad.unpack_dual(x).tangent is not None for x in (spectra, taps)):
        return _filter_at_once(spectra, taps, response)
    made = _Filter.apply(spectra, taps, response)
    assert isinstance(made, Tensor)
    return made


def _filter_at_once(spectra: Tensor, taps: Tensor, response: Transform) -> Tensor:
    return product(spectra, response(taps).unflatten(1, (spectra.shape[2], -1)))


class _Filter(Function):
    """A part at a time, forward and backward; at once for derivatives of higher order."""

    @staticmethod
    def forward(ctx: Any, spectra: Tensor, taps: Tensor, response: Transform) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(spectra, taps)
        ctx.response = response
        y = large_pages.empty((*spectra.shape[:2], taps.shape[2] // spectra.shape[2]), spectra.dtype)
        for k, (of_tiles, of_y) in enumerate(_in_parts(response, spectra, y)):
            of_y.copy_(_filter_at_once(of_tiles, taps, response.part(k)))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        spectra, taps = ctx.saved_tensors
        of_spectra, of_taps = ctx.needs_input_grad[:2]
        with without_autocast(dy):
            if torch.is_grad_enabled() or of_many_outputs(dy):
                return *_gradients_at_once(ctx.response, spectra, taps, dy, of_spectra, of_taps), None
            return *_gradients_in_parts(ctx.response, spectra, taps, dy, of_spectra, of_taps), None


_Gradients = tuple[Tensor | None, Tensor | None]


def _gradients_at_once(
    response: Transform, spectra: Tensor, taps: Tensor, dy: Tensor, of_spectra: bool, of_taps: bool
) -> _Gradients:
    """Leave it to autograd, for gradients that have some themselves or come for many outputs at once."""
    with torch.enable_grad():
        y = _filter_at_once(spectra, taps, response)
    asked = [x for x, wanted in ((spectra, of_spectra), (taps, of_taps)) if wanted]
    found = list(torch.autograd.grad(y, asked, dy, create_graph=torch.is_grad_enabled()))
    return found[0] if of_spectra else None, found[-1] if of_taps else None


def _gradients_in_parts(
    response: Transform, spectra: Tensor, taps: Tensor, dy: Tensor, of_spectra: bool, of_taps: bool
) -> _Gradients:
    d_spectra = large_pages.empty(spectra.shape, dy.dtype)
    d_taps = torch.zeros_like(taps)
    for k, (of_tiles, of_dy, of_d) in enumerate(_in_parts(response, spectra, dy, d_spectra)):
        part = response.part(k)
        if of_spectra:
            of_d.copy_(product(of_dy, part(taps).unflatten(1, (spectra.shape[2], -1)).mT))
        if of_taps:
            part.add_transposed(product(of_tiles.mT, of_dy).flatten(1), d_taps)
    return d_spectra if of_spectra else None, d_taps if of_taps else None


def _in_parts(response: Transform, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split the coefficients of each as the transform does."""
    return zip(*(x.chunk(len(response.columns)) for x in tensors), strict=True)


def _phases(x: Tensor, rows: int, columns: int, stride: int, padding: int = 0) -> Tensor:
    """Split ``[H, W, …]``, padded, and cropped or filled up with zeros, to ``[rows, columns, stride, stride, …]``."""
    before, (height, width) = padding, (size - padding for size in (rows * stride, columns * stride))
    x = F.pad(x, (0, 0) * (x.dim() - 2) + (before, width - x.shape[1], before, height - x.shape[0]))
    return x.unflatten(1, (columns, stride)).unflatten(0, (rows, stride)).transpose(1, 2)


def _transforms(rows: Tiling, columns: Tiling, like: Tensor) -> list[Transform]:
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
