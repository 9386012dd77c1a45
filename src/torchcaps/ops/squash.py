"""The squashing non-linearity and the norm under it."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_axis, check_flag, check_floating
from torchcaps.ops.backends.tracing import has_values
from torchcaps.ops.precision import at_least_float32

#: Above the first, a square has lost nothing to underflow. Up to the second, the gradient of a length, a difference of
#: nearly equal numbers then, is right to five digits.
_ORDINARY = 1e-30, 1e2


def safe_norm(s: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """Compute the Euclidean norm, with gradient 0 instead of NaN at the zero vector.

    Exact for the largest and the smallest numbers too: each vector is divided by its largest
    element before it is squared, so that nothing overflows or vanishes. Half-precision input is
    computed in float32.

    Args:
        s: any shape.
        dim: the axis that is summed over.
        keepdim: keep that axis, with size 1.

    Returns:
        The norms, without the axis ``dim`` unless ``keepdim``.

    Raises:
        ValueError: no tensor of floating-point numbers, or no axis of it, or one of size 0; a ``keepdim`` that is
            neither true nor false.

    Example:
        >>> import torch
        >>> safe_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([5., 0.])
    """
    check_floating("s", s)
    check_axis("dim", dim, s)
    check_flag("keepdim", keepdim)
    _, norm = _direction_and_norm(at_least_float32(s), dim)
    return (norm if keepdim else norm.squeeze(dim)).to(s.dtype)


def _direction_and_norm(s: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Split each vector into its unit vector, 0 for the zero vector, and its length."""
    largest = s.detach().abs().amax(dim, keepdim=True)
    zero = largest == 0
    scale = torch.where(zero | largest.isinf(), 1.0, largest)  # the norm of an infinite vector is infinite
    scaled = s / scale
    squared = scaled.square().sum(dim, keepdim=True)  # in 1 … D, or 0
    length = torch.where(zero, 1.0, squared).sqrt()
    return scaled / length, torch.where(zero, 0.0, length * scale)


def _square_of_ordinary(s: Tensor, dim: int) -> Tensor | None:
    """Return the squared lengths; None where a length or its gradient takes care, or values cannot be read."""
    if not has_values(s):
        return None
    square = s.square().sum(dim, keepdim=True)
    least, most = square.detach().aminmax()
    return square if _ORDINARY[0] < least.item() and most.item() < _ORDINARY[1] else None


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrink each vector to a length in 0 … 1, keeping its direction.

    v = ‖s‖² / (1 + ‖s‖²) · s / ‖s‖ = s · ‖s‖ / (1 + ‖s‖²)

    Exact (there is no ε in it), with value 0 and gradient 0 at the zero vector. Half-precision
    input is computed in float32.

    Args:
        s: any shape.
        dim: the axis of the pose.

    Returns:
        v, of the shape and dtype of ``s``.

    Raises:
        ValueError: no tensor of floating-point numbers, or no axis of it, or one of size 0.

    Example:
        >>> import torch
        >>> squash(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))  # of length 5: 25/26 remain
        tensor([[0.5769, 0.7692],
                [0.0000, 0.0000]])

    Source: Sabour et al. 2017, section 2, equation 1.
    """
    return squash_with_length(s, dim)[0]


def squash_with_length(s: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Squash vectors, and return their lengths too, which are never above 1, not even by rounding.

    Args:
        s: any shape.
        dim: the axis of the pose.

    Returns:
        v, of the shape of ``s``, and ‖v‖, without the axis ``dim``; both of the dtype of ``s``.

    Raises:
        ValueError: as :func:`squash`.
    """
    check_floating("s", s)
    check_axis("dim", dim, s)
    wide = at_least_float32(s)
    square = _square_of_ordinary(wide, dim)
    if square is not None:
        below = 1 + square
        v, length = wide * (square.sqrt() / below), square / below
        return v.to(s.dtype), length.squeeze(dim).to(s.dtype)
    direction, norm = _direction_and_norm(wide, dim)
    # n² / (1 + n²) for short vectors and 1 / (1 + 1/n²) for long ones: neither overflows.
    long = norm > 1
    square = torch.where(long, 1 / norm.clamp_min(1), norm).square()
    length = torch.where(long, 1.0, square) / (1 + square)
    return (direction * length).to(s.dtype), length.squeeze(dim).to(s.dtype)


def exponential_squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrink each vector to a length in 0 … 1 that rises in proportion to it at first, keeping its direction.

    v = (1 − e^(−‖s‖)) · s / ‖s‖

    Short vectors keep their length, which :func:`squash` squares: of 0.1 remain 0.095 here, and 0.0099 there. So the
    gradient at the zero vector is 1 in all directions, not 0. Exact, with no ε in it; half-precision input is computed
    in float32.

    Args:
        s: any shape.
        dim: the axis of the pose.

    Returns:
        v, of the shape and dtype of ``s``.

    Raises:
        ValueError: no tensor of floating-point numbers, or no axis of it, or one of size 0.

    Example:
        >>> import torch
        >>> exponential_squash(torch.tensor([[0.6, 0.8], [0.0, 0.0]]))  # of length 1: 1 − 1/e remain
        tensor([[0.3793, 0.5057],
                [0.0000, 0.0000]])

    Source: Mazzia, Salvetti, Chiaberge 2021, arXiv 2101.12491.
    """
    return exponential_squash_with_length(s, dim)[0]


def exponential_squash_with_length(s: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Squash vectors by :func:`exponential_squash`, and return their lengths too.

    Args:
        s: any shape.
        dim: the axis of the pose.

    Returns:
        v, of the shape of ``s``, and ‖v‖, without the axis ``dim``; both of the dtype of ``s``.

    Raises:
        ValueError: as :func:`squash`.
    """
    check_floating("s", s)
    check_axis("dim", dim, s)
    wide = at_least_float32(s)
    direction, norm = _direction_and_norm(wide, dim)
    length = -torch.expm1(-norm)
    # There v = s to first order, which the product of direction and length does not say.
    v = torch.where(norm == 0, wide, direction * length)
    return v.to(s.dtype), length.squeeze(dim).to(s.dtype)
