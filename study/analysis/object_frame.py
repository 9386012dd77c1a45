"""Object frames: the frame of the whole object in each image, and the poses of its parts in that frame."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_shapes
from torchcaps.ops.affine import affine_inverse, shift_matrix, transform_pose


def mean_layout(pose: Tensor, presence: Tensor, unit: float, n_iters: int = 5) -> Tensor:
    """Compute the mean poses of the parts, after every image is aligned to one frame.

    Frames and means are computed in turn, as in generalized Procrustes analysis.

    Args:
        pose: points ``[N, J, 2]`` or matrices ``[N, J, 3, 3]``, in pixels.
        presence: presences, ``[N, J]``.
        unit: number of pixels that weigh as much as a difference of 1 in a matrix.
        n_iters: number of iterations; frames are aligned to the layout of the iteration before.

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
    """Fit the transformation G of each image that maps the layout to the poses: G·M_j ≈ A_j.

    The fit is least squares over the capsules, weighted by their presences. For points G is a shift, for matrices any
    affine transformation.

    Args:
        pose: poses A, ``[N, J, 2]`` or ``[N, J, 3, 3]``.
        presence: presences, ``[N, J]``.
        layout: layout M, ``[J, 2]`` or ``[J, 3, 3]``.
        unit: unit of :func:`mean_layout`.
        stiffness: weight of the identity, in numbers of capsules.

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
    """Compute how each image's parts differ from the mean layout, in the frame of its object.

    Differences are scaled by presence, so that the pose of an absent capsule has no effect.

    Args:
        pose: poses, ``[N, J, 2]`` or ``[N, J, 3, 3]``.
        presence: presences, ``[N, J]``.
        layout: layout from :func:`mean_layout`.
        unit: unit of :func:`mean_layout`.

    Returns:
        ``[N, J (D + 1)]``: presence · (G⁻¹ A − M) of every capsule, with pixels divided by ``unit``, and its presence.

    Source: Tieleman 2014: poses are normalized for each image before they are clustered.
    """
    seen = transform_pose(pose, affine_inverse(object_frames(pose, presence, layout, unit)))
    return pose_code(seen - layout, presence, unit)


def pose_code(pose: Tensor, presence: Tensor, unit: float) -> Tensor:
    """Join presences and poses scaled by them, pixels divided by ``unit``, into vectors ``[N, J (D + 1)]``."""
    per_unit = pose.new_tensor(((1 / unit,), (1 / unit,), (1.0,)) if pose.dim() == 4 else 1 / unit)
    pose = pose * per_unit
    numbers = torch.cat((presence.unsqueeze(-1) * pose.flatten(2), presence.unsqueeze(-1)), dim=2)
    return numbers.flatten(1)
