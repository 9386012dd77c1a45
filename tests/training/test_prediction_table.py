"""Predictions of many files: folders, tables, and what cannot be read."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.tiny import TINY
from torchcaps.cli import main
from torchcaps.training.checkpoint import load_model
from torchcaps.training.predict import predict
from torchcaps.training.prediction_table import image_files, write_predictions
from torchcaps.training.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    train(replace(TINY, epochs=1), out, progress="none")
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    photos = tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    for k, name in enumerate(("b.png", "a.jpg", "more/c.PNG")):
        pixels = torch.randint(0, 255, (28, 28), generator=torch.Generator().manual_seed(k), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(photos / name)
    (photos / "notes.txt").write_text("no image")
    return photos


def test_folders_are_searched_in_order(folder: Path) -> None:
    assert [Path(file).name for file in image_files([folder, "x.png"])] == ["a.jpg", "b.png", "c.PNG", "x.png"]
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="must hold images .* got a folder without any"):
        image_files([folder / "empty"])


def test_a_row_for_each_image(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, other = folder.parent / "out.csv", folder.parent / "out.json"
    assert main(["predict", str(run), str(folder), "--csv", str(table), "--json", str(other)]) == 0
    assert "scores of classes need not sum to 1" in capsys.readouterr().out
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    classes, files = load_model(run).classes, image_files([folder])
    wanted = predict(run, files, top=len(classes))
    assert [row["image"] for row in rows] == files
    for row, same in zip(rows, json.loads(other.read_text()), strict=True):
        scores = dict(wanted[row["image"]])
        assert row["class"] == same["class"] == wanted[row["image"]][0][0] and row["error"] == same["error"] == ""
        assert {name: float(row[f"score of {name}"]) for name in classes} == scores == same["scores"]


def test_what_cannot_be_read_has_a_row_and_is_said(run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.png").write_text("no image")
    table = folder.parent / "out.csv"
    assert main(["predict", str(run), str(folder), "--csv", str(table)]) == 2
    assert "1 file could not be read" in capsys.readouterr().err
    rows = {Path(row["image"]).name: row for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines())}
    assert "cannot be read" in rows["broken.png"]["error"] and rows["broken.png"]["class"] == ""
    assert rows["a.jpg"]["class"]


def test_nothing_is_overwritten(run: Path, folder: Path) -> None:
    table = folder.parent / "mine.csv"
    table.write_text("mine")
    with pytest.raises(ValueError, match="must be written to a new file, got .*mine.csv, which is there"):
        write_predictions(run, [folder], [table])
    assert table.read_text() == "mine"
    with pytest.raises(ValueError, match=r"must be written to \.csv or \.json, got .*out.txt"):
        write_predictions(run, [folder], [folder.parent / "out.txt"])
