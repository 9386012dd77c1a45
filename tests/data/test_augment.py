"""Shifts and warps, by images small enough to see."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.augment import (
    CROPS_13,
    Fill,
    central_crop,
    crop,
    random_affine,
    random_brightness,
    random_contrast,
    random_corners,
    random_flip,
    random_gamma,
    random_shading,
    random_shift,
    shift,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_shift_puts_each_image_at_its_own_place() -> None:
    images = torch.tensor([[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]])
    canvas = shift(images, torch.tensor([[0, 0], [1, -1]]), pad=1)
    assert canvas[0, 0].tolist() == [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0], [0, 0, 0, 0]]
    assert canvas[1, 0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [5, 6, 0, 0], [7, 8, 0, 0]]


def test_random_shift_moves_by_up_to_the_most_and_fills_with_zeros() -> None:
    images = torch.zeros(400, 1, 9, 7)
    images[:, :, 4, 3] = 1
    moved = random_shift(images, 2, generator())
    assert moved.shape == images.shape and bool((moved.sum(dim=(1, 2, 3)) == 1).all())
    _, _, rows, columns = moved.nonzero(as_tuple=True)
    assert set((rows - 4).tolist()) == set((columns - 3).tolist()) == {-2, -1, 0, 1, 2}
    assert torch.equal(moved, random_shift(images, 2, generator()))
    edge = torch.ones(50, 1, 4, 4)
    assert random_shift(edge, 2, generator()).mean() < 1
    assert random_shift(images, 0, generator()) is images


@pytest.mark.parametrize(
    ("fill", "wanted"),
    [
        ("border", {-2: [2, 3, 4, 4, 4], 0: [0, 1, 2, 3, 4], 2: [0, 0, 0, 1, 2]}),
        ("reflection", {-2: [2, 3, 4, 4, 3], 0: [0, 1, 2, 3, 4], 2: [1, 0, 0, 1, 2]}),
    ],
)
def test_what_shifts_bring_in_by_hand(fill: Fill, wanted: dict[int, list[int]]) -> None:
    rows = torch.arange(5.0).view(1, 1, 5, 1).expand(200, 1, 5, 7)
    images = torch.cat((rows, torch.arange(7.0).expand(200, 1, 5, 7)), dim=1)
    moved = random_shift(images, 2, generator(), fill)
    by = torch.randint(-2, 3, (200, 2), generator=generator())
    for down, pixels in wanted.items():
        of_these = moved[by[:, 0] == down, 0]
        assert len(of_these) > 10 and bool((of_these == torch.tensor(pixels)[:, None]).all())
    # What is not brought in is as with zeros, and so is the shift to the side.
    zeros = random_shift(images + 1, 2, generator()) - 1
    assert bool(((zeros == moved) | (zeros == -1)).all()) and moved.min() == 0


@pytest.mark.parametrize("fill", ["border", "reflection"])
def test_no_black_comes_into_light_images(fill: Fill) -> None:
    light = torch.full((50, 3, 9, 6), 0.75)
    kinds = {"degrees": 40.0, "scale": 0.4, "shear": 0.4, "translate": 3.0}
    torch.testing.assert_close(random_affine(light, generator(), **kinds, fill=fill), light)
    assert torch.equal(random_shift(light, 5, generator(), fill), light)
    assert random_affine(light, generator(), **kinds).min() == 0 == random_shift(light, 5, generator()).min()


def test_shifts_and_warps_mirror_alike() -> None:
    """A warp by whole pixels is a shift."""
    images = torch.rand(1, 1, 5, 5)
    by = 2 * torch.rand(1, 5, generator=generator()) - 1
    most = 2 / float(by[0, 3])  # so that the warp moves by 2 to the right
    warped = random_affine(images, generator(), translate=most, fill="reflection")
    down = most * float(by[0, 4])
    assert abs(down) < 20
    wanted = images[..., [1, 0, 0, 1, 2]]
    columns_only = F.grid_sample(
        wanted,
        F.affine_grid(torch.tensor([[[1.0, 0, 0], [0, 1, -2 * down / 5]]]), [1, 1, 5, 5], align_corners=False),
        padding_mode="reflection",
        align_corners=False,
    )
    torch.testing.assert_close(warped, columns_only, rtol=0, atol=1e-5)


def test_what_comes_in_is_known() -> None:
    for change in (lambda fill: random_shift(torch.rand(1, 1, 4, 4), 1, generator(), fill),
                   lambda fill: random_affine(torch.rand(1, 1, 4, 4), generator(), fill=fill)):  # fmt: skip
        with pytest.raises(ValueError, match="fill must be one of zeros, border, reflection; got 'reflect'"):
            change("reflect")


def test_random_flip_mirrors_half_of_the_images_left_to_right() -> None:
    images = torch.arange(6).view(1, 1, 2, 3).expand(400, 1, 2, 3)
    found = random_flip(images, generator())
    mirrored = (found[:, 0, 0, 0] == 2).sum().item()
    assert 150 < mirrored < 250
    assert sorted(set(map(str, found.flatten(1).tolist()))) == ["[0, 1, 2, 3, 4, 5]", "[2, 1, 0, 5, 4, 3]"]
    assert torch.equal(found, random_flip(images, generator()))


def test_in_a_mirror_the_eyes_of_a_stereo_pair_change_places() -> None:
    pair = torch.arange(12).view(1, 2, 2, 3).expand(400, 2, 2, 3)
    found = random_flip(pair, generator(), (1, 0))
    mirror = [8, 7, 6, 11, 10, 9, 2, 1, 0, 5, 4, 3]
    assert sorted(set(map(str, found.flatten(1).tolist()))) == sorted([str(list(range(12))), str(mirror)])


def test_crop_cuts_each_image_at_its_own_corner() -> None:
    images = torch.arange(2 * 2 * 3 * 4).view(2, 2, 3, 4)
    windows = crop(images, torch.tensor([[0, 1], [1, 2]]), (2, 2))
    assert windows.tolist() == [
        [[[1, 2], [5, 6]], [[13, 14], [17, 18]]],
        [[[30, 31], [34, 35]], [[42, 43], [46, 47]]],
    ]


def test_random_corners_reach_every_place_and_no_further() -> None:
    images = torch.zeros(500, 1, 5, 7)
    corners = random_corners(images, (3, 4), generator())
    assert corners.unique(dim=0).tolist() == [[row, column] for row in range(3) for column in range(4)]
    assert torch.equal(corners, random_corners(images, (3, 4), generator()))
    assert random_corners(images, (5, 7), generator()).unique(dim=0).tolist() == [[0, 0]]


@pytest.mark.parametrize("channels", [1, 3])
def test_windows_lie_channels_first(channels: int) -> None:
    """torch's gradient of a strided 1×1 convolution writes beyond its memory where few channels lie last."""
    images = torch.rand(2, channels, 6, 6)
    for found in (
        crop(images, torch.zeros(2, 2, dtype=torch.int64), (4, 4)),
        shift(images, torch.ones(2, 2).long(), 2),
    ):
        assert found.stride() == torch.empty(found.shape).stride()


