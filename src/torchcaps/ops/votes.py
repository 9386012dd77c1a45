"""Votes: what each lower capsule predicts for each upper one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.checks import (
    as_number,
    check_at_least,
    check_beside,
    check_choice,
    check_positive,
    check_shapes,
    check_tensor,
    check_two,
)

PLACEMENTS = ("column", "row")


def dense_votes(u: Tensor, weight: Tensor) -> Tensor:
    """Let every lower capsule vote for every upper one: û_ij = u_i W_ij.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: transformation matrices, ``[I, J, d_in, d_out]``.

    Returns:
        Votes, ``[B, I, J, d_out]``, of the common dtype of both.

    Raises:
        ValueError: the shapes do not fit each other, or both are integers.

    Example:
        >>> import torch
        >>> dense_votes(torch.rand(2, 6, 8), torch.rand(6, 3, 8, 16)).shape
        torch.Size([2, 6, 3, 16])

    Source: Sabour et al. 2017, section 2, equation 2 (right).
    """
    check_shapes(u=(u, "B I d_in"), weight=(weight, "I J d_in d_out"))
    u, weight = _alike(u, weight, "u")
    return torch.einsum("bid,ijde->bije", u, weight)


def matrix_votes(pose: Tensor, weight: Tensor) -> Tensor:
    """Let every lower matrix capsule vote for every upper one: V_ij = M_i W_ij.

    Args:
        pose: M, ``[..., I, rows, d]``, any axes in front.
        weight: W, ``[I, J, d, columns]``.

    Returns:
        ``[..., I, J, rows, columns]``, of the common dtype of both.

    Raises:
        ValueError: the shapes do not fit each other, or both are integers.

    Example:
        >>> import torch
        >>> matrix_votes(torch.rand(2, 6, 4, 4), torch.rand(6, 3, 4, 4)).shape
        torch.Size([2, 6, 3, 4, 4])

    Source: Hinton, Sabour, Frosst 2018, section 2.
    """
    sizes = check_shapes(weight=(weight, "I J d columns"))
    check_tensor("pose", pose)
    check_beside("pose", pose, "weight", weight)
    if pose.dim() < 3 or (pose.shape[-3], pose.shape[-1]) != (sizes["I"], sizes["d"]):
        raise ValueError(
            f"pose must be [..., I={sizes['I']}, rows, d={sizes['d']}] as weight says, got shape {list(pose.shape)}"
        )
    pose, weight = _alike(pose, weight, "pose")
    if pose.dim() == 3:
        return torch.einsum("irk,ijkc->ijrc", pose, weight)
    # One axis in front, whatever there are: some runtimes read no tensor of more than six axes.
    votes = torch.einsum("birk,ijkc->bijrc", pose.flatten(0, -4), weight)
    return votes.unflatten(0, pose.shape[:-3])


def _alike(poses: Tensor, weight: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Bring both to their common dtype, of floating point; autocast chooses another by itself."""
    if poses.dtype == weight.dtype and poses.is_floating_point():
        return poses, weight
    dtype = torch.promote_types(poses.dtype, weight.dtype)
    if not dtype.is_floating_point:
        raise ValueError(f"{name} and weight must be floating point, got {poses.dtype} and {weight.dtype}")
    return poses.to(dtype), weight.to(dtype)


