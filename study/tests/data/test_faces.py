"""Faces have all parts in their places; the others lack some, or have them elsewhere."""

from __future__ import annotations

import pytest
import torch

from study.data.faces import ARRANGEMENTS, draw_faces
from study.measures import picasso
from torchcaps.data import load


def test_every_arrangement_has_the_same_outline_and_not_the_same_parts():
    whole, incomplete, exchanged = (draw_faces(40, 3, a).float() for a in ARRANGEMENTS)
    assert whole.shape == (40, 1, 28, 28) and whole.max() == 255
    assert torch.equal(whole, draw_faces(40, 3).float()) and not torch.equal(whole, draw_faces(40, 4).float())
    assert (incomplete <= whole).all()  # nothing but parts is missing
    missing = (whole - incomplete).sum(dim=(1, 2, 3))
    assert (missing > 2 * 255).all() and missing.std() > 255
    # All parts are there, up to what the grid of pixels does to them.
    torch.testing.assert_close(exchanged.sum(dim=(1, 2, 3)), whole.sum(dim=(1, 2, 3)), rtol=0.12, atol=0)
    assert ((exchanged - whole).abs().sum(dim=(1, 2, 3)) > 10 * 255).all()


def test_eyes_are_above_and_the_mouth_goes_where_they_were():
    """Means of many figures, all of them nearly upright and in the middle."""
    whole, exchanged = (draw_faces(300, 0, a).float().mean(dim=0)[0] / 255 for a in ("face", "exchanged"))
    assert whole[10, 10] > 0.3 and whole[10, 17] > 0.3 and whole[10, 13:15].max() < 0.1
    assert exchanged[9:12, 12].mean() > whole[9:12, 12].mean() + 0.05  # the mouth is wider than the eye


def test_the_data_set_is_balanced_and_repeats():
    data = load("faces", image_size=(20, 24))
    assert data.classes == ("face", "no face") and data.image_shape == (1, 20, 24)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 6000, "val": 1000, "test": 1000}
    assert all(2 * int(split.labels.sum()) == len(split) for split in data.splits.values())
    bright = data.test.images.float().sum(dim=(1, 2, 3))
    assert bright[data.test.labels == 0].mean() > bright[data.test.labels == 1].mean()
    other = draw_faces(100, picasso.FACES_SEED, image_size=(20, 24))  # of the Picasso test
    parts = [*(split.images[split.labels == 0][:100] for split in data.splits.values()), other]
    assert len(torch.cat(parts).unique(dim=0)) == 400  # no figure stands in two of them


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="arrangement must be one of face, incomplete, exchanged; got 'cubist'"):
        draw_faces(1, 0, "cubist")
    with pytest.raises(ValueError, match="n must be an integer of at least 1, got 0"):
        draw_faces(0, 0)