def test_central_crops_by_hand() -> None:
    image = torch.arange(6 * 5).view(1, 1, 6, 5)
    assert central_crop(image, (2, 2))[0, 0].tolist() == [[11, 12], [16, 17]]
    assert central_crop(image, (2, 2), (-2, 2))[0, 0].tolist() == [[3, 4], [8, 9]]
    assert torch.equal(central_crop(image, (6, 5)), image)


def test_the_13_windows_are_those_of_the_released_code() -> None:
    image = torch.arange(64).view(8, 8)
    found = [int(central_crop(image, (2, 2), offset)[0, 0]) for offset in CROPS_13]
    # Of an 8×8 image the central 2×2 begins at 27 (row 3, column 3).
    assert found == [27, 18, 20, 34, 36, 9, 13, 41, 45, 0, 6, 48, 54]


def test_brightness_as_defined() -> None:
    images = torch.rand(50, 2, 4, 3)
    found = random_brightness(images, 0.25, generator())
    draws = torch.rand(50, 1, 1, 1, generator=generator()).flatten()
    for image, draw, changed in zip(images, draws, found, strict=True):
        torch.testing.assert_close(changed, image + (-0.25 + 0.5 * draw))
    assert found.min() < 0 and found.max() > 1  # not clipped
    by = (found - images).mean(dim=(1, 2, 3))
    assert -0.25 <= by.min() < -0.2 and 0.2 < by.max() <= 0.25