def receptive_fields(capsules: Tensor, kernel_size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Gather the lower capsules that each place of the next map sees.

    Args:
        capsules: a map, ``[B, T, H, W, D]``.
        kernel_size: rows and columns of a receptive field.
        stride: rows and columns from one field to the next.

    Returns:
        ``[B, H', W', T·K_h·K_w, D]`` with H' = (H − K_h) // stride_h + 1, W' likewise. The children
        stand in the order type, row, column, as in ``capsules.flatten(1, 3)``.

    Raises:
        ValueError: not a capsule map, a size below 1, or a kernel larger than the map.

    Example:
        >>> import torch
        >>> receptive_fields(torch.rand(1, 2, 5, 5, 8), (3, 3), (2, 2)).shape
        torch.Size([1, 2, 2, 18, 8])
    """
    sizes = check_shapes(capsules=(capsules, "B T H W D"))
    check_two("kernel_size", kernel_size, 1)
    check_two("stride", stride, 1)
    check_fields((sizes["H"], sizes["W"]), kernel_size, stride)
    d = sizes["D"]
    # Columns and D as one axis: some runtimes read no tensor of more than six axes.
    rows = capsules.flatten(3).unfold(3, kernel_size[1] * d, stride[1] * d)  # [B, T, H, W', K_w·D]
    fields = rows.unfold(2, kernel_size[0], stride[0])  # [B, T, H', W', K_w·D, K_h]
    return fields.permute(0, 2, 3, 1, 5, 4).flatten(3, 4).unflatten(4, (kernel_size[1], d)).flatten(3, 4)


def check_fields(map_size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int]) -> None:
    """Reject sizes below 1 and a kernel larger than the map; each is rows and columns."""
    for axis, extent, kernel, step in zip("HW", map_size, kernel_size, stride, strict=True):
        check_at_least("kernel_size", kernel, 1)
        check_at_least("stride", step, 1)
        if kernel > extent:
            raise ValueError(f"kernel_size must fit into the map, got {kernel} where {axis}={extent}")


def check_overlap(map_size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int]) -> None:
    """Reject fields that do not fit, or of which no two see the same capsule; each argument is rows and columns."""
    check_fields(map_size, kernel_size, stride)
    axes = zip(map_size, kernel_size, stride, strict=True)
    if all(step >= kernel or extent - kernel < step for extent, kernel, step in axes):
        raise ValueError(
            f"compete must be 'all' where fields do not overlap (kernel_size {tuple(kernel_size)}, stride "
            f"{tuple(stride)} on a map of {tuple(map_size)}), got 'positions': no child would have a choice"
        )


def coordinate_offset(
    height: int,
    width: int,
    d_out: int,
    *,
    placement: str = "column",
    spacing: tuple[float, float] = (1.0, 1.0),
    centre: tuple[float, float] = (0.0, 0.0),
    scale: float = 100.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Compute coordinate addition: what the place of a capsule adds to all its votes.

    Class capsules share their matrices over places. So that where a part was seen is not lost, the scaled
    row and column of its receptive field's centre are added to two elements of its votes.

    Args:
        height: H of the lower map.
        width: W.
        d_out: elements of a vote, read as a d × d matrix row by row where it is a square.
        placement: "column", the first two elements of the right-hand column (the paper); or "row", the first
            two elements of the top row (the released code).
        spacing: pixels of the image between neighbouring rows, and columns, of the map.
        centre: where the map's centre lies, in pixels down and right from the image's centre.
        scale: pixels for which 1 is added; 100 in the released code.
        dtype: of what is returned.
        device: where it is computed, to the same numbers everywhere; nothing is copied there and nothing waits.

    Returns:
        ``[H, W, d_out]``.

    Raises:
        ValueError: an unknown placement; "column" of a vote that is not a square matrix; sizes that are too small, or
            no two numbers where two are wanted; a scale that is not positive; no dtype of floating point, no device.

    Example:
        >>> offset = coordinate_offset(2, 2, 16, scale=1.0)
        >>> offset.shape
        torch.Size([2, 2, 16])

    Source: Hinton, Sabour, Frosst 2018, section 4.
    """
    check_choice("placement", placement, PLACEMENTS)
    for name, size, least in (("height", height, 0), ("width", width, 0), ("d_out", d_out, 2)):
        if not is_tracing() and not isinstance(size, torch.SymInt):  # a tensor there, or left open by torch.export
            check_at_least(name, size, least)
    for name, pair in (("spacing", spacing), ("centre", centre)):
        check_two(name, pair)
    spacing = as_number("spacing", spacing[0]), as_number("spacing", spacing[1])
    centre = as_number("centre", centre[0]), as_number("centre", centre[1])
    side = math.isqrt(d_out)
    if placement == "column" and (side * side != d_out or side < 2):
        raise ValueError(f"placement 'column' needs votes that are square matrices, got {d_out} elements")
    check_positive("scale", scale)
    scale, device = as_number("scale", scale), _as_device(device)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be one of floating point, such as torch.float32, got {dtype!r}")
    row, column = (0, 1) if placement == "row" else (side - 1, 2 * side - 1)
    at = torch.device("cpu") if device.type == "mps" else device  # which knows no float64
    down, right = (torch.arange(n, device=at, dtype=torch.float64) - (n - 1) / 2 for n in (height, width))
    # A tensor, as CUDA multiplies by the reciprocal of a number instead.
    pixels = torch.full((), scale, device=at, dtype=torch.float64)
    offset = torch.zeros(height, width, d_out, device=at, dtype=torch.float64)
    offset[:, :, row] += (down * spacing[0] + centre[0])[:, None] / pixels
    offset[:, :, column] += (right * spacing[1] + centre[1]) / pixels
    return offset.to(device, dtype)


def _as_device(device: object) -> torch.device:
    """Take a device, or the name of one."""
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)  # type: ignore[arg-type, call-overload]
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be a torch.device or the name of one, such as 'cpu', got {device!r}") from None


