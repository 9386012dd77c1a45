"""The convolution of networks and in front of capsules, on which a CapsNet spends most of its time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.checks import as_two, check_floating, check_shapes, check_tensor
from torchcaps.ops.backends.tracing import in_dispatch_mode
from torchcaps.ops.few_places import few_places_conv2d, is_for_few_places
from torchcaps.ops.precision import autocasts
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
    the time or less, in as much memory, and with rounding errors relative to the largest number nearby, as said there.
    Few places without autograd, as of one image, and a weight that lies in memory as ``[K_h, K_w, C, C']`` does, as
    that of primary capsules: ``torchcaps.ops.few_places.few_places_conv2d``. For CapsNet torch would take ten times as
    long, most of it to copy the weight.
    All others are torch's own, and all that are compiled, exported, traced or counted.

    Args:
        x: ``[B, C, H, W]``, or one image ``[C, H, W]``, which torch's own takes.
        weight: ``[C', C, K_h, K_w]``.
        bias: ``[C']``.
        stride: in both directions, or (rows, columns). Where it is not the same in both, torch's own is taken.
        padding: zeros on every side, or (above and below, left and right); likewise.

    Returns:
        ``[B, C', H', W']``.

    Raises:
        ValueError: shapes that do not fit, a kernel larger than the padded map, numbers that are not floating point,
            or, without autocast, of several dtypes.

    Example:
        >>> import torch
        >>> conv2d(torch.rand(2, 1, 28, 28), torch.rand(256, 1, 9, 9)).shape
        torch.Size([2, 256, 20, 20])
    """
    stride, padding = _one(as_two("stride", stride, 1)), _one(as_two("padding", padding, 0))
    if not is_tracing():  # where sizes are tensors
        _check(x, weight, bias, padding)
    if stride != 1 and padding == 0 and not is_tracing() and x.dim() == 4 and weight.shape[2:] == (1, 1):
        # The same with fewer pixels; and oneDNN's own writes beyond its memory where few channels lie last
        # (uxlfoundation/oneDNN#6035).
        rows, columns = (stride, stride) if isinstance(stride, int) else stride
        x, stride = x[:, :, ::rows, ::columns], 1
    if not isinstance(stride, int) or not isinstance(padding, int):
        return F.conv2d(x, weight, bias, stride=stride, padding=padding)
    if not _is_watched() and is_for_few_places(x, weight, bias, stride, padding):
        return few_places_conv2d(x, weight, bias, stride, padding)
    dtype = _dtype(x, weight)
    if dtype is not None and _use_fft(x, weight, bias, stride, padding):
        with torch.autocast("cpu", enabled=False):
            y = spectral_conv2d(x.to(dtype), weight.to(dtype), stride, padding)
            return y if bias is None else y + bias.to(dtype)[:, None, None]
    return F.conv2d(x, weight, bias, stride=stride, padding=padding)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int | tuple[int, int]) -> None:
    """Refuse what torch would refuse without the names of arguments."""
    check_tensor("x", x)
    check_shapes(x=(x, "C H W" if x.dim() == 3 else "B C H W"), weight=(weight, "C' C K_h K_w"))
    if bias is not None:
        check_shapes(weight=(weight, "C' C K_h K_w"), bias=(bias, "C'"))
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        check_floating(name, tensor)
        if tensor.dtype != x.dtype and not autocasts(x.device.type):
            raise ValueError(f"{name} must be {x.dtype} as x is, got {tensor.dtype}")
    around = (padding, padding) if isinstance(padding, int) else padding
    for extent, kernel, edge in zip(x.shape[-2:], weight.shape[2:], around, strict=True):
        if not 0 < kernel <= extent + 2 * edge:
            raise ValueError(
                f"weight must have a kernel that fits into x, got {list(weight.shape[2:])} for maps of "
                f"{list(x.shape[-2:])} and padding {padding}"
            )


def _one(sizes: tuple[int, int]) -> int | tuple[int, int]:
    """Return the one number that both are."""
    rows, columns = sizes
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


def _is_watched() -> bool:
    return torch.compiler.is_compiling() or is_tracing() or in_dispatch_mode()


def _use_fft(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> bool:
    """Tell whether an FFT is possible and faster. What the library refuses is left to it, for its message."""
    if _is_watched() or not x.device.type == weight.device.type == "cpu":
        return False
    fits = x.dim() == weight.dim() == 4 and x.shape[1] == weight.shape[1] and stride >= 1 and padding >= 0
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        return False
    if bias is not None and bias.dtype != x.dtype and not torch.is_autocast_enabled("cpu"):
        return False
    height, width = (size + 2 * padding for size in x.shape[2:])
    return is_faster((*x.shape[:2], height, width), weight.shape, stride, torch.is_grad_enabled())
