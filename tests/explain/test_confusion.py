from __future__ import annotations

import pytest
import torch

from torchcaps.explain import confusion_matrix, read_metrics


def test_rows_are_true_and_columns_predicted():
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    predicted = torch.tensor([0, 2, 1, 2, 0, 2])
    assert confusion_matrix(labels, predicted, 3).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 2]]


def test_bytes_are_counted_like_any_integers():
    labels = torch.arange(100, dtype=torch.uint8)
    assert confusion_matrix(labels, labels.int(), 100).equal(torch.eye(100, dtype=torch.int64))


def test_classes_that_never_occur_have_empty_rows():
    assert confusion_matrix(torch.tensor([1]), torch.tensor([1]), 3).tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_a_class_out_of_range_is_named():
    with pytest.raises(ValueError, match=r"predicted must hold classes 0 … 2, got 0 … 3"):
        confusion_matrix(torch.tensor([0, 1]), torch.tensor([0, 3]), 3)
    with pytest.raises(ValueError, match="predicted must be"):
        confusion_matrix(torch.tensor([0, 1]), torch.tensor([0]), 3)


def test_metrics_are_numbers(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,val_error\n1,20,0.5\n2,40,0.25\n")
    assert read_metrics(path) == [
        {"epoch": 1.0, "step": 20.0, "val_error": 0.5},
        {"epoch": 2.0, "step": 40.0, "val_error": 0.25},
    ]


@pytest.mark.parametrize("content", [None, "epoch,step\n1,none\n", "epoch,step\n1\n"])
def test_broken_metrics_are_named(tmp_path, content):
    path = tmp_path / "metrics.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match="cannot be read as metrics"):
        read_metrics(path)