class Fields:
    """Which lower capsules the upper capsules of each place see: N children in each of P receptive fields.

    Args:
        map_shape: (T, H, W) of the lower map.
        kernel_size: rows and columns of a receptive field.
        stride: rows and columns from one field to the next.

    Attributes:
        places: (H', W') of the upper map.
        n_places: P = H'·W'.
        n_children: N = T·K_h·K_w, in the order type, row, column.
        n_lower: T·H·W.

    Raises:
        ValueError: sizes below 1, or a kernel larger than the map.
    """

    def __init__(self, map_shape: Sequence[int], kernel_size: Sequence[int], stride: tuple[int, int]) -> None:
        self.map_shape = n_types, height, width = map_shape[0], map_shape[1], map_shape[2]
        self.kernel_size, self.stride = (kernel_size[0], kernel_size[1]), stride
        check_two("stride", stride, 1)
        check_fields((height, width), self.kernel_size, stride)
        self.n_lower = n_types * height * width
        self.places = (height - kernel_size[0]) // stride[0] + 1, (width - kernel_size[1]) // stride[1] + 1
        self.n_places, self.n_children = self.places[0] * self.places[1], n_types * kernel_size[0] * kernel_size[1]

    @property
    def child(self) -> Tensor:
        """Number each child in the flattened lower map, ``[P, N]``."""
        return self.gather(torch.arange(self.n_lower, device="cpu").reshape(1, *self.map_shape))[0]

    def seen_by(self, device: torch.device | str = "cpu") -> Tensor:
        """``[P, N]``, from how many places each child is seen; made where it is wanted, so that nothing waits."""
        sizes = zip(self.map_shape[1:], self.kernel_size, self.stride, strict=True)
        rows, columns = (_seen(extent, kernel, step, device) for extent, kernel, step in sizes)
        return self.gather((rows[:, None] * columns).expand(1, *self.map_shape))[0]

    def gather(self, x: Tensor) -> Tensor:
        """Gather something of each lower capsule, ``[B, T, H, W, ...]``, for each field: ``[B, P, N, ...]``."""
        vectors = x.flatten(4) if x.dim() > 4 else x.unsqueeze(4)
        fields = receptive_fields(vectors, self.kernel_size, self.stride).flatten(1, 2)  # [B, P, N, ...]
        return fields.unflatten(-1, x.shape[4:]) if x.dim() > 4 else fields.squeeze(-1)

    def total(self, x: Tensor) -> Tensor:
        """Sum what each place says of its children, ``[B, P, N, J]``, for each lower capsule.

        Maps are laid over each other: a GPU adds in the same order each time, as it would not with scattered indices.

        Returns:
            ``[B, T, H, W, J]``, 0 where nothing sees a capsule.
        """
        seen = self._overlaid(x, torch.add, 0.0)
        rows, columns = (size - there for size, there in zip(self.map_shape[1:], seen.shape[2:4], strict=True))
        return F.pad(seen, (0, 0, 0, columns, 0, rows))  # a negative size cuts off

    def logsumexp(self, x: Tensor) -> Tensor:
        """Take the log of the sum of exponentials over all places that see a child.

        Args:
            x: ``[B, P, N, J]``.

        Returns:
            ``[B, P, N, J]``, the same number at every place for one child.
        """
        if self.n_places == 1:
            return x
        highest = self._overlaid(x.detach(), torch.maximum, -math.inf)
        total = self._overlaid((x - self.gather(highest)).exp(), torch.add, 0.0)
        # The logarithm of 0, for capsules that nothing sees, has no gradient.
        return self.gather(highest + total.where(total != 0, 1).log())

    def _overlaid(self, x: Tensor, join: Callable[[Tensor, Tensor], Tensor], nothing: float) -> Tensor:
        """Lay out ``[B, P, N, J]`` as maps ``[B, T, h, w, J]`` that reach as far as fields do, or a little further."""
        n_types, (height, width), (rows, columns) = self.map_shape[0], self.places, self.kernel_size
        n_parents = x.shape[-1]
        # Never more than six axes, which some runtimes cannot read: K_w and J are one until rows are done.
        x = x.flatten(2).unflatten(2, (n_types, rows, columns * n_parents)).unflatten(1, (height, width))
        x = _along(x, 1, 4, self.stride[0], join, nothing)  # [B, h, W', T, K_w·J]
        x = _along(x.unflatten(4, (columns, n_parents)), 2, 4, self.stride[1], join, nothing)  # [B, h, w, T, J]
        return x.movedim(3, 1)


