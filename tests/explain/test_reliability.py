"""Bins of confidence against those counted by hand, and the figures of several labels."""

from __future__ import annotations

import math

import pytest
import torch

from torchcaps.explain import (
    co_occurrence,
    draw_co_occurrence,
    draw_labels,
    draw_reliability,
    reliability,
)
from torchcaps.training.probabilities import calibration_error


def test_bins_by_hand() -> None:
    confidence = torch.tensor([0.0, 0.1, 0.25, 0.26, 0.9, 1.0])
    right = torch.tensor([False, True, False, True, True, True])
    found = reliability(confidence, right, 4)
    assert found.counts.tolist() == [3, 1, 0, 2]
    assert found.right[[0, 1, 3]].tolist() == [1 / 3, 1.0, 1.0]
    assert found.confidence[0].item() == pytest.approx(0.35 / 3) and math.isnan(found.confidence[2])


def test_the_picture_shows_what_the_calibration_error_says() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(200, generator=generator)
    right = torch.rand(200, generator=generator) < confidence
    found = reliability(confidence, right)
    there = found.counts > 0
    gaps = (found.right - found.confidence).abs()[there] * found.counts[there] / 200
    assert gaps.sum().item() == pytest.approx(calibration_error(confidence, right), abs=1e-6)
    above, below = draw_reliability(found).axes
    assert len(above.collections[0].get_offsets()) == int(there.sum())
    assert [bar.get_height() for bar in below.patches] == found.counts.tolist()


def test_bad_confidences_are_refused() -> None:
    with pytest.raises(ValueError, match="confidence must be among 0 … 1, got 0.5 … 2"):
        reliability(torch.tensor([0.5, 2.0]), torch.tensor([True, True]))
    with pytest.raises(ValueError, match="n_bins must be"):
        reliability(torch.tensor([0.5]), torch.tensor([True]), 0)
    with pytest.raises(ValueError, match="found must hold a prediction, got none"):
        draw_reliability(reliability(torch.empty(0), torch.empty(0, dtype=torch.bool)))


def test_labels_that_go_together_by_hand() -> None:
    labels = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]).bool()
    shares = co_occurrence(labels)
    assert shares[0].tolist() == pytest.approx([1, 2 / 3, 0]) and shares[2].isnan().all()
    figure = draw_co_occurrence([("true", shares), ("predicted", shares)], ("a", "b", "c"))
    assert [text.get_text() for text in figure.axes[0].texts] == ["100", "67", "0", "67", "100", "0", "–", "–", "–"]
    with pytest.raises(ValueError, match=r"labels must be bool, got torch.int64"):
        co_occurrence(labels.long())
    with pytest.raises(
        ValueError, match=r"panels must hold shares \[J, J\] with J=2 as there are classes, got \[\[3, 3"
    ):
        draw_co_occurrence([("true", shares)], ("a", "b"))


def test_what_is_said_below_an_image() -> None:
    labels = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    predicted = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]).bool()
    figure = draw_labels(torch.rand(3, 1, 5, 5), labels, predicted, ("a", "b", "c", "d"))
    said = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert said == [["a, b +1"], ["✓ no label"], ["missed a", "not d"]]
    with pytest.raises(ValueError, match="images must be some, and classes 4 names; got 3, 2"):
        draw_labels(torch.rand(3, 1, 5, 5), labels, predicted, ("a", "b"))