def test_gamma_as_defined() -> None:
    images = torch.rand(50, 2, 4, 3)
    found = random_gamma(images, 0.5, generator())
    draws = torch.rand(50, 1, 1, 1, generator=generator()).flatten()
    for image, draw, changed in zip(images, draws, found, strict=True):
        torch.testing.assert_close(changed, image ** math.exp(-0.5 + draw))
    powers = (found.log() / images.log())[:, 0, 0, 0]  # the same for all pixels, and on both sides of 1
    torch.testing.assert_close(powers, (found.log() / images.log())[:, 1, 2, 1], rtol=1e-4, atol=1e-4)
    assert math.exp(-0.5) <= powers.min() < 0.7 and 1.5 < powers.max() <= math.exp(0.5)
    ends = torch.tensor([0.0, 1.0, -1e-9]).expand(1, 1, 1, 3)
    assert random_gamma(ends, 0.5, generator()).tolist() == [[[[0, 1, 0]]]]


def test_shading_as_defined() -> None:
    images = torch.rand(50, 2, 5, 3)
    found = random_shading(images, 0.4, generator())
    draws = 0.4 * (2 * torch.rand(50, 2, generator=generator()) - 1)
    for image, (down, right), changed in zip(images, draws.tolist(), found, strict=True):
        for row in range(5):
            for column in range(3):
                light = math.exp(down * (row - 2) / 2 + right * (column - 1))
                torch.testing.assert_close(changed[:, row, column], image[:, row, column] * light)
    assert draws.min() < -0.35 and draws.max() > 0.35
    torch.testing.assert_close(found[:, :, 2, 1], images[:, :, 2, 1])  # none in the middle


def test_contrast_as_defined() -> None:
    images = torch.rand(50, 2, 4, 3)
    found = random_contrast(images, (0.2, 1.8), generator())
    draws = torch.rand(50, 1, 1, 1, generator=generator()).flatten()
    for image, draw, changed in zip(images, draws, found, strict=True):
        for channel, changed_channel in zip(image, changed, strict=True):
            mean = channel.sum() / 12
            torch.testing.assert_close(changed_channel, (channel - mean) * (0.2 + 1.6 * draw) + mean)
    assert found.min() < 0 and found.max() > 1  # not clipped
    by = found.std(dim=(1, 2, 3)) / images.std(dim=(1, 2, 3))
    assert 0.2 <= by.min() < 0.3 and 1.7 < by.max() <= 1.81


def test_affine_is_the_same_in_any_precision_and_for_no_images() -> None:
    """Under autocast places would be rounded by a tenth of a pixel."""
    images = torch.rand(3, 1, 28, 28)

    def turned(images: Tensor) -> Tensor:
        return random_affine(images, torch.Generator().manual_seed(0), degrees=20, scale=0.1, translate=2)

    with torch.autocast("cpu", torch.bfloat16):
        under = turned(images)
    torch.testing.assert_close(under, turned(images), rtol=0, atol=0)
    torch.testing.assert_close(turned(images.double()), turned(images).double(), rtol=0, atol=1e-4)
    assert turned(images.bfloat16()).dtype == torch.bfloat16
    assert turned(images[:0]).shape == (0, 1, 28, 28)


def test_affine_of_nothing_is_the_image() -> None:
    images = torch.rand(3, 2, 8, 11)
    torch.testing.assert_close(random_affine(images, generator()), images, rtol=1e-5, atol=1e-5)


def test_turning_and_slanting_keep_the_area() -> None:
    """Of any shape: so they are turned and sheared, one after the other, and not stretched."""
    rows, columns = torch.meshgrid(torch.arange(41.0), torch.arange(31.0), indexing="ij")
    blob = torch.exp(-((rows - 22) ** 2 + (columns - 17) ** 2) / 8)[None, None].repeat(200, 1, 1, 1)
    area = random_affine(blob, generator(), degrees=40.0, shear=0.5).sum(dim=(1, 2, 3))
    torch.testing.assert_close(area, blob.sum(dim=(1, 2, 3)), rtol=0.01, atol=0)


def test_affine_shifts_the_centre_as_far_as_it_says_whatever_else_it_does() -> None:
    near = torch.exp(-((torch.arange(41.0) - 20) ** 2) / 8)
    blob = (near[:, None] * near).repeat(300, 1, 1, 1)
    warped = random_affine(blob, generator(), degrees=30.0, scale=0.3, shear=0.2, translate=4.0)
    rows, columns = (warped.sum(dim=(1, dim)) for dim in (3, 2))
    drawn = 4 * (2 * torch.rand(300, 5, generator=generator())[:, 3:] - 1)  # right, down
    for profile, wanted in ((columns, drawn[:, 0]), (rows, drawn[:, 1])):
        found = (profile * (torch.arange(41.0) - 20)).sum(dim=1) / profile.sum(dim=1)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.05)


