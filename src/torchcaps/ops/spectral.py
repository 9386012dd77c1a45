"""Convolution at the frequencies of small tiles: for large kernels a fifth of the multiplications."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from torchcaps.ops.backends.tracing import have_tangents, in_functorch, of_many_outputs
from torchcaps.ops.fourier_tiles import Tiling, Transform, transforms
from torchcaps.ops.precision import without_autocast
from torchcaps.ops.product import add_product, product, put_product

#: Numbers of all tiles at once, where none are kept for a gradient: 128 MB in float32.
_AT_ONCE = 2**25
#: Coefficients of kernels at once: they stay in the cache until they are multiplied. And channels that share them, at
#: least: products of fewer are slow.
_KERNELS_AT_ONCE, _CHANNELS_AT_ONCE = 2**21, 64


class Cut(NamedTuple):
    """How images and kernels are cut into tiles, of each phase of the stride and of some channels at a time.

    Attributes:
        rows, columns: of the map.
        stride, padding: of the convolution, in both directions.
    """

    rows: Tiling
    columns: Tiling
    stride: int
    padding: int

    @staticmethod
    def of(x: Sequence[int], weight: Sequence[int], stride: int, padding: int) -> Cut:
        """Cut images ``[…, H, W]`` under kernels ``[…, K_h, K_w]``."""
        rows, columns = (Tiling.of(x[dim] + 2 * padding, weight[dim], stride) for dim in (-2, -1))
        return Cut(rows, columns, stride, padding)

    def phases(self, weight: Sequence[int]) -> Iterator[tuple[int, int]]:
        """List the phases of the stride, of rows and columns, that a kernel has taps in."""
        for row in range(min(self.stride, weight[-2])):
            for column in range(min(self.stride, weight[-1])):
                yield row, column

    def covers(self, x: Sequence[int], weight: Sequence[int]) -> bool:
        """Tell whether every pixel is in a tile of some phase."""
        return all(
            self.stride <= kernel and size + self.padding <= cut.inputs * self.stride
            for size, kernel, cut in zip(x[-2:], weight[-2:], (self.rows, self.columns), strict=True)
        )

    def tiles(self, x: Tensor, phase: tuple[int, int]) -> Tensor:
        """Cut a phase of ``[B, C, H, W]`` into tiles: ``[height, width, tiles·B, C]``."""
        pixels, ends = self._pixels(x.shape, phase)
        x = F.pad(x.permute(2, 3, 0, 1)[pixels], (0, 0, 0, 0, *ends))
        tiles = self.rows(self.columns(x.transpose(0, 1)).movedim(2, 0))  # [Y/y, y, X/x, x, B, C]
        return tiles.permute(1, 3, 0, 2, 4, 5).reshape(self.rows.tile, self.columns.tile, -1, x.shape[3])

    def put_tiles(self, dx: Tensor, phase: tuple[int, int], tiles: Tensor) -> None:
        """Write gradients of tiles to where their pixels are in dx ``[B, C, H, W]``, whose other pixels stay."""
        (rows, columns), (left, _, top, _) = self._pixels(dx.shape, phase)
        tiles = tiles.unflatten(2, (self.rows.tiles, self.columns.tiles, len(dx))).permute(2, 0, 3, 1, 4, 5)
        x = self.columns.transposed(self.rows.transposed(tiles).movedim(0, 2)).transpose(0, 1)
        to = dx.permute(2, 3, 0, 1)[rows, columns]
        to.copy_(x[top : top + len(to), left : left + to.shape[1]])

    def taps(self, weight: Tensor, phase: tuple[int, int]) -> Tensor:
        """Take a phase of kernels ``[C', C, K_h, K_w]``, filled up with zeros: ``[height, width, C, C']``."""
        taps = weight.permute(2, 3, 1, 0)[phase[0] :: self.stride, phase[1] :: self.stride]
        below, right = self.rows.kernel - taps.shape[0], self.columns.kernel - taps.shape[1]
        return F.pad(taps, (0, 0, 0, 0, 0, right, 0, below))

    def put_taps(self, dw: Tensor, phase: tuple[int, int], taps: Tensor) -> None:
        """Write gradients of taps to where they belong in dw ``[C', C, K_h, K_w]``."""
        to = dw.permute(2, 3, 1, 0)[phase[0] :: self.stride, phase[1] :: self.stride]
        to.copy_(taps[: to.shape[0], : to.shape[1]])

    def outputs(self, y: Tensor, n: int) -> Tensor:
        """Put tiles of outputs ``[step, step', tiles·B, C']`` of n images together: ``[B, C', H', W']``."""
        y = y.unflatten(2, (self.rows.tiles, self.columns.tiles, n)).permute(4, 2, 0, 3, 1, 5)
        y = y.reshape(n, self.rows.tiles * self.rows.step, self.columns.tiles * self.columns.step, y.shape[5])
        return y[:, : self.rows.out, : self.columns.out].permute(0, 3, 1, 2)

    def cut_outputs(self, dy: Tensor) -> Tensor:
        """Cut gradients of outputs as :meth:`outputs` has put them together."""
        below, right = (cut.tiles * cut.step - cut.out for cut in (self.rows, self.columns))
        dy = F.pad(dy.permute(0, 2, 3, 1), (0, 0, 0, right, 0, below))
        dy = dy.unflatten(2, (self.columns.tiles, self.columns.step)).unflatten(1, (self.rows.tiles, self.rows.step))
        return dy.permute(2, 4, 1, 3, 0, 5).flatten(2, 4)

    def _pixels(self, x: Sequence[int], phase: tuple[int, int]) -> tuple[tuple[slice, slice], tuple[int, ...]]:
        """Say which pixels a phase has, and how many zeros are left, right, above and below them."""
        pixels, ends = [], []
        for size, cut, first in zip(x[-2:], (self.rows, self.columns), phase, strict=True):
            before = max(0, math.ceil((self.padding - first) / self.stride))
            start = first + self.stride * before - self.padding
            n = max(0, min(cut.inputs - before, math.ceil((size - start) / self.stride)))
            pixels.append(slice(start, start + self.stride * n, self.stride))
            ends.append((before, cut.inputs - before - n))
        return (pixels[0], pixels[1]), (*ends[1], *ends[0])


def is_faster(x: Sequence[int], weight: Sequence[int], stride: int, gradients: bool) -> bool:
    """Tell whether :func:`spectral_conv2d` multiplies so much less, for these shapes, that it is faster on a CPU.

    That is little more than half as much, transforms included, as it moves more memory; and less than half without
    ``gradients``, for which the transforms of image and kernel would serve again.
    """
    if min(x) == 0 or min(weight) == 0 or x[2] < weight[2] or x[3] < weight[3]:
        return False
    rows, columns, *_ = Cut.of(x, weight, stride, 0)
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

    Coefficients are made of one phase and some channels at a time, and made again for the gradient. So memory is little
    more than that of images, kernels and outputs, and most of it stays in the cache.

    Args:
        x: ``[B, C, H, W]``.
        weight: ``[C', C, K_h, K_w]``, of the same dtype.
        stride: in both directions.
        padding: zeros on every side.

    Without autograd a few images of large maps are taken at a time.

    Returns:
        ``[B, C', H', W']``, with the strides of channels last.

    Source: Mathieu, Henaff, LeCun 2014 (products at frequencies); Lavin, Gray 2016 (tiles, and transforms as matrices).
    """
    cut = Cut.of(x.shape, weight.shape, stride, padding)
    of_image = stride**2 * x.shape[1] * math.prod(each.tiles * each.tile for each in (cut.rows, cut.columns))
    n = max(1, _AT_ONCE // max(1, of_image))
    if n < len(x) and not torch.is_grad_enabled():
        if in_functorch():  # where weights may be batched that a new tensor would not know of
            return torch.cat([spectral_conv2d(some, weight, stride, padding) for some in x.split(n)])
        y = x.new_empty((len(x), cut.rows.out, cut.columns.out, len(weight))).permute(0, 3, 1, 2)
        for part, some in zip(y.split(n), x.split(n), strict=True):  # not put together: parts would lie between others
            part.copy_(spectral_conv2d(some, weight, stride, padding))
        return y
    if in_functorch() or have_tangents(x, weight):
        return _at_once(x, weight, cut)
    made = _InParts.apply(x, weight, cut)
    assert isinstance(made, Tensor)
    return made


def _at_once(x: Tensor, weight: Tensor, cut: Cut) -> Tensor:
    """Take all channels of a phase at once, by what autograd and ``torch.func`` know."""
    signal, response, inverse = transforms(cut.rows, cut.columns, x)
    parts = []
    for phase in cut.phases(weight.shape):
        tiles, taps = cut.tiles(x, phase), cut.taps(weight, phase)
        spectra = signal(tiles.flatten(2)).unflatten(1, tiles.shape[2:])
        parts.append(product(spectra, response(taps.flatten(2)).unflatten(1, taps.shape[2:])))
    y = torch.stack(parts).sum(0)
    return cut.outputs(inverse.transposed(y.flatten(1)).unflatten(2, y.shape[1:]), len(x))


class _InParts(Function):
    """A phase and some channels at a time, forward and backward; at once for derivatives of higher order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cut: Cut) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, weight)
        ctx.cut = cut
        signal, response, inverse = transforms(cut.rows, cut.columns, x)
        n = len(x) * cut.rows.tiles * cut.columns.tiles
        y = x.new_zeros(signal.size, n, len(weight), dtype=_sums(x))
        for phase, some in _parts(cut, response, weight):
            tiles, taps = cut.tiles(x[:, some], phase), cut.taps(weight[:, some], phase)
            spectra, shape, taps = (
                signal(tiles.flatten(2)).unflatten(1, tiles.shape[2:]),
                taps.shape[2:],
                taps.flatten(2),
            )
            for k, (of_tiles, of_y) in enumerate(_frequencies(response, spectra, y)):
                add_product(of_y, of_tiles, response.part(k)(taps).unflatten(1, shape))
        y = inverse.transposed(y.to(x.dtype).flatten(1)).unflatten(2, y.shape[1:])
        return cut.outputs(y, len(x))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        with without_autocast(dy):
            take = _gradients_at_once if torch.is_grad_enabled() or of_many_outputs(dy) else _gradients_in_parts
            return *take(x, weight, ctx.cut, dy, of_x, of_weight), None


_Gradients = tuple[Tensor | None, Tensor | None]


def _gradients_at_once(x: Tensor, weight: Tensor, cut: Cut, dy: Tensor, of_x: bool, of_weight: bool) -> _Gradients:
    """Leave it to autograd, for gradients that have some themselves or come for many outputs at once."""
    with torch.enable_grad():
        y = _at_once(x, weight, cut)
    asked = [each for each, wanted in ((x, of_x), (weight, of_weight)) if wanted]
    found = list(torch.autograd.grad(y, asked, dy, create_graph=torch.is_grad_enabled()))
    return found[0] if of_x else None, found[-1] if of_weight else None


def _gradients_in_parts(x: Tensor, weight: Tensor, cut: Cut, dy: Tensor, of_x: bool, of_weight: bool) -> _Gradients:
    signal, response, inverse = transforms(cut.rows, cut.columns, x)
    outputs = cut.cut_outputs(dy)
    dy = inverse(outputs.flatten(2)).unflatten(1, outputs.shape[2:])
    dx, dw = (torch.empty_like if cut.covers(x.shape, weight.shape) else torch.zeros_like)(x), torch.empty_like(weight)
    for phase, some in _parts(cut, response, weight):
        tiles, taps = cut.tiles(x[:, some], phase), cut.taps(weight[:, some], phase)
        shape, taps = taps.shape, taps.flatten(2)
        spectra = signal(tiles.flatten(2)).unflatten(1, tiles.shape[2:])
        d_spectra, d_taps = torch.empty_like(spectra), torch.zeros_like(taps)
        for k, (of_tiles, of_dy, of_d) in enumerate(_frequencies(response, spectra, dy, d_spectra)):
            part = response.part(k)
            if of_x:
                put_product(of_d, of_dy, part(taps).unflatten(1, shape[2:]).mT)
            if of_weight:
                part.add_transposed(product(of_tiles.mT, of_dy).flatten(1), d_taps)
        if of_x:
            cut.put_tiles(dx[:, some], phase, signal.transposed(d_spectra.flatten(1)).unflatten(2, tiles.shape[2:]))
        if of_weight:
            cut.put_taps(dw[:, some], phase, d_taps.unflatten(2, shape[2:]))
    return dx if of_x else None, dw if of_weight else None


def _parts(cut: Cut, response: Transform, weight: Tensor) -> Iterator[tuple[tuple[int, int], slice]]:
    """List the phases, and of each some channels at a time."""
    n = max(_CHANNELS_AT_ONCE, _KERNELS_AT_ONCE // max(1, response.columns.shape[1] * len(weight)))
    for phase in cut.phases(weight.shape):
        for first in range(0, weight.shape[1], n):
            yield phase, slice(first, first + n)


def _frequencies(response: Transform, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split the coefficients of each as the transform does."""
    return zip(*(x.chunk(len(response.columns)) for x in tensors), strict=True)


def _sums(x: Tensor) -> torch.dtype:
    """Choose the dtype of sums over parts."""
    return torch.promote_types(x.dtype, torch.float32)
