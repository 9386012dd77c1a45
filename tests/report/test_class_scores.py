"""What a report says of each class, and of several labels an image."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.test_multi_label import CLASSES, TINY, made
from torchcaps.data import DATASETS, Dataset, Images
from torchcaps.report import evaluate_run, write_report
from torchcaps.training import Data, Model, files
from torchcaps.training.run import Run
from torchcaps.training.train import train


def toy(labels: torch.Tensor | None = None) -> Dataset:
    """Squares at three places; of some labels every image has one, so that they have no AUC."""
    parts = [made(64, 0), made(24, 1), made(24, 2)]
    if labels is not None:
        parts = [Images(part.images, labels.expand(len(part), -1)) for part in parts]
    return Dataset("toy", CLASSES, *parts)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "DPI", 30)
    monkeypatch.setitem(DATASETS, "toy", lambda root=None, image_size=None: toy())
    train(replace(TINY, data=replace(TINY.data, multi_label=True), epochs=1), tmp_path / "run", progress="none")
    return tmp_path / "run"


def test_several_labels_have_a_report(run: Path) -> None:
    html = write_report(run).read_text(encoding="utf-8")
    result = Run(run).read_result()
    assert re.findall("<h2>(.*?)</h2>", html)[1:-1] == [
        "Labels one by one", "Calibration", "Examples", "Labels that go together", "Reconstructions",
        "Where the votes come from", "Parse tree",
    ]  # fmt: skip
    assert f"<dt>mean F1 of the labels</dt><dd>{result['test_f1']:.3f}</dd>" in html
    assert f"<dt>mean AUC</dt><dd>{result['test_auc_macro']:.3f}</dd>" in html
    for name in CLASSES:
        n, recall = result["images_per_class"]["test"][name], 100 * result["test_recall"][name]
        assert f"<td>{name}</td><td>{n}</td><td>{recall:.1f} %</td>" in html
    assert f"over 15 bins, is {100 * result['test_ece']:.1f} %" in html and "The margin loss asks for" in html
    assert "error on " not in html  # as that of a further split


def test_what_was_evaluated_is_what_the_result_says(run: Path) -> None:
    tested, result = evaluate_run(Run(run)), Run(run).read_result()
    assert tested.labels.shape == tested.predicted.shape == tested.wrong.shape == tested.probabilities.shape == (24, 3)
    assert torch.equal(tested.predicted ^ tested.labels, tested.wrong)
    for name, value in tested.scores().items():
        assert result[f"test_{name}"] == value


def test_an_undefined_auc_is_a_dash_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DPI", 30)
    labels = torch.tensor([[True, False, True]])
    monkeypatch.setitem(DATASETS, "toy", lambda root=None, image_size=None: toy(labels))
    cnn = Model("matched_cnn", {"n_parameters": 2000})
    config = replace(TINY, data=Data("toy", shift=1, multi_label=True), model=cnn, loss="cross_entropy")
    train(replace(config, reconstruction=0, epochs=1), tmp_path / "run", progress="none")
    html = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "AUC undefined (no class has images with and without it)" in html and "– is undefined: no test" in html
    assert "<td>right</td><td>0</td><td>–</td>" in html and "The margin loss" not in html
    assert "sigmoid of its logit" in html and "its probability is above 0.5" in html


def test_many_classes_are_folded_but_for_the_worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DPI", 30)
    names = tuple(f"kind {k}" for k in range(25))
    images = Images(torch.randint(0, 256, (50, 1, 16, 16), dtype=torch.uint8), torch.arange(50) % 25)
    data = Dataset("toy", names, images, images, images)
    monkeypatch.setitem(DATASETS, "toy", lambda root=None, image_size=None: data)
    cnn = Model("matched_cnn", {"n_parameters": 3000})
    config = replace(TINY, model=cnn, loss="cross_entropy", reconstruction=0, epochs=1)
    train(config, tmp_path / "run", progress="none")
    html = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "These 10 have the lowest recall." in html and "<summary>All 25</summary>" in html
    assert html.count("<td>2</td>") == 35
