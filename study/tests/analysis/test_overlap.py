"""Overlaps of masks that one can count, and capsules that say what they were told to."""

from __future__ import annotations

import pytest
import torch

from study.analysis import SameClassOverlap, intersection_over_union, same_class_overlap
from torchcaps.models import CapsNet

SHAPE = (1, 20, 18)


def test_pixels_are_counted():
    first, second = torch.zeros(3, 1, 4, 4), torch.zeros(3, 1, 4, 4)
    first[0, 0, :2], second[0, 0, 1:] = 0.5, 0.9  # rows 0–1 and 1–3: one row of four in common
    first[1, 0, 0], second[1, 0, 3] = 1.0, 1.0
    found = intersection_over_union(first, second)
    torch.testing.assert_close(found, torch.tensor([0.25, 0.0, 1.0]))
    torch.testing.assert_close(intersection_over_union(first, second, 0.6), torch.tensor([0.0, 0.0, 1.0]))
    colour = torch.tensor([0.2, 0.4, 0.9]).view(3, 1, 1).expand(3, 2, 2)
    assert float(intersection_over_union(colour, torch.ones(3, 2, 2))) == 1.0
    assert float(intersection_over_union(colour - 0.1, torch.ones(3, 2, 2))) == 0.0  # of mean 0.4


@torch.no_grad()
def test_crowding_is_what_the_model_says_of_pairs_and_of_their_parts():
    model = CapsNet(SHAPE, 3, channels=4, n_types=2, decoder=(6,))
    parts, labels = torch.rand(3, 2, *SHAPE), torch.tensor([0, 2, 2])
    images = parts.amax(dim=1)
    found = same_class_overlap(model, images, labels, parts, threshold=0.4, batch_size=2)
    model.eval()
    both, second = model(images), model(parts[:, 1])
    assert model.decoder is not None
    for b, k in enumerate(labels.tolist()):
        assert float(found.length_pair[b]) == pytest.approx(float(both.scores[b, k]), abs=1e-6)
        assert float(found.length_single[b, 1]) == pytest.approx(float(second.scores[b, k]), abs=1e-6)
        others = [float(both.scores[b, j]) for j in range(3) if j != k]
        assert float(found.strongest_other[b]) == pytest.approx(max(others), abs=1e-6)
        seen = model.decoder(both.capsules[-1].pose, labels)[b]
        assert float(found.overlap[b, 0]) == float(intersection_over_union(seen, parts[b, 0], 0.4))
        alone = model.decoder(second.capsules[-1].pose, labels)[b]
        assert float(found.overlap_single[b, 1]) == float(intersection_over_union(alone, parts[b, 1], 0.4))


def test_whether_the_length_tells_is_a_share_of_comparisons():
    single, none = torch.tensor([[0.1, 0.5], [0.5, 0.9]]), torch.zeros(2, 2)
    found = SameClassOverlap(torch.tensor([0.5, 0.95]), single, none[0], none, none)
    assert found.told_apart == pytest.approx((1 + 0.5 + 0.5 + 0 + 4) / 8)


def test_what_does_not_fit_is_named():
    model = CapsNet(SHAPE, 3, channels=4, n_types=2, decoder=None)
    x, labels, parts = torch.rand(1, *SHAPE), torch.tensor([0]), torch.rand(1, 2, *SHAPE)
    with pytest.raises(ValueError, match="model must have a decoder"):
        same_class_overlap(model, x, labels, parts)
    with pytest.raises(ValueError, match=r"parts must be \[B, 2, C, H, W\], got shape \[1, 1, 1, 20, 18\]"):
        same_class_overlap(model, x, labels, parts[:, :1])
    whole = CapsNet(SHAPE, 3, channels=4, n_types=2, decoder=(4,))
    with pytest.raises(ValueError, match="labels must hold classes 0 … 2, got 3 … 3"):
        same_class_overlap(whole, x, labels + 3, parts)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        same_class_overlap(whole, x, labels, parts, batch_size=0)
    with pytest.raises(ValueError, match=r"first and second must be \[..., C, H, W\] of one shape"):
        intersection_over_union(x, parts)
    with pytest.raises(ValueError, match="threshold must be positive, got 0"):
        intersection_over_union(x, x, 0)
