"""The whole that parts belong to: its frame in each image, and the parts' poses as seen from it."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.ops.affine import affine_inverse, shift_matrix, transform_pose


def mean_layout(pose: Tensor, presence: Tensor, unit: float, n_iters: int = 5) -> Tensor:
    """Where the parts of a typical whole are: mean poses, after every image was brought into one frame.

    Frames and means are found in turn, as in generalised Procrustes analysis.

    Args:
        pose: points ``[N, J, 2]`` or matrices ``[N, J, 3, 3]``, in pixels.
        presence: ``[N, J]``.
        unit: pixels that count as much as a difference of 1 in a matrix.
        n_iters: how often; after the first time frames are those of the layout so far.

    Returns:
        ``[J, 2]`` or ``[J, 3, 3]``.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_shapes(pose=(pose.flatten(2), "N J D"), presence=(presence, "N J"))
    check_at_least("n_iters", n_iters, 1)
    weight = presence / presence.sum(dim=0).clamp_min(1e-6)  # [N, J]
    layout = torch.einsum("nj,nj...->j...", weight, pose)
    for _ in range(n_iters):
        seen = transform_pose(pose, affine_inverse(object_frames(pose, presence, layout, unit)))
        layout = torch.einsum("nj,nj...->j...", weight, seen)
    return layout


def object_frames(pose: Tensor, presence: Tensor, layout: Tensor, unit: float, stiffness: float = 0.5) -> Tensor:
    """The transformation G of each image that brings the layout nearest to the poses: G·M_j ≈ A_j.

    Least squares over the capsules, weighted by their presence; of points a shift, of matrices any affine
    transformation.

    Args:
        pose: A, ``[N, J, 2]`` or ``[N, J, 3, 3]``.
        presence: ``[N, J]``.
        layout: M, ``[J, 2]`` or ``[J, 3, 3]``.
        unit: as in :func:`mean_layout`.
        stiffness: how strongly frames are drawn to the identity: as much as that many capsules.

    Returns:
        ``[N, 3, 3]``, in pixels.
    """
    if pose.dim() == 3:
        total = presence.sum(dim=1, keepdim=True) + stiffness
        return shift_matrix(torch.einsum("nj,njx->nx", presence, pose - layout) / total)
    rows = pose.new_tensor(((1 / unit,), (1 / unit,), (1.0,)))
    a, m = pose * rows, layout * rows
    across = torch.einsum("nj,njxk,jyk->nxy", presence, a, m)
    within = torch.einsum("nj,jxk,jyk->nxy", presence, m, m)
    stiff = stiffness * torch.eye(3, dtype=pose.dtype, device=pose.device)
    frame = torch.linalg.solve((within + stiff).transpose(1, 2), (across + stiff).transpose(1, 2)).transpose(1, 2)
    frame = torch.cat((frame[:, :2], frame.new_tensor((0.0, 0.0, 1.0)).expand(len(frame), 1, 3)), dim=1)
    return frame * rows.squeeze(1) / rows


def parts_in_frame(pose: Tensor, presence: Tensor, layout: Tensor, unit: float) -> Tensor:
    """How each image's parts differ from the typical ones, seen from the frame of its whole.

    What an absent capsule says of its pose counts for nothing: differences are scaled by presence.

    Args:
        pose: ``[N, J, 2]`` or ``[N, J, 3, 3]``.
        presence: ``[N, J]``.
        layout: as :func:`mean_layout` gives it.
        unit: as there.

    Returns:
        ``[N, J (D + 1)]``: of every capsule presence · (G⁻¹ A − M), pixels divided by ``unit``, and presence.

    Source: Tieleman 2014: poses are normalised for each image before they are clustered.
    """
    seen = transform_pose(pose, affine_inverse(object_frames(pose, presence, layout, unit)))
    return pose_code(seen - layout, presence, unit)


def pose_code(pose: Tensor, presence: Tensor, unit: float) -> Tensor:
    """Poses scaled by presence, pixels divided by ``unit``, and presences, as one vector ``[N, J (D + 1)]``."""
    per_unit = pose.new_tensor(((1 / unit,), (1 / unit,), (1.0,)) if pose.dim() == 4 else 1 / unit)
    pose = pose * per_unit
    numbers = torch.cat((presence.unsqueeze(-1) * pose.flatten(2), presence.unsqueeze(-1)), dim=2)
    return numbers.flatten(1)