def _along(
    x: Tensor, at: int, kernel_at: int, step: int, join: Callable[[Tensor, Tensor], Tensor], nothing: float
) -> Tensor:
    """Lay fields that lie a step apart over each other: of P fields, K places each, P'·step places.

    Place s·p + k, the k-th of field p, is the r-th of the (p + a)-th group of s places, where k = s·a + r.

    Args:
        x: any axes.
        at: the axis of the fields, P; then that of the places.
        kernel_at: the axis of the places of a field, K, behind ``at``; it goes.
        step: s.
        join: joins what two fields say of one place.
        nothing: what a place has of which no field says anything.
    """
    kernel = x.shape[kernel_at]
    last = (kernel - 1) // step
    behind = (0, 0) * (x.dim() - 2 - at)  # of an axis less
    unseen = x.select(kernel_at, 0).new_full((), nothing)  # a place between fields

    def places(r: int) -> Tensor:
        if r >= kernel:
            return unseen.expand(x.select(kernel_at, 0).shape)
        parts = (x.select(kernel_at, k) for k in range(r, kernel, step))
        moved = (F.pad(part, (*behind, a, last - a), value=nothing) for a, part in enumerate(parts))
        return functools.reduce(join, moved)

    return torch.stack([places(r) for r in range(step)], dim=at + 1).flatten(at, at + 1)


def _seen(extent: int, kernel: int, stride: int, device: torch.device | str) -> Tensor:
    """Count the receptive fields that see each of a row of places."""
    first = torch.arange(0, extent - kernel + 1, stride, device=device)[:, None]
    place = torch.arange(extent, device=device)
    return ((first <= place) & (place < first + kernel)).sum(dim=0)
