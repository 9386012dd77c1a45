"""Every part is still there, and none is in its place."""

from __future__ import annotations

import pytest
import torch

from study.data.disarrange import shift_halves, shuffle_tiles


def test_halves_stand_apart_by_what_was_asked():
    x = torch.zeros(1, 2, 6, 10)
    x[..., 5] = 1
    for pixels, upper, lower in ((0, 5, 5), (1, 6, 5), (4, 7, 3), (5, 8, 3)):
        found = shift_halves(x, pixels)
        torch.testing.assert_close(found[:, :, :3].argmax(dim=3), torch.full((1, 2, 3), upper))
        torch.testing.assert_close(found[:, :, 3:].argmax(dim=3), torch.full((1, 2, 3), lower))
        torch.testing.assert_close(found.sum(), x.sum())


@pytest.mark.parametrize("n", [2, 3])
def test_tiles_are_all_there_and_all_elsewhere(n):
    tiles = torch.arange(n * n, dtype=torch.float32).view(n, n)
    x = tiles.repeat_interleave(2, 0).repeat_interleave(4, 1).expand(50, 1, -1, -1)  # tiles of 2×4 pixels
    found = shuffle_tiles(x, n, seed=1)
    at = found[:, 0, ::2, ::4].flatten(1)
    assert torch.equal(found, at.view(50, 1, n, n).repeat_interleave(2, 2).repeat_interleave(4, 3))
    assert torch.equal(at.sort(dim=1).values, tiles.flatten().expand(50, -1))
    assert (at != tiles.flatten()).all()
    assert len(at.unique(dim=0)) > 3
    assert torch.equal(found, shuffle_tiles(x, n, seed=1)) and not torch.equal(found, shuffle_tiles(x, n, seed=2))


def test_what_a_tile_shows_stays_as_it_is():
    x = torch.rand(1, 3, 4, 6)
    found = shuffle_tiles(x, 2)
    whole = [x[0, :, i : i + 2, j : j + 3] for i in (0, 2) for j in (0, 3)]
    assert any(torch.equal(found[0, :, :2, :3], tile) for tile in whole[1:])


def test_what_does_not_fit_is_named():
    x = torch.rand(1, 1, 6, 8)
    with pytest.raises(ValueError, match="images must have height and width divisible by n=4, got 6×8"):
        shuffle_tiles(x, 4)
    with pytest.raises(ValueError, match="n must be an integer of at least 2, got 1"):
        shuffle_tiles(x, 1)
    with pytest.raises(ValueError, match="pixels must be an integer of at least 0, got -1"):
        shift_halves(x, -1)
    with pytest.raises(ValueError, match="the images' height must be an integer of at least 2, got 1"):
        shift_halves(x[:, :, :1], 1)
