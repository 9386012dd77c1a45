"""Affine transformations: worked by hand, and warping as one expects of a group."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from torchcaps.ops import AffineParts, affine_inverse, affine_matrix, affine_parts, pose_loss, transform_pose, warp
from torchcaps.ops.affine import _sample_by_products, affine_parts_of, shift_matrix


def drawn(n: int, dtype: torch.dtype = torch.float64) -> AffineParts:
    u = 2 * torch.rand(n, 6, dtype=dtype) - 1
    return AffineParts(0.5 * u[:, 0], 1 + 0.3 * u[:, 1:3], 0.3 * u[:, 3], 3 * u[:, 4:])


def smooth(n: int, size: int = 51) -> torch.Tensor:
    """Soft spots at different places, well inside of the image."""
    along = torch.arange(size) - (size - 1) / 2
    y, x = torch.meshgrid(along, along, indexing="ij")
    at = 5 * (2 * torch.rand(n, 3, 2, 1, 1) - 1)
    return torch.exp(-((x - at[:, :, 0]) ** 2 + (y - at[:, :, 1]) ** 2) / 40).sum(dim=1, keepdim=True)


def test_by_hand() -> None:
    quarter = AffineParts(
        torch.tensor(math.pi / 2), torch.tensor([2.0, 3.0]), torch.tensor(0.5), torch.tensor([10.0, 20.0])
    )
    # (1, 1) is scaled to (2, 3), sheared to (3.5, 3), turned from x towards y to (−3, 3.5), shifted to (7, 23.5).
    got = affine_matrix(quarter) @ torch.tensor([1.0, 1.0, 1.0])
    torch.testing.assert_close(got, torch.tensor([7.0, 23.5, 1.0]))


def test_parts_and_inverse_are_inverse() -> None:
    parts = drawn(50)
    matrix = affine_matrix(parts)
    for got, wanted in zip(affine_parts(matrix), parts):
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(affine_inverse(matrix) @ matrix, torch.eye(3, dtype=torch.float64).repeat(50, 1, 1))


def test_parts_of_numbers_by_hand() -> None:
    parts = affine_parts_of(torch.tensor([[0.0] * 6, [0.5, 100.0, -100.0, -100.0, 3.0, -4.0]]), most_scale=3.0)
    torch.testing.assert_close(affine_matrix(parts)[0], torch.eye(3))
    assert parts.angle[1] == 0.5 and parts.shear[1] == -1
    torch.testing.assert_close(parts.scale[1], torch.tensor((3.0, 1 / 3)))
    assert parts.shift[1].tolist() == [3.0, -4.0]


def test_a_pixel_lands_where_the_matrix_says() -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4 - 2, 4 + 1] = 1.0  # at (x, y) = (1, −2)
    turn = affine_matrix(
        AffineParts(torch.tensor([math.pi / 2]), torch.ones(1, 2), torch.zeros(1), torch.tensor([[1.0, 0.0]]))
    )
    wanted = torch.zeros(1, 1, 9, 9)
    wanted[0, 0, 4 + 1, 4 + 3] = 1.0  # turned to (2, 1), shifted to (3, 1)
    torch.testing.assert_close(warp(image, turn), wanted, atol=1e-5, rtol=0)


def test_whole_pixels_move_unchanged() -> None:
    image = torch.rand(2, 3, 8, 6)
    shift = torch.eye(3).repeat(2, 1, 1)
    shift[:, :2, 2] = torch.tensor([[2.0, -1.0], [0.0, 0.0]])
    got = warp(image, shift)
    torch.testing.assert_close(got[0, :, :-1, 2:], image[0, :, 1:, :-2])
    assert got[0, :, -1].abs().max() < 1e-5 and got[0, :, :, :2].abs().max() < 1e-5
    torch.testing.assert_close(got[1], image[1])


def test_whole_pixels_move_unchanged_under_autocast() -> None:
    images, matrix = torch.rand(1, 1, 28, 28), shift_matrix(torch.tensor([[1.0, 2.0]]))
    with torch.autocast("cpu", torch.bfloat16):
        moved = warp(images, matrix)
    torch.testing.assert_close(moved[..., 2:, 1:], images[..., :-2, :-1], rtol=0, atol=1e-5)
    for dtype in (torch.float64, torch.bfloat16):
        mixed = warp(images.to(dtype), matrix)
        assert mixed.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(mixed.float(), warp(images.to(dtype).float(), matrix), rtol=0, atol=1e-5)


def test_a_smaller_result_is_the_middle() -> None:
    image = torch.rand(2, 1, 12, 10)
    got = warp(image, torch.eye(3).repeat(2, 1, 1), (6, 4))
    torch.testing.assert_close(got, image[:, :, 3:9, 3:7])


def test_one_after_the_other_is_their_product() -> None:
    first, second = (affine_matrix(drawn(20, torch.float32)) for _ in range(2))
    image = smooth(20)
    twice, once = warp(warp(image, first), second), warp(image, second @ first)
    error = (twice - once).abs().amax(dim=(1, 2, 3))
    assert error.max() < 0.03 * image.max()  # interpolation
    other_order = (twice - warp(image, first @ second)).abs().amax(dim=(1, 2, 3))
    assert (other_order > 2 * error).float().mean() > 0.8
    back = warp(warp(image, first), affine_inverse(first))
    assert (back - image).abs().max() < 0.03 * image.max()


def test_poses_move_with_the_image() -> None:
    matrix = affine_matrix(drawn(4))
    points = torch.rand(4, 5, 2, dtype=torch.float64)
    moved = transform_pose(points, matrix)
    for b in range(4):
        for j in range(5):
            wanted = matrix[b] @ torch.cat((points[b, j], torch.ones(1, dtype=torch.float64)))
            torch.testing.assert_close(moved[b, j], wanted[:2])
    frames = torch.rand(4, 5, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(transform_pose(frames, matrix)[2, 3], matrix[2] @ frames[2, 3])


def test_poses_are_not_rounded_under_autocast() -> None:
    matrix = affine_matrix(drawn(4, torch.float32))
    for poses in (10 * torch.rand(4, 5, 2), 10 * torch.rand(4, 5, 3, 3)):
        with torch.autocast("cpu", torch.bfloat16):
            under = transform_pose(poses, matrix)
        torch.testing.assert_close(under, transform_pose(poses, matrix), rtol=0, atol=0)


def test_pose_loss_by_hand() -> None:
    wanted = torch.tensor([[[3.0, 4.0]]])
    # |(2, 0)|² over 5², wherever the point is
    assert pose_loss(wanted + torch.tensor([2.0, 0.0]), wanted, unit=5.0).item() == pytest.approx(4 / 25)
    frames = torch.eye(3).view(1, 1, 3, 3).repeat(2, 1, 1, 1)
    other = frames.clone()
    other[..., 0, 2] = 2.0
    # Only the third of three columns differs: 2² over 7².
    assert pose_loss(other, frames, unit=7.0).item() == pytest.approx(4 / 49 / 3)
    other = frames.clone()
    other[..., 1, 0] = 0.5
    frames[..., 0, 0] = other[..., 0, 0] = 2.0
    # Only the first: 0.5² over 2².
    assert pose_loss(other, frames, unit=7.0).item() == pytest.approx(0.25 / 4 / 3)
    assert pose_loss(other.bfloat16(), frames.bfloat16(), unit=7.0).dtype == torch.float32


def test_pose_loss_of_two_images_by_hand() -> None:
    """Points of weights 2 and 4, in units of 5 times that: (10² + 20²) / 2 = 250."""
    wanted = torch.tensor([[[3.0, 0.0, 7.0], [0.0, 2.0, 8.0], [0.0, 1.0, 2.0]],
                           [[0.0, 1.0, 9.0], [1.0, 0.0, 1.0], [0.0, 0.0, 4.0]]])  # fmt: skip
    found = wanted.clone()
    found[0, 0, 0] += 1.0  # 1² / 2 over (3² + 1²) / 2
    found[0, 2, 1] -= 2.0  # (2 · 5)² / 2 over (2² + (1 · 5)² + 1²) / 2
    found[0, :2, 2] += torch.tensor([3.0, -4.0])
    found[1, 2, 2] += 1.0  # with the line before (3² + 4² + (1 · 5)²) / 2 over 250
    loss = pose_loss(found.unsqueeze(1), wanted.unsqueeze(1), unit=5.0)
    assert loss.item() == pytest.approx((0.5 / 5 + 50 / 15 + 25 / 250) / 3)


def test_pose_loss_does_not_fall_when_matrices_shrink() -> None:
    found, wanted = torch.rand(2, 6, 4, 3, 3).unbind(0)
    found[..., 2, :] = wanted[..., 2, :] = torch.tensor([0.0, 0.0, 1.0])
    small = torch.tensor([0.1, 0.1, 1.0])  # the two directions, not the point
    ratio = pose_loss(found * small, wanted * small, 7.0) / pose_loss(found, wanted, 7.0)
    assert ratio.item() == pytest.approx(1.0, rel=1e-5)


def test_pose_loss_does_not_fall_when_capsules_move_away() -> None:
    """That would cost nothing under shifts: the generation units could take any offset back."""
    found, wanted = torch.rand(2, 6, 4, 3, 3, dtype=torch.float64).unbind(0)
    away = torch.zeros(3, 3, dtype=torch.float64)
    away[:2, 2] = torch.tensor((40.0, -30.0))
    torch.testing.assert_close(pose_loss(found + away, wanted + away, 7.0), pose_loss(found, wanted, 7.0))
    found, wanted = found[..., 0, :2], wanted[..., 0, :2]
    torch.testing.assert_close(pose_loss(found + 40, wanted + 40, 7.0), pose_loss(found, wanted, 7.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_wide(dtype: torch.dtype) -> None:
    """Right to the one rounding at the end: the inverse too."""
    generator = torch.Generator().manual_seed(0)
    matrix = affine_matrix(affine_parts_of(torch.randn(4, 6, generator=generator))).to(dtype)
    images, poses = (torch.rand(shape, generator=generator).to(dtype) for shape in ((4, 1, 9, 9), (4, 5, 3, 3)))
    for of, x in ((warp, images), (transform_pose, poses), (transform_pose, poses[..., 0, :2])):
        found = of(x, matrix)
        assert found.dtype == dtype
        torch.testing.assert_close(found, of(x.float(), matrix.float()).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("parts", [None, 2.5, torch.zeros(3), (1, 2, 3, 4)])
def test_what_are_no_parts_is_refused(parts: object) -> None:
    with pytest.raises(ValueError, match=f"parts must be AffineParts, got {type(parts).__name__}"):
        affine_matrix(parts)  # type: ignore[arg-type]


def test_bad_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"matrix must be \[\.\.\., 3, 3\], got shape \[2, 2\]"):
        affine_parts(torch.eye(2))
    with pytest.raises(ValueError, match=r"matrix must be a torch\.Tensor, got a list"):
        affine_inverse([[1]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"size must be two integers of at least 1, got \(-1, 4\)"):
        warp(torch.zeros(1, 1, 4, 4), torch.eye(3).expand(1, 3, 3), (-1, 4))
    with pytest.raises(ValueError, match=r"images must be floating point, got torch\.int64"):
        warp(torch.ones(1, 1, 4, 4, dtype=torch.int64), torch.eye(3)[None])
    with pytest.raises(ValueError, match=r"images must have pixels, got shape \[1, 1, 0, 3\]"):
        warp(torch.ones(1, 1, 0, 3), torch.eye(3)[None])
    with pytest.raises(ValueError, match=r"unit must be positive, got 0"):
        pose_loss(torch.rand(1, 1, 2), torch.rand(1, 1, 2), unit=0)
    with pytest.raises(ValueError, match=r"size must be two numbers, got 28"):
        warp(torch.zeros(1, 1, 4, 4), torch.eye(3).expand(1, 3, 3), 28)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"matrix must be \[B, 3, 3\] with B=2 as in images"):
        warp(torch.rand(2, 1, 4, 4), torch.eye(3)[None])
    with pytest.raises(ValueError, match=r"matrix must be \[B, 3, 3\] with B=2 as in pose"):
        transform_pose(torch.rand(2, 5, 2), torch.eye(3)[None])
    with pytest.raises(
        ValueError, match=r"must both be \[B, J, 2\] or \[B, J, 3, 3\], got \[1, 1, 2\] and \[1, 2, 2\]"
    ):
        pose_loss(torch.rand(1, 1, 2), torch.rand(1, 2, 2))
    with pytest.raises(ValueError, match=r"wanted must be a torch\.Tensor, got a list"):
        pose_loss(torch.rand(1, 1, 2), [2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pose must be a torch\.Tensor, got a list"):
        transform_pose([1], torch.eye(3)[None])  # type: ignore[arg-type]


def test_poses_and_matrices_of_two_dtypes() -> None:
    for pose in (torch.rand(1, 2, 2), torch.rand(1, 2, 3, 3)):
        moved = transform_pose(pose.double(), 2 * torch.eye(3)[None])
        assert moved.dtype == torch.float64
        if pose.dim() == 3:
            torch.testing.assert_close(moved, 2 * pose.double())


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampling_by_products_is_sampling(padding: str) -> None:
    """At places between, on and beyond pixels; with the gradients of ``grid_sample``."""
    images = torch.rand(3, 2, 5, 7, dtype=torch.float64, requires_grad=True)
    grid = 3 * torch.rand(3, 4, 6, 2, dtype=torch.float64) - 1.5
    grid[0] = torch.stack(torch.meshgrid(torch.arange(6) * 2 / 7, torch.arange(4) * 0.4, indexing="xy"), dim=2)
    grid.requires_grad_()
    found = _sample_by_products(images, grid, padding)
    wanted = F.grid_sample(images, grid, padding_mode=padding, align_corners=False)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(wanted)
    gradients = [torch.autograd.grad(y, (images, grid), weight) for y in (found, wanted)]
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    torch.testing.assert_close(
        gradients[0][1][1:], gradients[1][1][1:]
    )  # on a pixel's centre the slope is either side's
