"""Principal components of weighted points."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_floating, check_shapes
from torchcaps.typed import typed


class PrincipalComponents(NamedTuple):
    """The K principal axes of weighted points.

    Attributes:
        centre: weighted mean of the points, ``[D]``.
        axes: K orthonormal directions, that of the largest variance first, ``[K, D]``.
        share: fraction of the total variance along each axis, ``[K]``.
    """

    centre: Tensor
    axes: Tensor
    share: Tensor

    def project(self, points: Tensor) -> Tensor:
        """Project points ``[..., D]`` onto the axes, ``[..., K]``."""
        return (points - self.centre) @ self.axes.T

    def project_variance(self, variance: Tensor) -> Tensor:
        """Project the ``variance`` of a Gaussian, ``[..., D]``; its covariance along the axes is ``[..., K, K]``."""
        return (self.axes * variance[..., None, :]) @ self.axes.T


@typed
def principal_components(points: Tensor, weight: Tensor | None = None, k: int = 2) -> PrincipalComponents:
    """Compute the principal components of points, each counted by its weight.

    Args:
        points: ``[N, D]``.
        weight: ``[N]``, not negative. None counts all points alike, as do weights that are all 0.
        k: K, at most D.

    Returns:
        :class:`PrincipalComponents`, in the dtype of ``points``. The largest component of each axis is positive, so
        that the same points give the same picture.

    Raises:
        ValueError: the shapes do not fit, there are no points or fewer dimensions than ``k``, or the points are no
            floats.

    Example:
        >>> import torch
        >>> points = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.1], [0.0, -0.1]])
        >>> principal_components(points, k=1).axes.abs()
        tensor([[1., 0.]])
    """
    weight = points.new_ones(len(points)) if weight is None else weight
    sizes = check_shapes(points=(points, "N D"), weight=(weight, "N"))
    check_at_least("k", k, 1)
    check_floating("points", points)
    if not sizes["N"] or sizes["D"] < k:
        raise ValueError(f"points must be [N, D] with N ≥ 1 and D ≥ k={k}, got shape {list(points.shape)}")
    if points.is_meta:
        raise ValueError("points must hold numbers, got a tensor on meta")
    x, w = points.double(), weight.double()
    if not (x.isfinite().all() and w.isfinite().all()):
        raise ValueError("points and weight must hold finite numbers, got others")
    w = w / w.sum() if w.sum() > 0 else torch.full_like(w, 1 / len(w))
    centre = w @ x
    variance, directions = torch.linalg.eigh((x - centre).T * w @ (x - centre))  # ascending
    axes = directions.T.flip(0)[:k]
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    total = variance.sum()
    share = variance.flip(0)[:k] / total if total > 0 else x.new_zeros(k)
    return PrincipalComponents(*(y.to(points) for y in (centre, axes, share)))
