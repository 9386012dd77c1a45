"""Affine transformations of the image plane: made, taken apart, applied to poses and to images.

A transformation is a matrix ``[..., 3, 3]`` on columns (x, y, 1): x to the right, y down, in pixels from the
image's centre. T₂T₁ is T₁, then T₂.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_beside, check_choice, check_floating, check_shapes, check_tensor, check_two
from torchcaps.ops.precision import at_least_float32, constant, without_autocast

#: What lies beyond an image's edges, as torch's ``grid_sample`` calls it: black, the nearest pixel, or the image
#: mirrored at its edges (the pixel at the edge occurs twice).
Fill = Literal["zeros", "border", "reflection"]
FILLS = get_args(Fill)


class AffineParts(NamedTuple):
    """What an affine transformation does, as T = shift · rotation · shear · scale.

    Attributes:
        angle: rotation in radians from x towards y, which is clockwise on the screen, ``[...]``.
        scale: (along x, along y), ``[..., 2]``.
        shear: how far x moves with y, ``[...]``.
        shift: (x, y) in pixels, ``[..., 2]``.
    """

    angle: Tensor
    scale: Tensor
    shear: Tensor
    shift: Tensor


def affine_matrix(parts: AffineParts) -> Tensor:
    """Build the matrix ``[..., 3, 3]`` of these parts.

    Raises:
        ValueError: they are not :class:`AffineParts`, of floating point, or their shapes do not fit.

    Example:
        >>> import torch
        >>> nothing = torch.zeros(1)
        >>> parts = AffineParts(nothing, torch.ones(1, 2), nothing, torch.tensor([[2.0, 3.0]]))
        >>> affine_matrix(parts)
        tensor([[[1., 0., 2.],
                 [0., 1., 3.],
                 [0., 0., 1.]]])
    """
    if not isinstance(parts, AffineParts):
        raise ValueError(f"parts must be AffineParts, got {type(parts).__name__}")
    for name, part in zip(parts._fields, parts, strict=True):
        check_floating(f"parts.{name}", part)
        check_beside(f"parts.{name}", part, "parts.angle", parts.angle)
        wanted = [*parts.angle.shape, *([2] if name in ("scale", "shift") else [])]
        if list(part.shape) != wanted:
            raise ValueError(f"parts.{name} must be {wanted} beside that angle, got shape {list(part.shape)}")
    cos, sin = parts.angle.cos(), parts.angle.sin()
    (sx, sy), shear = parts.scale.unbind(-1), parts.shear
    linear = torch.stack((cos * sx, (cos * shear - sin) * sy, sin * sx, (sin * shear + cos) * sy), dim=-1)
    return _with_last_row(torch.cat((linear.unflatten(-1, (2, 2)), parts.shift.unsqueeze(-1)), dim=-1))


def shift_matrix(by: Tensor) -> Tensor:
    """Build the matrices ``[..., 3, 3]`` of shifts (x, y) in pixels, ``[..., 2]``."""
    linear = torch.eye(2, dtype=by.dtype, device=by.device).expand(*by.shape[:-1], 2, 2)
    return _with_last_row(torch.cat((linear, by.unsqueeze(-1)), dim=-1))


def affine_parts(matrix: Tensor) -> AffineParts:
    """Take transformations apart; :func:`affine_matrix` puts them together again.

    Args:
        matrix: ``[..., 3, 3]``, of which the first two rows count; no reflections.

    Raises:
        ValueError: another shape, or numbers that are not floating point.

    Example:
        >>> import torch
        >>> affine_parts(torch.eye(3)[None]).scale
        tensor([[1., 1.]])
    """
    a, b, x, c, d, y = _entries(matrix)
    sx = torch.hypot(a, c)
    sy = (a * d - b * c) / sx
    shear = (a * b + c * d) / (sx * sy)
    return AffineParts(torch.atan2(c, a), torch.stack((sx, sy), dim=-1), shear, torch.stack((x, y), dim=-1))


def affine_parts_of(numbers: Tensor, most_scale: float = 2.0) -> AffineParts:
    """Make parts from six numbers of any size, such that their matrix has an inverse.

    Args:
        numbers: angle, two scales, shear and two shifts, ``[..., 6]``; zeros make the identity.
        most_scale: scales lie between 1 / this and this.
    """
    scale = (math.log(most_scale) * numbers[..., 1:3].tanh()).exp()
    return AffineParts(numbers[..., 0], scale, numbers[..., 3].tanh(), numbers[..., 4:])


def affine_inverse(matrix: Tensor) -> Tensor:
    """Invert matrices ``[..., 3, 3]`` with last row 0, 0, 1, in closed form.

    Raises:
        ValueError: another shape, or numbers that are not floating point.

    Example:
        >>> import torch
        >>> doubled = torch.diag(torch.tensor([2.0, 2.0, 1.0]))
        >>> affine_inverse(doubled).diagonal()
        tensor([0.5000, 0.5000, 1.0000])
    """
    a, b, x, c, d, y = _entries(matrix)
    top = torch.stack((d, -b, b * y - d * x, -c, a, c * x - a * y), dim=-1) / (a * d - b * c).unsqueeze(-1)
    return _with_last_row(top.unflatten(-1, (2, 3)))


def transform_pose(pose: Tensor, matrix: Tensor) -> Tensor:
    """Apply each image's T to the poses of its capsules, from the left.

    Args:
        pose: points (x, y) ``[B, J, 2]``, or matrices A ``[B, J, 3, 3]``.
        matrix: T, ``[B, 3, 3]``.

    Returns:
        T(x, y), or T·A, of the pose's shape and the dtype that both promote to.

    Raises:
        ValueError: the shapes do not fit.

    Example:
        >>> import torch
        >>> shift = torch.tensor([[[1.0, 0.0, 2.0], [0.0, 1.0, 3.0], [0.0, 0.0, 1.0]]])
        >>> transform_pose(torch.zeros(1, 1, 2), shift)
        tensor([[[2., 3.]]])

    Source: Hinton, Krizhevsky, Wang 2011.
    """
    check_tensor("pose", pose)
    check_shapes(pose=(pose, "B J 2" if pose.dim() == 3 else "B J 3 3"), matrix=(matrix, "B 3 3"))
    dtype = torch.promote_types(pose.dtype, matrix.dtype)
    pose, matrix = at_least_float32(pose.to(dtype)), at_least_float32(matrix.to(dtype))
    with without_autocast(pose):  # bfloat16 would round a pose by a tenth of a pixel
        if pose.dim() == 3:
            return (torch.einsum("bxy,bjy->bjx", matrix[:, :2, :2], pose) + matrix[:, None, :2, 2]).to(dtype)
        return torch.einsum("bxy,bjyk->bjxk", matrix, pose).to(dtype)


def warp(images: Tensor, matrix: Tensor, size: tuple[int, int] | None = None, *, fill: Fill = "zeros") -> Tensor:
    """Transform each image by its own matrix, interpolating bilinearly.

    What was at p is at T p afterwards. A shift by whole pixels moves them unchanged, except for rounding.

    Args:
        images: ``[B, C, h, w]``.
        matrix: T, ``[B, 3, 3]`` with last row 0, 0, 1, invertible.
        size: (H, W) of the result, by default that of the images; their centres lie on each other.
        fill: what lies beyond the image: "zeros", "border" for its nearest pixel, or "reflection" at its edges.

    Returns:
        ``[B, C, H, W]``, of the dtype that the images' and the matrices' promote to; computed in float32 at least.

    Raises:
        ValueError: the shapes do not fit, images without a pixel or of integers, ``size`` is not two sizes, or an
            unknown ``fill``.

    Example:
        >>> import torch
        >>> shift = torch.tensor([[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])  # one pixel to the right
        >>> warp(torch.tensor([[[[1.0, 2.0, 3.0]]]]), shift)
        tensor([[[[0., 1., 2.]]]])
        >>> warp(torch.tensor([[[[1.0, 2.0, 3.0]]]]), shift, fill="border")
        tensor([[[[1., 1., 2.]]]])
    """
    check_choice("fill", fill, FILLS)
    check_shapes(images=(images, "B C H W"), matrix=(matrix, "B 3 3"))
    check_floating("images", images)
    if not (images.shape[2] and images.shape[3]):
        raise ValueError(f"images must have pixels, got shape {list(images.shape)}")
    if size is not None:
        check_two("size", size, 1)
    dtype = torch.promote_types(images.dtype, matrix.dtype)
    return sample(images, affine_inverse(at_least_float32(matrix)), size, fill=fill).to(dtype)


def sample(images: Tensor, back: Tensor, size: tuple[int, int] | None = None, *, fill: Fill = "zeros") -> Tensor:
    """Warp as :func:`warp` does, but by T⁻¹ ``[B, 3, 3]``: where in the image each pixel of the result comes from."""
    height, width = images.shape[2:]
    to = size or (height, width)
    dtype = torch.promote_types(images.dtype, back.dtype)
    back = at_least_float32(back.to(dtype))
    halves = constant((to[1] / 2, to[0] / 2, 1.0), back)
    per_pixel = constant((2 / width, 2 / height), back).unsqueeze(1)
    return resample(images, back[:, :2] * halves * per_pixel, to, padding=fill).to(dtype)


def resample(images: Tensor, rows: Tensor, size: tuple[int, int] | None = None, *, padding: str = "zeros") -> Tensor:
    """Take each pixel of the result from where a map sends it, interpolating bilinearly.

    Args:
        images: ``[B, C, h, w]``.
        rows: of the maps, x and y, ``[B, 2, 3]``, as torch's ``affine_grid`` counts: in halves of width and height.
        size: (H, W) of the result, by default that of the images.
        padding: what lies beyond the image, as torch's ``grid_sample`` calls it.

    Returns:
        ``[B, C, H, W]``, of the dtype that images' and rows' promote to, in float32 at least.
    """
    size = size or (images.shape[2], images.shape[3])
    dtype = torch.promote_types(images.dtype, rows.dtype)
    images, rows = at_least_float32(images.to(dtype)), at_least_float32(rows.to(dtype))
    if images.shape[0] == 0:  # which grid_sample refuses
        return images.new_zeros(0, images.shape[1], *size) + 0 * rows.sum()
    with without_autocast(images):  # bfloat16 would round places by a tenth of a pixel
        grid = torch.bmm(_pixels(size, rows).expand(rows.shape[0], -1, -1), rows.mT).unflatten(1, size)
        if _in_order(images, rows):
            return _sample_by_products(images, grid, padding)
        return F.grid_sample(images, grid, padding_mode=padding, align_corners=False)


def _in_order(*tensors: Tensor) -> bool:
    """Return whether sums must be the same each time, as those of ``grid_sample``'s gradient are not but on a CPU."""
    asked = torch.are_deterministic_algorithms_enabled() and torch.is_grad_enabled()
    return asked and any(x.requires_grad and x.device.type != "cpu" for x in tensors)


def _sample_by_products(images: Tensor, grid: Tensor, padding: str) -> Tensor:
    """Sample as ``grid_sample`` does, by products of matrices for rows and columns: no two pixels write to one place.

    Args:
        images: ``[B, C, h, w]``.
        grid: ``[B, H, W, 2]``.
        padding: "zeros", "border" or "reflection".
    """
    x, y = (
        _weights(((at + 1) * size - 1) / 2, size, padding)
        for at, size in zip(grid.flatten(1, 2).unbind(2), images.shape[:1:-1], strict=True)
    )
    found = torch.einsum("bchw,bpw->bchp", images, x)
    return (found * y.mT.unsqueeze(1)).sum(dim=2).unflatten(2, grid.shape[1:3])


def _weights(at: Tensor, size: int, padding: str) -> Tensor:
    """Weigh each of a row of pixels at places ``[B, P]`` between them: ``[B, P, size]``."""
    if padding == "reflection":  # about the outer edges of the first and the last pixel
        folded = (at + 0.5).remainder(2 * size)
        at = torch.minimum(folded, 2 * size - folded) - 0.5
    at = (at if padding == "zeros" else at.clamp(0, size - 1)).unsqueeze(2)
    low, pixel = at.detach().floor(), torch.arange(size, device=at.device)
    return torch.where(pixel == low, low + 1 - at, 0) + torch.where(pixel == low + 1, at - low, 0)


def _pixels(size: tuple[int, int], like: Tensor) -> Tensor:
    """Return ``[H·W, 3]``: x, y of each pixel's centre, as ``affine_grid`` counts and rounds, and 1.

    torch's own cannot be compiled with its gradient where the batch's size may change.
    """
    y, x = (torch.linspace(-1, 1, n, dtype=like.dtype, device=like.device) * (n - 1) / n for n in size)
    y, x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack((x, y, torch.ones_like(x)), dim=2).flatten(0, 1)


def _with_last_row(top: Tensor) -> Tensor:
    """Append the row 0, 0, 1 to ``[..., 2, 3]``."""
    last = constant((0.0, 0.0, 1.0), top).expand(*top.shape[:-2], 1, 3)
    return torch.cat((top, last), dim=-2)


def _entries(matrix: Tensor) -> tuple[Tensor, ...]:
    """Return a, b, x, c, d, y of the first two rows."""
    check_floating("matrix", matrix)
    if matrix.shape[-2:] != (3, 3):
        raise ValueError(f"matrix must be [..., 3, 3], got shape {list(matrix.shape)}")
    return matrix[..., :2, :].flatten(-2).unbind(-1)
