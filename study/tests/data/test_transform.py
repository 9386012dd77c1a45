"""Bright pixels go where one expects them."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from study.data.transform import NEUTRAL, TRANSFORMATIONS, rotate, scale, shift_right, thicken


def dot(row: int, column: int, height: int = 9, width: int = 9) -> torch.Tensor:
    image = torch.zeros(1, 1, height, width)
    image[0, 0, row, column] = 1
    return image


@pytest.mark.parametrize(("change", "value"), [(rotate, 0), (shift_right, 0), (scale, 1), (thicken, 0.1)])
def test_nothing_to_do_changes_nothing(change, value):
    x = torch.rand(2, 3, 5, 8)
    assert torch.equal(change(x, value), x)


def sharpness(x: torch.Tensor) -> float:
    across, down = x.diff(dim=3)[..., 3:-3, 3:-3], x.diff(dim=2)[..., 3:-3, 3:-3]
    return float((across.square().mean() + down.square().mean()).sqrt())


def test_those_by_name_blur_all_values_alike():
    """Also the values that change nothing and those on whole pixels; made on the image's own grid they would differ."""
    x = F.avg_pool2d(torch.rand(20, 1, 61, 61), 2, 1)  # noise without what is too fine for any grid
    for name, values in (("rotate", (0, 5, 30, 45, 90, 180)), ("shift", (0, -0.25, 0.5, 1, 2))):
        found = [sharpness(TRANSFORMATIONS[name](x, value)) for value in values]
        assert max(found) < 1.1 * min(found)
    for change, value in ((rotate, 30), (shift_right, 0.5)):
        assert sharpness(x) > 1.25 * sharpness(change(x, value))
    same = [TRANSFORMATIONS[name](x, NEUTRAL[name]) for name in ("rotate", "shift", "scale")]
    torch.testing.assert_close(same[1:], [same[0]] * 2)
    widths = [sharpness(TRANSFORMATIONS["thicken"](x, k / 4)) for k in (-1, 0, 1)]
    assert max(widths) < 1.1 * min(widths) < sharpness(x)


@pytest.mark.parametrize(("name", "value"), [("rotate", -70), ("shift", 2.5), ("scale", 0.8), ("thicken", 0.5)])
def test_those_by_name_are_the_same_changes(name, value):
    functions = {"rotate": rotate, "shift": shift_right, "scale": scale, "thicken": thicken}
    y, x = torch.meshgrid(torch.linspace(-2, 2, 60), torch.linspace(-3, 3, 90), indexing="ij")
    smooth = torch.exp(-((x - 0.5) ** 2) - 2 * (y + 0.2) ** 2)[None, None]
    found, wanted = TRANSFORMATIONS[name](smooth, value), functions[name](smooth, value)
    torch.testing.assert_close(found, wanted, atol=5e-3, rtol=0)
    assert (found - smooth).abs().max() > 0.02
    others = torch.cat((3 * torch.rand(1, 1, 60, 90) - 1, smooth))  # each image is changed by itself
    torch.testing.assert_close(TRANSFORMATIONS[name](others, value)[1:], found)
    assert TRANSFORMATIONS[name](smooth[:0], value).shape == (0, 1, 60, 90)


def test_no_pixel_is_darker_or_brighter_than_its_image_was():
    """Cubic interpolation overshoots at edges."""
    low, high = torch.tensor([0.0, 0.3]), torch.tensor([1.0, 0.5])
    bars = torch.arange(12).div(3, rounding_mode="floor") % 2
    x = torch.where(bars.bool(), high[:, None, None, None], low[:, None, None, None]).expand(2, 1, 12, 12)
    for name in ("rotate", "shift", "scale"):
        found = TRANSFORMATIONS[name](x, NEUTRAL[name])
        for image, least, most in zip(found, low, high, strict=True):
            assert least - 1e-6 <= image.min() < image.max() <= most + 1e-6


