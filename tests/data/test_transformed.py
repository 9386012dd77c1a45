"""Pairs of images and the transformation between them: the matrix says what was done, exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from torchcaps.data.transformed import Limits, TransformedPair, transformed_pairs
from torchcaps.ops import affine_parts, warp


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spots(n: int) -> torch.Tensor:
    along = torch.arange(51) - 25.0
    y, x = torch.meshgrid(along, along, indexing="ij")
    at = 4 * (2 * torch.rand(n, 2, 1, 1) - 1)
    return torch.exp(-((x - at[:, 0]) ** 2 + (y - at[:, 1]) ** 2) / 40).unsqueeze(1)


def test_the_transformation_leads_from_one_to_the_other() -> None:
    pair = transformed_pairs(spots(30), Limits(2, 20, 0.2, 0.2), generator())
    error = (warp(pair.images, pair.transformation) - pair.transformed).abs().max()
    assert error < 0.03
    assert (pair.images - pair.transformed).abs().amax(dim=(1, 2, 3)).median() > 5 * error


def test_shifts_are_whole_pixels_and_all_of_them_occur() -> None:
    images = torch.rand(400, 1, 12, 12)
    pair = transformed_pairs(images, Limits(2), generator())
    shift = pair.transformation[:, :2, 2]
    assert torch.equal(shift, shift.round())
    assert sorted(set(shift.flatten().int().tolist())) == list(range(-4, 5))
    middle = slice(4, 8)
    for k in range(20):
        x, y = shift[k].int().tolist()
        seen = pair.images[k, :, 4 - y : 8 - y, 4 - x : 8 - x]
        torch.testing.assert_close(pair.transformed[k, :, middle, middle], seen, atol=1e-5, rtol=0)


def test_each_stays_within_its_limits() -> None:
    limits = Limits(3, 10, 0.3, 0.1)
    parts = affine_parts(limits.draw(500, generator()))
    for values, most in ((parts.angle, math.radians(10)), (parts.scale - 1, 0.3), (parts.shear, 0.1), (parts.shift, 3)):
        assert 0.9 * most < values.abs().max() <= most * (1 + 1e-5)


def test_each_is_drawn_by_itself() -> None:
    parts = affine_parts(Limits(3, 10, 0.3, 0.1).draw(2000, generator()))
    numbers = torch.cat((parts.angle[:, None], parts.scale, parts.shear[:, None], parts.shift), dim=1)
    torch.testing.assert_close(torch.corrcoef(numbers.T), torch.eye(6), rtol=0, atol=0.1)
    middle = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert ((numbers.mean(dim=0) - middle).abs() < 0.1 * numbers.std(dim=0)).all()


@pytest.mark.parametrize("name", ["shift", "degrees", "shear"])
def test_negative_limits_are_refused(name: str) -> None:
    """A negative shift would be a constant one."""
    with pytest.raises(ValueError, match=f"{name} must be a number of at least 0, got -1"):
        Limits(**{name: -1}).draw(5, generator())


def test_a_scale_that_would_mirror_is_refused() -> None:
    for scale in (1.0, -0.1):
        with pytest.raises(ValueError, match=f"scale must be at least 0 and below 1, got {scale}"):
            Limits(scale=scale).draw(2, torch.Generator())


def test_whole_shifts_stay_below_a_limit_that_is_none() -> None:
    drawn = Limits(shift=1.5).draw(500, torch.Generator().manual_seed(0))[:, :2, 2]
    assert drawn.unique().tolist() == [-1, 0, 1]


def test_what_is_told_is_not_rounded_under_autocast() -> None:
    limits, images = Limits(shift=2, degrees=20, scale=0.1), torch.rand(4, 1, 20, 20)
    plain = transformed_pairs(images, limits, torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        under = transformed_pairs(images, limits, torch.Generator().manual_seed(0))
    for one, other in zip(plain, under, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_every_whole_shift_is_as_likely() -> None:
    for most in (1, 2, 3):
        shift = Limits(most).draw(7000, generator())[:, :2, 2].flatten().int()
        counts = (shift + most).bincount()
        assert len(counts) == 2 * most + 1
        assert counts.min() > 0.85 * counts.max()


def test_the_same_generator_gives_the_same_pairs() -> None:
    images = torch.rand(4, 1, 9, 9)
    one, two = (transformed_pairs(images, Limits(1, 5), generator(3)) for _ in range(2))
    assert torch.equal(one.transformed, two.transformed) and torch.equal(one.images, two.images)


def test_results_are_cut_about_the_centre() -> None:
    images = torch.rand(4, 2, 16, 14)
    whole, cut = (transformed_pairs(images, Limits(1, 5), generator(), size) for size in (None, (8, 6)))
    torch.testing.assert_close(cut.images, whole.images[:, :, 4:12, 4:10], atol=1e-5, rtol=0)
    torch.testing.assert_close(cut.transformed, whole.transformed[:, :, 4:12, 4:10], atol=1e-5, rtol=0)


def test_what_comes_in_from_beyond_the_image_is_what_was_asked_for() -> None:
    images = torch.full((4, 1, 12, 12), 0.5)
    limits = Limits(shift=3, degrees=20)

    def made(**options: Any) -> TransformedPair:
        return transformed_pairs(images, limits, torch.Generator().manual_seed(0), **options)

    assert made().images.min() == 0  # black corners in a grey image
    for fill in ("border", "reflection"):
        pair = made(fill=fill)
        torch.testing.assert_close(pair.images, images)
        torch.testing.assert_close(pair.transformed, images)
        assert torch.equal(pair.transformation, made().transformation)
    with pytest.raises(ValueError, match="fill must be one of zeros, border, reflection; got 'white'"):
        made(fill="white")
