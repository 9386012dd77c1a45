"""Where classes are unequal, an error says so: recall of each, the balanced error, and how they were split."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.test_train import CNN, PAIRS, fit
from torchcaps.cli import main
from torchcaps.data import DATASETS, Dataset, Images
from torchcaps.training import Data
from torchcaps.training.per_class import as_lines, balanced_in_words, class_scores, error_words, split_in_words


def test_recall_and_precision_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 3])
    predicted = torch.tensor([0, 0, 0, 1, 0, 1, 1])
    found = class_scores(labels, predicted, ("a", "b", "c", "d"))
    assert found["recall"] == {"a": 0.75, "b": 0.5, "c": None, "d": 0.0}
    assert found["precision"] == {"a": 0.75, "b": 1 / 3, "c": None, "d": None}
    assert found["error_balanced"] == pytest.approx(1 - 1.25 / 3)


SCORES = {
    "recall": {"cat": 0.95, "emu": None, "owl": 0.4},
    "precision": {"cat": 0.981, "emu": None, "owl": 1.0},
    "auc": {"cat": 0.9876, "emu": None, "owl": 0.75},
    "error_balanced": 0.325,
    "auc_macro": 0.8688,
    "ece": 0.0521,
}


def test_a_table_of_few_classes() -> None:
    assert as_lines(SCORES, {"cat": 1200, "emu": 0, "owl": 5}) == [
        "class  images  recall  precision    AUC",
        "cat     1,200   95.0%      98.1%  0.988",
        "emu         0       –          –      –",
        "owl         5   40.0%     100.0%  0.750",
        "balanced accuracy 67.50%, mean AUC 0.869, calibration error 5.21%",
    ]
    assert as_lines({"recall": {"cat": 1.0}}, {"cat": 3}) == []  # of an older version


def test_a_table_of_many_classes_has_those_that_fare_worst() -> None:
    names = [f"c{k}" for k in range(30)]
    shares: dict[str, float | None] = {name: k / 30 for k, name in enumerate(names)}
    shares["c3"] = None
    scores = {"recall": shares, "precision": shares, "auc": shares, "auc_macro": None}
    lines = as_lines(scores, dict.fromkeys(names, 9))
    assert [line.split()[0] for line in lines[1:11]] == ["c0", "c1", "c2", *(f"c{k}" for k in range(4, 11))]
    assert lines[11:] == [
        "these 10 of 30 classes have the lowest recall",
        "AUC undefined (no class has images with and without it)",
    ]


def test_in_words() -> None:
    scores = {"recall": {"cat": 1.0, "emu": None, "owl": 0.4}, "error_balanced": 0.3}
    wanted = " (balanced over the classes 30.00%; of class owl 2 of 5 recognized; no image of emu)"
    assert balanced_in_words(scores, {"cat": 90, "emu": 0, "owl": 5}) == wanted
    equal = {"recall": {"cat": 1.0, "owl": 0.5}, "error_balanced": 0.25}
    assert balanced_in_words(equal, {"cat": 80, "owl": 40}) == ""  # not more than twice as many
    assert balanced_in_words(equal, {"cat": 81, "owl": 40}) == (
        " (balanced over the classes 25.00%; of class owl 20 of 40 recognized)"
    )
    assert balanced_in_words({}, {"cat": 90, "owl": 5}) == ""
    assert error_words({"test_error": 0.1}, "test") == ""  # of an older version


def result(name: str, classes: int, n: int) -> dict[str, Any]:
    counts = {split: {f"c{k}": n + k for k in range(classes)} for split in ("train", "val", "test")}
    return {"config": {"data": {"name": name}}, "images_per_class": counts}


def test_a_split_in_words() -> None:
    assert split_in_words(result("folder", 2, 7)) == "images of each class to train, to validate and to test: " + (
        "c0 7, 7, 7; c1 8, 8, 8"
    )
    assert split_in_words(result("folder", 11, 7)).endswith(": 7 to 17, 7 to 17, 7 to 17 (11 classes)")
    assert split_in_words(result("mnist", 2, 7)) == "" != split_in_words(result("mnist", 3, 1))
    assert split_in_words({"config": {"data": {"name": "folder"}}}) == ""


@pytest.fixture
def rare(tmp_path: Path) -> Path:
    """60 dark images, and 25 brighter ones."""
    rng = np.random.default_rng(0)
    for name, n, most in (("frequent", 60, 80), ("rare", 25, 255)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(n):
            pixels = rng.integers(0, most, (12, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{k}.png")
    return tmp_path / "photos"


def test_a_folder_with_a_rare_class(rare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line: it is tested, and said."""
    options = ["--epochs=1", "--batch_size=16", "--threads=1", "--device=cpu", f"--out={tmp_path / 'run'}"]
    data = ["--data.name=folder", f"--data.root={rare}", "--data.image_size=[16,16]"]
    model = ["--model.options.n_parameters=3000", "--optim.lr=1e-9", "--optim.floor=0"]  # learns nothing
    assert main(["train", "digits-cnn", *data, *model, *options]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["images_per_class"] == {
        "train": {"frequent": 42, "rare": 18},
        "val": {"frequent": 6, "rare": 2},
        "test": {"frequent": 12, "rare": 5},
    }
    recall = found["test_recall"]
    assert found["test_error_balanced"] == pytest.approx(1 - (recall["frequent"] + recall["rare"]) / 2)
    assert found["test_error"] == pytest.approx(1 - (12 * recall["frequent"] + 5 * recall["rare"]) / 17)
    worst = min(recall, key=lambda name: recall[name])
    n = {"frequent": 12, "rare": 5}[worst]
    balanced = f"balanced over the classes {found['test_error_balanced']:.2%}"
    words = f"error {found['test_error']:.2%} ({balanced}; of class {worst}"
    assert f"test {words} {round(n * recall[worst])} of {n} recognized)" in said
    assert "images of each class to train, to validate and to test: frequent 42, 6, 12; rare 18, 2, 5\n" in said
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert words in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert (
        "balanced test error" in page
        and "<td>rare</td><td>5</td>" in page
        and "The classes have unequal numbers" in page
    )


def test_pairs_and_equal_classes_are_told_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"images_per_class", "test_recall"} & fit(replace(PAIRS, epochs=1), tmp_path / "pairs").keys()

    def equal(root: Path | None = None, image_size: object = None) -> Dataset:
        images = Images(torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8), torch.arange(40) % 4)
        return Dataset("equal", ("a", "b", "c", "d"), images, images, images)

    monkeypatch.setitem(DATASETS, "equal", equal)
    found = fit(replace(CNN, data=Data("equal"), epochs=1), tmp_path / "equal")
    assert found["test_error_balanced"] == pytest.approx(found["test_error"]) and error_words(found, "test") == ""
    trial = fit(replace(CNN, data=Data("equal"), epochs=1, trial=True), tmp_path / "trial")
    assert trial["images_per_class"].keys() == {"train", "val"} and "val_recall" in trial and "test_recall" not in trial