def test_places_are_not_rounded_under_autocast():
    images = torch.rand(2, 1, 28, 28)
    with torch.autocast("cpu", torch.bfloat16):
        under = rotate(images, 17)
    torch.testing.assert_close(under, rotate(images, 17), rtol=0, atol=0)
    assert rotate(images[:0], 17).shape == (0, 1, 28, 28) and rotate(images.half(), 17).dtype == torch.float16


def test_a_quarter_turn_is_counter_clockwise():
    torch.testing.assert_close(rotate(dot(4, 7), 90), dot(1, 4), atol=1e-5, rtol=0)  # from the right to the top
    torch.testing.assert_close(rotate(dot(4, 7), -90), dot(7, 4), atol=1e-5, rtol=0)
    assert torch.equal(rotate(dot(4, 7), 180), dot(4, 1))
    assert torch.equal(rotate(dot(4, 7), -360), dot(4, 7))
    wide = dot(3, 8, 7, 13)  # two right of the centre goes two up, in pixels, though the image is wider than high
    torch.testing.assert_close(rotate(wide, 90), dot(1, 6, 7, 13), atol=1e-5, rtol=0)


def test_shifts_go_right_and_by_parts_of_a_pixel():
    torch.testing.assert_close(shift_right(dot(2, 3), 4), dot(2, 7), atol=1e-5, rtol=0)
    half = shift_right(dot(2, 3), -0.5)[0, 0, 2]
    torch.testing.assert_close(half[[1, 2, 3, 4]], torch.tensor([0.0, 0.5, 0.5, 0.0]), atol=1e-5, rtol=0)


def test_scaling_moves_away_from_the_centre():
    block = torch.zeros(1, 1, 8, 8)
    block[..., 3:5, 3:5] = 1
    assert scale(block, 2).sum() == pytest.approx(16, rel=0.02)
    assert scale(block, 0.5).sum() == pytest.approx(1, rel=0.02)
    torch.testing.assert_close(scale(dot(4, 6), 2)[0, 0, 4, 8], torch.tensor(1.0))
    with pytest.raises(ValueError, match="factor must be positive, got 0"):
        scale(block, 0)


@pytest.mark.parametrize("change", [rotate, shift_right, scale, thicken, *TRANSFORMATIONS.values()])
def test_bytes_are_refused(change):
    for value in (0.5, 0, 1):
        with pytest.raises(ValueError, match=r"images must be floats, such as to_float.*, got torch.uint8"):
            change(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), value)


def test_the_ground_goes_on_at_the_edge():
    x = torch.full((1, 1, 6, 6), 0.3)
    for name, value in (("rotate", 30), ("shift", 4), ("scale", 0.5), ("thicken", -1)):
        torch.testing.assert_close(TRANSFORMATIONS[name](x, value), x)


def test_a_bar_grows_on_both_sides_and_shrinks_again():
    bar = torch.zeros(1, 1, 12, 12)
    bar[..., 4:8] = 1  # four columns wide
    assert thicken(bar, 1)[0, 0, 6].sum() == pytest.approx(6, abs=0.6)
    assert thicken(bar, -1)[0, 0, 6].sum() == pytest.approx(2, abs=0.6)
    widths = [float(thicken(bar, k / 4)[0, 0, 6].sum()) for k in range(-4, 5)]
    assert all(a < b for a, b in itertools.pairwise(widths))
    torch.testing.assert_close(thicken(1 - bar, 0.5), 1 - thicken(bar, -0.5))
    assert thicken(torch.rand(1, 2, 5, 7), 0.5).shape == (1, 2, 5, 7)


def test_a_dot_grows_to_a_disc():
    grown = thicken(dot(4, 4), 1.0)[0, 0]
    torch.testing.assert_close(grown, grown.T)
    torch.testing.assert_close(grown[1:8, 1:8], grown[1:8, 1:8].flip(0))
    assert grown[3, 3] < 0.5 < grown[3, 4] <= grown[4, 4] and grown[2, 4] < 0.1
