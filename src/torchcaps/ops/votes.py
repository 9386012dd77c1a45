"""Votes: what each lower capsule predicts for each upper one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_choice, check_positive, check_shapes, check_tensor, check_two

PLACEMENTS = ("column", "row")


def dense_votes(u: Tensor, weight: Tensor) -> Tensor:
    """Every lower capsule votes for every upper one: û_ij = u_i W_ij.

    Args:
        u: poses of the lower capsules, ``[B, I, d_in]``.
        weight: transformation matrices, ``[I, J, d_in, d_out]``.

    Returns:
        Votes, ``[B, I, J, d_out]``.

    Raises:
        ValueError: the shapes do not fit each other.

    Source: Sabour et al. 2017, section 2, equation 2 (right).
    """
    check_shapes(u=(u, "B I d_in"), weight=(weight, "I J d_in d_out"))
    return torch.einsum("bid,ijde->bije", u, weight)


def matrix_votes(pose: Tensor, weight: Tensor) -> Tensor:
    """Every lower matrix capsule votes for every upper one: V_ij = M_i W_ij.

    Args:
        pose: M, ``[..., I, rows, d]``, any axes in front.
        weight: W, ``[I, J, d, columns]``.

    Returns:
        ``[..., I, J, rows, columns]``.

    Raises:
        ValueError: the shapes do not fit each other.

    Source: Hinton, Sabour, Frosst 2018, section 2.
    """
    sizes = check_shapes(weight=(weight, "I J d columns"))
    check_tensor("pose", pose)
    if pose.dim() < 3 or (pose.shape[-3], pose.shape[-1]) != (sizes["I"], sizes["d"]):
        raise ValueError(
            f"pose must be [..., I={sizes['I']}, rows, d={sizes['d']}] as weight says, got shape {list(pose.shape)}"
        )
    return torch.einsum("...irk,ijkc->...ijrc", pose, weight)


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
    """
    sizes = check_shapes(capsules=(capsules, "B T H W D"))
    check_two("kernel_size", kernel_size, 1)
    check_two("stride", stride, 1)
    check_fields((sizes["H"], sizes["W"]), kernel_size, stride)
    fields = capsules.unfold(2, kernel_size[0], stride[0]).unfold(3, kernel_size[1], stride[1])
    # [B, T, H', W', D, K_h, K_w]
    return fields.permute(0, 2, 3, 1, 5, 6, 4).flatten(3, 5)  # [B, H', W', I, D]


def check_fields(map_size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int]) -> None:
    """Refuse sizes below 1 and a kernel larger than the map; each is rows and columns."""
    for axis, extent, kernel, step in zip("HW", map_size, kernel_size, stride, strict=True):
        check_at_least("kernel_size", kernel, 1)
        check_at_least("stride", step, 1)
        if kernel > extent:
            raise ValueError(f"kernel_size must fit into the map, got {kernel} where {axis}={extent}")


def check_overlap(map_size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int]) -> None:
    """Refuse fields that do not fit, or of which no two see the same capsule; each argument is rows and columns."""
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
) -> Tensor:
    """Coordinate addition: what the place of a capsule adds to all its votes.

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

    Returns:
        ``[H, W, d_out]``, on the CPU.

    Raises:
        ValueError: an unknown placement; "column" of a vote that is not a square matrix; sizes that are too small, or
            no two numbers where two are wanted; a scale that is not positive.

    Source: Hinton, Sabour, Frosst 2018, section 4.
    """
    check_choice("placement", placement, PLACEMENTS)
    for name, size, least in (("height", height, 0), ("width", width, 0), ("d_out", d_out, 2)):
        if not isinstance(size, Tensor | torch.SymInt):  # while torch.jit traces, or torch.export leaves it open
            check_at_least(name, size, least)
    for name, pair in (("spacing", spacing), ("centre", centre)):
        check_two(name, pair)
    side = math.isqrt(d_out)
    if placement == "column" and (side * side != d_out or side < 2):
        raise ValueError(f"placement 'column' needs votes that are square matrices, got {d_out} elements")
    check_positive("scale", scale)
    row, column = (0, 1) if placement == "row" else (side - 1, 2 * side - 1)
    down, right = (torch.arange(n, device="cpu", dtype=torch.float64) - (n - 1) / 2 for n in (height, width))
    offset = torch.zeros(height, width, d_out, device="cpu", dtype=torch.float64)
    offset[:, :, row] += (down * spacing[0] + centre[0])[:, None] / scale
    offset[:, :, column] += (right * spacing[1] + centre[1]) / scale
    return offset.to(dtype)


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
        child: ``[P, N]``, the number of each child in the flattened lower map.
        seen_by: ``[P, N]``, from how many places each child is seen.

    Raises:
        ValueError: sizes below 1, or a kernel larger than the map.
    """

    def __init__(self, map_shape: Sequence[int], kernel_size: Sequence[int], stride: tuple[int, int]) -> None:
        self.kernel_size, self.stride = (kernel_size[0], kernel_size[1]), stride
        self.n_lower = math.prod(map_shape)
        child = self.gather(torch.arange(self.n_lower, device="cpu").reshape(1, *map_shape))[0]
        self.places = tuple(
            (extent - kernel) // step + 1
            for extent, kernel, step in zip(map_shape[1:], kernel_size, stride, strict=True)
        )
        self.n_places, self.n_children = child.shape
        self.child = child
        rows, columns = (
            _seen(extent, kernel, step) for extent, kernel, step in zip(map_shape[1:], kernel_size, stride, strict=True)
        )
        self.seen_by = self.gather((rows[:, None] * columns).expand(1, *map_shape))[0]

    def gather(self, x: Tensor) -> Tensor:
        """Something of each lower capsule, ``[B, T, H, W, ...]``, for each field: ``[B, P, N, ...]``."""
        vectors = x.flatten(4) if x.dim() > 4 else x.unsqueeze(4)
        fields = receptive_fields(vectors, self.kernel_size, self.stride).flatten(1, 2)  # [B, P, N, ...]
        return fields.unflatten(-1, x.shape[4:]) if x.dim() > 4 else fields.squeeze(-1)

    def logsumexp(self, x: Tensor) -> Tensor:
        """Log of the sum of exponentials over all places that see a child.

        Args:
            x: ``[B, P, N, J]``.

        Returns:
            ``[B, P, N, J]``, the same number at every place for one child.
        """
        if self.n_places == 1:
            return x
        child = self.child.flatten().to(x.device)
        terms = x.flatten(1, 2)  # [B, P·N, J]
        none = terms.new_full((x.shape[0], self.n_lower, x.shape[3]), -math.inf)
        index = child[None, :, None].expand_as(terms)
        highest = none.scatter_reduce(1, index, terms.detach(), "amax")[:, child]  # [B, P·N, J]
        total = torch.zeros_like(none).index_add(1, child, (terms - highest).exp())
        # Taken at the children only: the logarithm of 0, for capsules that nothing sees, has no gradient.
        return (highest + total[:, child].log()).unflatten(1, (self.n_places, self.n_children))


def _seen(extent: int, kernel: int, stride: int) -> Tensor:
    """From how many receptive fields each of a row of places is seen."""
    first = torch.arange(0, extent - kernel + 1, stride, device="cpu")[:, None]
    place = torch.arange(extent, device="cpu")
    return ((first <= place) & (place < first + kernel)).sum(dim=0)