def test_a_folder_of_labelled_images(rare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other images than the run's: error, table, and the confusion matrix as a table or a picture."""
    run = tmp_path / "run"
    data = [f"--data.root={rare}", "--data.name=folder", "--data.image_size=[16,16]", "--threads=1", "--device=cpu"]
    model = ["--model.options.n_parameters=3000", "--batch_size=16", "--epochs=1", f"--out={run}"]
    assert main(["train", "digits-cnn", *data, *model]) == 0
    other = tmp_path / "other"
    other.mkdir()
    (rare / "rare").rename(other / "rare")
    (other / ".cache").mkdir()
    (other / "rare" / "0.png").write_bytes(b"broken")
    capsys.readouterr()
    matrix, picture = tmp_path / "confusion.csv", tmp_path / "confusion.png"
    assert main(["evaluate", str(run), "--folder", str(other), "--confusion", str(matrix)]) == 2
    said = capsys.readouterr()
    assert "1 file could not be read" in said.err and f"wrote {matrix}" in said.out
    head, frequent, line = matrix.read_text().splitlines()
    assert head == "true class,predicted frequent,predicted rare" and frequent == "frequent,0,0"
    name, wrong, right = line.split(",")
    assert name == "rare" and int(wrong) + int(right) == 24
    assert f"{other}: error {int(wrong) / 24:.2%} (balanced over the classes {int(wrong) / 24:.2%}; " in said.out
    assert (
        "no image of frequent), 24 images\n" in said.out and f"rare      {24:>6}  {int(right) / 24:>6.1%}" in said.out
    )
    (other / "rare" / "0.png").unlink()
    assert main(["evaluate", str(run), "--folder", str(other), "--confusion", str(picture)]) == 0
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 100
    for further, message in (
        (["--folder", str(other), "--split", "val"], "--split must be left out with --folder, got val"),
        (["--confusion", str(picture)], f"--confusion must be a new file, got {picture}, which is there"),
        (["--confusion", "a.txt"], "--confusion must be a file .csv or .png, got a.txt"),
        (["--invert"], "--invert must be given with --folder"),
        (["--folder", str(rare / "frequent")], "sub-folders named as classes of the run, frequent, rare; got none"),
        (["--folder", str(tmp_path)], "got other, photos, run"),
        (["--folder", str(picture)], "folder must be a folder with one sub-folder a class"),
    ):  # fmt: skip
        assert main(["evaluate", str(run), *further]) == 2
        assert message in capsys.readouterr().err
