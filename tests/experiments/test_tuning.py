"""Settings are chosen by validation alone, with as many trials for every kind of network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps.cli import main
from torchcaps.data import DATASETS, Dataset, Images
from torchcaps.experiments.experiment import Experiment, Model
from torchcaps.experiments.recipes import RECIPES, recipe
from torchcaps.experiments.run import read_json
from torchcaps.experiments.train import train
from torchcaps.experiments.tuning import trials, tune


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A recipe "tiny" on made-up images; counts how often data were asked for."""
    asked: list[int] = []

    def made_up(root: Path | None = None, **_: object) -> Dataset:
        asked.append(1)
        images = Images(torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8), torch.arange(40) % 10)
        return Dataset("digits", tuple("0123456789"), images, images, images)

    def short() -> Experiment:
        model = Model("capsnet_small", {"channels": 4, "n_types": 2})
        return replace(recipe("digits"), recipe="tiny", epochs=4, batch_size=20, model=model, threads=1, device="cpu")

    monkeypatch.setitem(DATASETS, "digits", made_up)
    monkeypatch.setitem(RECIPES, "tiny", short)
    return asked


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("mnist", "reconstruction", (0.0005, 0.01)),
        ("smallnorb-em-small", "optim.weight_decay", (2e-7, 2e-5)),
        ("mnist-matched-cnn", "model.options.dropout", (0.0, 0.5)),
    ],
)
def test_every_kind_of_network_has_six_trials(name: str, field: str, values: tuple[float, float]) -> None:
    config = recipe(name)
    found = trials(config)
    rates = [config.optim.lr * factor for factor in (1 / 3, 1, 3)]
    assert [settings for settings, _ in found] == [{"optim.lr": lr, field: value} for lr in rates for value in values]
    first, last = found[0][1], found[-1][1]
    assert (first.optim.lr, last.optim.lr) == (rates[0], rates[2])
    content: Any = last.to_dict()
    for part in field.split("."):
        content = content[part]
    assert content == values[1] and replace(last, optim=config.optim, model=config.model) == replace(
        config, reconstruction=last.reconstruction
    )


def test_the_lowest_validation_error_wins_and_no_test_image_is_seen(
    tiny: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter((0.5, 0.3, 0.2, 0.4, 0.2, 0.9))
    seen: list[int] = []

    def scripted(config: Experiment, model: object, batches: Any, **_: object) -> dict[str, float]:
        seen.append(config.epochs)
        return {"error": next(errors), "loss": 1.0}

    monkeypatch.setattr("torchcaps.experiments.train.evaluate", scripted)
    said: list[str] = []
    options: dict[str, Any] = {"runs": tmp_path, "threads": 1, "device": "cpu", "progress": "none", "say": said.append}
    found = tune("tiny", keep_in=tmp_path / "kept", **options)
    assert seen == [2] * 6  # validation of six trials, each of a third of four epochs, and no other split
    assert found["best"] == found["trials"][2]["settings"] == {"optim.lr": 0.002, "reconstruction": 0.0005}
    assert "0.002" in said[-1] and len(said) == 7
    assert found == read_json(tmp_path / "tuning" / "tiny.json") == read_json(tmp_path / "kept" / "tiny.json")
    assert not any(key.startswith("test") for key in read_json(tmp_path / "tuning" / "tiny" / "0" / "result.json"))
    assert tune("tiny", **options) == found and len(tiny) == 6  # nothing is trained again


def test_a_trial_is_no_result(tiny: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "tiny", "--out", str(tmp_path / "a"), "--epochs", "1"]
    assert main([*arguments, "--trial"]) == 0
    said = capsys.readouterr().out
    assert "validation error" in said and "test error" not in said
    assert main([*arguments, "--trial"]) == 0 and "nothing is trained" in capsys.readouterr().out
    with pytest.raises(ValueError, match="out must be the folder of no trial"):
        train(replace(recipe("tiny"), epochs=1), tmp_path / "a")


def test_tuning_by_the_command(tiny: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "tiny", "--runs", str(tmp_path), "--smoke", "--threads", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.count("validation error") == 6
    assert len(json.loads((tmp_path / "tuning" / "tiny-smoke.json").read_text())["trials"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "nonsense"}, "recipe must be one of"),
        ({"name": "mnist-templates"}, "recipe must be one of a classifier, got mnist-templates"),
        ({"epochs": 0}, "epochs must be an integer of at least 1"),
        ({"quick": True, "keep_in": "results"}, "keep_in must be None for a smoke run"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tune(**({"name": "digits", "runs": tmp_path} | arguments))
    assert not any(tmp_path.iterdir())
