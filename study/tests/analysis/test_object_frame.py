"""Frames of wholes, and parts as seen from them."""

from __future__ import annotations

import pytest
import torch

from study.analysis.object_frame import mean_layout, object_frames, parts_in_frame, pose_code
from torchcaps.data.transformed import Limits
from torchcaps.ops import transform_pose

UNIT = 7.0


def layout(n: int, *, points: bool = False) -> torch.Tensor:
    """Parts at different places, with columns of some pixels."""
    pose = torch.zeros(n, 3, 3)
    pose[:, :2, :2] = 5 * torch.eye(2) + torch.randn(n, 2, 2)
    pose[:, :2, 2] = 8 * (2 * torch.rand(n, 2) - 1)
    pose[:, 2, 2] = 1.0
    return pose[:, :2, 2] if points else pose


def moved(parts: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    limits = Limits(3) if parts.dim() == 2 else Limits(3, 25, 0.2, 0.2)
    matrix = limits.draw(n, torch.Generator().manual_seed(0))
    return transform_pose(parts.expand(n, *parts.shape).clone(), matrix), matrix


@pytest.mark.parametrize("points", [True, False])
def test_the_frame_is_how_the_layout_was_moved(points: bool) -> None:
    parts = layout(12, points=points)
    pose, matrix = moved(parts, 20)
    found = object_frames(pose, torch.rand(20, 12), parts, UNIT, stiffness=1e-6)
    torch.testing.assert_close(found, matrix, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("points", [True, False])
def test_how_the_whole_lies_does_not_show(points: bool) -> None:
    """Two kinds of whole that differ in one part, each moved about: only the kind is seen."""
    kinds = torch.stack([layout(12, points=points)] * 2)
    (kinds[1, 0] if points else kinds[1, 0, :2, 2]).add_(4.0)
    poses = torch.cat([moved(kind, 30)[0] for kind in kinds])
    presence = torch.full((60, 12), 0.9)
    seen = parts_in_frame(poses, presence, mean_layout(poses, presence, UNIT), UNIT)
    as_they_are = pose_code(poses, presence, UNIT)

    def apart(code: torch.Tensor) -> float:
        """Distance of the kinds' means over the spread within a kind."""
        one, two = code.split(30)
        within = torch.cat((one - one.mean(dim=0), two - two.mean(dim=0))).square().sum(dim=1).mean().sqrt()
        return ((one.mean(dim=0) - two.mean(dim=0)).norm() / within).item()

    assert apart(seen) > 3
    assert apart(as_they_are) < 1


def test_absent_parts_say_nothing() -> None:
    parts = layout(6)
    pose, _ = moved(parts, 4)
    presence = torch.ones(4, 6)
    presence[:, 2] = 0.0
    before = parts_in_frame(pose, presence, parts, UNIT)
    pose[:, 2] = torch.randn(4, 3, 3)
    torch.testing.assert_close(parts_in_frame(pose, presence, parts, UNIT), before)


def test_an_image_without_parts_has_the_identity() -> None:
    torch.testing.assert_close(
        object_frames(torch.randn(2, 3, 3, 3), torch.zeros(2, 3), layout(3), UNIT), torch.eye(3).repeat(2, 1, 1)
    )


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"presence must be \[N, J\] with J=3"):
        mean_layout(torch.rand(2, 3, 2), torch.rand(2, 4), UNIT)
