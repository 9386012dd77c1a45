"""The convolution that makes few places, as of one image: torch would copy the weight, for longer than it convolves."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops.backends.native import SUFFIXES, load, why_not
from torchcaps.ops.backends.tracing import in_functorch
from torchcaps.ops.product import product

#: Places of the result up to which compiled code is the fastest, and one product of matrices where there is none.
_FEW, _FEW_FOR_A_PRODUCT = 1200, 80
_LIBRARY = "few_places"


def is_for_few_places(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> bool:
    """Tell whether :func:`few_places_conv2d` serves: few places, no gradients, a weight that it needs no copy of."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or in_functorch():
        return False
    if not x.device.type == weight.device.type == "cpu" or x.dtype != weight.dtype or x.dim() != 4 or weight.dim() != 4:
        return False
    if x.shape[1] != weight.shape[1] or stride < 1 or padding < 0 or not x.dtype.is_floating_point:
        return False
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype):
        return False
    down, right = _extent(x, weight, stride, padding)
    places = x.shape[0] * down * right
    if not 0 < places <= _FEW or min(down, right) < 1 or weight.numel() == 0:
        return False
    if weight.is_contiguous() or not weight.permute(2, 3, 1, 0).is_contiguous():
        return False
    return places <= _FEW_FOR_A_PRODUCT or _is_compiled(x.dtype, weight.shape[0])


def few_places_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Convolve as :func:`torch.nn.functional.conv2d` does, where :func:`is_for_few_places` says so.

    Args:
        x: ``[B, C, H, W]``; read without a copy where channels lie last.
        weight: ``[C', C, K_h, K_w]``, which lies in memory as ``[K_h, K_w, C, C']``.
        bias: ``[C']``.
        stride: in both directions.
        padding: zeros on every side.

    Returns:
        ``[B, C', H', W']``, with the strides of channels last.
    """
    seen = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding, padding, padding, padding)).contiguous()  # [B, H, W, C]
    if _is_compiled(x.dtype, weight.shape[0]):
        return _compiled(seen, weight, bias, stride, _extent(x, weight, stride, padding))
    return _by_product(seen, weight, bias, stride)


def _extent(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[int, int]:
    """Return the height and width of the result."""
    (height, width), (rows, columns) = ([int(size) for size in each.shape[2:]] for each in (x, weight))
    return (height + 2 * padding - rows) // stride + 1, (width + 2 * padding - columns) // stride + 1


def _is_compiled(dtype: torch.dtype, n_out: int) -> bool:
    if dtype not in SUFFIXES or why_not(_LIBRARY) is not None:
        return False
    return n_out % getattr(load(_LIBRARY), f"lanes_{SUFFIXES[dtype]}")() == 0


def _compiled(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, extent: tuple[int, int]) -> Tensor:
    n_out, _, rows, columns = weight.shape
    y = x.new_empty(x.shape[0], *extent, n_out)
    bias = None if bias is None else bias.contiguous()
    sizes = *x.shape, n_out, rows, columns, stride, *extent, torch.get_num_threads()
    given = (None if each is None else each.data_ptr() for each in (x, weight, bias, y))
    convolve = getattr(load(_LIBRARY), f"convolve_{SUFFIXES[x.dtype]}")
    if convolve(*map(ctypes.c_int64, sizes), *map(ctypes.c_void_p, given)):
        raise MemoryError(f"a convolution of sizes {sizes} ran out of memory")
    return y.permute(0, 3, 1, 2)


def _by_product(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Convolve ``[B, H, W, C]`` by one product: what the kernel sees at each place, and the weight as it lies."""
    n_out, n_in, rows, columns = weight.shape
    seen = x.unfold(1, rows, stride).unfold(2, columns, stride).permute(0, 1, 2, 4, 5, 3)
    places = seen.shape[:3]
    y = product(seen.reshape(-1, rows * columns * n_in), weight.permute(2, 3, 1, 0).reshape(-1, n_out))
    y = y if bias is None else y + bias
    return y.unflatten(0, places).permute(0, 3, 1, 2)