def test_aspect_stretches_one_axis_and_shrinks_the_other() -> None:
    near = torch.exp(-((torch.arange(61.0) - 30) ** 2) / 18)
    blob = (near[:, None] * near).repeat(200, 1, 1, 1)
    warped = random_affine(blob, generator(), aspect=0.4)
    variances = []
    for axis in (2, 3):  # of the columns, and of the rows
        profile = warped.sum(dim=(1, axis))
        variances.append((profile * (torch.arange(61.0) - 30) ** 2).sum(dim=1) / profile.sum(dim=1))
    after = generator()
    torch.rand(200, 5, generator=after)
    drawn = 2 * torch.rand(200, generator=after) - 1
    torch.testing.assert_close((variances[0] / variances[1]).sqrt().log(), 0.4 * drawn, rtol=0, atol=0.01)
    torch.testing.assert_close(warped.sum(dim=(1, 2, 3)), blob.sum(dim=(1, 2, 3)), rtol=0.01, atol=0)
    assert torch.equal(
        random_affine(blob, generator(), scale=0.1), random_affine(blob, generator(), scale=0.1, aspect=0.0)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_changes_keep_the_dtype(dtype: torch.dtype) -> None:
    images = torch.rand(3, 1, 6, 6, dtype=dtype)
    assert random_gamma(images, 0.5, generator()).dtype == dtype
    assert random_shading(images, 0.5, generator()).dtype == dtype
    assert random_brightness(images, 0.5, generator()).dtype == dtype
    assert random_contrast(images, (0.5, 1.5), generator()).dtype == dtype
    assert random_affine(images, generator(), degrees=5).dtype == dtype


@pytest.mark.parametrize("options", [{"degrees": 30.0}, {"scale": 0.3}, {"shear": 0.3}, {"translate": 2.0}])
def test_affine_moves_a_blob_but_keeps_what_it_should(options: dict[str, float]) -> None:
    rows, columns = torch.meshgrid(torch.arange(41.0), torch.arange(31.0), indexing="ij")
    blob = torch.exp(-((rows - 20) ** 2 + (columns - 21) ** 2) / 8)[None, None].repeat(200, 1, 1, 1)
    warped = random_affine(blob, generator(), **options)
    mass = warped.sum(dim=(1, 2, 3))
    row = (warped.sum(dim=3)[:, 0] * torch.arange(41.0)).sum(dim=1) / mass - 20
    column = (warped.sum(dim=2)[:, 0] * torch.arange(31.0)).sum(dim=1) / mass - 15
    if "degrees" in options:  # the distance of 6 pixels from the centre stays, the angle reaches ±30°
        torch.testing.assert_close((row**2 + column**2).sqrt(), torch.full((200,), 6.0), rtol=0.02, atol=0.02)
        angle = torch.rad2deg(torch.atan2(row, column))
        assert 28 < angle.max() < 30.5 and -30.5 < angle.min() < -28
    if "scale" in options:  # the distance follows the size; so does the area
        assert 6 * 1.25 < column.max() < 6 * 1.32 and 6 * 0.68 < column.min() < 6 * 0.75
        torch.testing.assert_close(
            mass / mass.mean(), (column / 6) ** 2 / ((column / 6) ** 2).mean(), rtol=0.02, atol=0.02
        )
    if "shear" in options:  # ten rows below the centre it moves by up to three columns, as far as was drawn
        below = random_affine(blob.roll((10, -6), (2, 3)), generator(), **options)
        moved = (below.sum(dim=2)[:, 0] * torch.arange(31.0)).sum(dim=1) / below.sum(dim=(1, 2, 3)) - 15
        drawn = 2 * torch.rand(200, 5, generator=generator())[:, 2] - 1
        torch.testing.assert_close(moved, -3 * drawn, rtol=0, atol=0.05)
    if "shear" in options:  # the blob is at the height of the centre: it stays where it is
        assert row.abs().max() < 0.05 and (column - 6).abs().max() < 0.05
        assert (warped - blob).abs().amax(dim=(1, 2, 3)).max() > 0.1
    if "translate" in options:
        assert 1.8 < row.max() < 2.02 and 1.8 < (column - 6).max() < 2.02
