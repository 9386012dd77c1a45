"""AUC and calibration against loops in plain Python, and where they are undefined."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchcaps.training.per_class import probability_scores
from torchcaps.training.probabilities import N_BINS, area_under_roc, calibration_error, confidences


def pairs_in_order(labels: Tensor, scores: Tensor) -> float:
    """The share of pairs, one image with the class and one without, that scores rank rightly; equal ones count half."""
    inside, outside = scores[labels].tolist(), scores[~labels].tolist()
    return sum((a > b) + (a == b) / 2 for a in inside for b in outside) / (len(inside) * len(outside))


def binned(confidence: Tensor, right: Tensor) -> float:
    total = 0.0
    for k in range(N_BINS):
        inside = (confidence > k / N_BINS) & (confidence <= (k + 1) / N_BINS)
        if inside.any():
            total += abs(confidence[inside].mean() - right[inside].double().mean()).item() * inside.sum().item()
    return total / len(confidence)


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(80, 3, generator=generator) < torch.tensor([0.1, 0.5, 0.9])
    scores = torch.rand(80, 3, generator=generator, dtype=torch.float64)
    scores[:, 1] = (scores[:, 1] * 8).round() / 8  # with equal ones
    found = area_under_roc(labels, scores, ("a", "b", "c"))
    wanted = [pairs_in_order(labels[:, k], scores[:, k]) for k in range(3)]
    assert list(found["auc"].values()) == pytest.approx(wanted, abs=1e-6)
    assert found["auc_macro"] == pytest.approx(sum(wanted) / 3, abs=1e-6)


def test_calibration_is_that_of_a_loop_over_bins() -> None:
    generator = torch.Generator().manual_seed(1)
    confidence = torch.rand(300, generator=generator, dtype=torch.float64)
    right = torch.rand(300, generator=generator) < confidence**2
    assert calibration_error(confidence, right) == pytest.approx(binned(confidence, right), abs=1e-6)


def test_what_is_undefined_is_none_and_silent() -> None:
    """A class without images, and one that all show; the mean is of the others, not of zeros for these."""
    labels = torch.tensor([0, 0, 1, 1])
    scores = torch.tensor([[0.9, 0.1, 0.2], [0.8, 0.3, 0.1], [0.2, 0.7, 0.4], [0.85, 0.9, 0.3]])
    found = probability_scores(labels, scores, ("a", "b", "c"))
    assert found["auc"] == {"a": 0.75, "b": 1.0, "c": None} and found["auc_macro"] == 0.875
    alone = probability_scores(torch.zeros(3, dtype=torch.long), torch.rand(3, 2), ("a", "b"))
    assert alone["auc"] == {"a": None, "b": None} and alone["auc_macro"] is None
    broken = probability_scores(labels, scores * float("nan"), ("a", "b", "c"))
    assert broken["auc_macro"] is None and broken["ece"] is None
    assert calibration_error(torch.empty(0), torch.empty(0, dtype=torch.bool)) is None


def test_a_length_beyond_one_by_rounding_is_no_logit() -> None:
    confidence = torch.tensor([1.0000001, 0.5, 0.5])
    right = torch.tensor([True, True, False])
    assert calibration_error(confidence, right) == 0.0
    labels = torch.tensor([[True], [False]])
    assert area_under_roc(labels, torch.tensor([[1.0000001], [0.99]]), ("a",))["auc"] == {"a": 1.0}


def test_confidence_is_the_length_of_the_predicted_capsule() -> None:
    lengths = torch.tensor([[0.9, 0.8], [0.3, 0.6]])
    confidence, right = confidences(torch.tensor([0, 0]), lengths)
    assert torch.equal(confidence, torch.tensor([0.9, 0.6])) and right.tolist() == [True, False]
    confidence, right = confidences(torch.tensor([[True, False], [True, True]]), lengths)
    assert torch.equal(confidence, lengths.flatten()) and right.tolist() == [True, False, True, True]
