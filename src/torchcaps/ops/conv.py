"""The convolution of networks and in front of capsules, on which a CapsNet spends most of its time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.ops.backends.tracing import in_dispatch_mode
from torchcaps.ops.spectral import is_faster, spectral_conv2d


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> Tensor:
    """Convolve in two dimensions, as :func:`torch.nn.functional.conv2d` does.

    On a CPU, in float32 or bfloat16 (autocast's or the tensors' own), convolutions with large kernels, many channels
    and, where autograd is off, larger batches go by ``torchcaps.ops.spectral.spectral_conv2d``: CapsNet's in half
    the time or less, for more memory, and with rounding errors relative to the largest number nearby, as said there.
    All others are torch's own, and all that are compiled, exported, traced or counted.

    Args:
        x: ``[B, C, H, W]``.
        weight: ``[C', C, K_h, K_w]``.
        bias: ``[C']``.
        stride: in both directions, or (rows, columns). Where it is not the same in both, torch's own is taken.
        padding: zeros on every side, or (above and below, left and right); likewise.

    Returns:
        ``[B, C', H', W']``.

    Example:
        >>> import torch
        >>> conv2d(torch.rand(2, 1, 28, 28), torch.rand(256, 1, 9, 9)).shape
        torch.Size([2, 256, 20, 20])
    """
    stride, padding = _one(stride), _one(padding)
    if stride != 1 and padding == 0 and not is_tracing() and x.dim() == 4 and weight.shape[2:] == (1, 1):
        # The same with fewer pixels; and oneDNN's own writes beyond its memory where few channels lie last
        # (uxlfoundation/oneDNN#6035).
        rows, columns = (stride, stride) if isinstance(stride, int) else stride
        x, stride = x[:, :, ::rows, ::columns], 1
    if not isinstance(stride, int) or not isinstance(padding, int):
        return F.conv2d(x, weight, bias, stride=stride, padding=padding)
    dtype = _dtype(x, weight)
    if dtype is not None and _use_fft(x, weight, bias, stride, padding):
        with torch.autocast("cpu", enabled=False):
            y = spectral_conv2d(x.to(dtype), weight.to(dtype), stride, padding)
            return y if bias is None else y + bias.to(dtype)[:, None, None]
    return F.conv2d(x, weight, bias, stride=stride, padding=padding)


def _one(sizes: int | tuple[int, int]) -> int | tuple[int, int]:
    """Return the one number that both are."""
    if not isinstance(sizes, Sequence):
        return int(sizes)
    rows, columns = map(int, sizes)
    return rows if rows == columns else (rows, columns)


def _dtype(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Choose the dtype of the convolution; None where that is left to the library."""
    known = torch.float32, torch.bfloat16
    if x.dtype not in known or weight.dtype not in known:
        return None
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        return dtype if dtype in known else None
    return x.dtype if x.dtype == weight.dtype else None


def _use_fft(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> bool:
    """Tell whether an FFT is possible and faster. What the library refuses is left to it, for its message."""
    watched = torch.compiler.is_compiling() or is_tracing() or in_dispatch_mode()
    if watched or not x.device.type == weight.device.type == "cpu":
        return False
    fits = x.dim() == weight.dim() == 4 and x.shape[1] == weight.shape[1] and stride >= 1 and padding >= 0
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        return False
    if bias is not None and bias.dtype != x.dtype and not torch.is_autocast_enabled("cpu"):
        return False
    height, width = (size + 2 * padding for size in x.shape[2:])
    return is_faster((*x.shape[:2], height, width), weight.shape, stride, torch.is_grad_enabled())
