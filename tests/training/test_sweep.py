"""A sweep over any fields: every combination, several seeds, validation alone, and resumed where it stopped."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_tuning import tiny  # noqa: F401  (a fixture)
from torchcaps.cli import main
from torchcaps.explain import draw_sweep
from torchcaps.training import sweep as module
from torchcaps.training.config import Experiment
from torchcaps.training.files import read_json
from torchcaps.training.module import NonFiniteLoss
from torchcaps.training.recipes import recipe
from torchcaps.training.sweep import Combination, best, read_grid, sweep


@pytest.fixture
def scripted(tiny: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:  # noqa: F811
    """Training that takes no time: its error is the learning rate times the epochs, and a hundredth for each seed."""
    trained = list[Experiment]()

    def scripted(config: Experiment, out: Path, **_: object) -> dict[str, Any]:
        trained.append(config)
        if config.optim.lr > 0.05:
            raise NonFiniteLoss("loss is nan in step 3")
        return {"val_error": config.optim.lr * config.epochs + config.seed / 100}

    monkeypatch.setattr(module, "train", scripted)
    return trained


def test_every_combination_has_mean_and_spread(scripted: list[Experiment], tmp_path: Path) -> None:
    said = list[str]()
    grid = {"optim.lr": [0.01, 0.1, 0.02], "epochs": [5, 2]}
    folder, found = sweep(recipe("tiny"), grid, seeds=2, runs=tmp_path, progress="none", say=said.append)
    assert len(scripted) == 12 and all(config.trial for config in scripted)
    assert [(config.optim.lr, config.epochs, config.seed) for config in scripted[:3]] == [
        (0.01, 5, 0), (0.01, 5, 1), (0.01, 2, 0),
    ]  # fmt: skip
    assert best(found).settings == {"optim.lr": 0.01, "epochs": 2}
    assert said[0] == "tiny: optim.lr 0.01, epochs 5: validation error, %: 5.50 ± 0.71"
    lines = (folder / "table.md").read_text().splitlines()
    assert lines[2] == "| optim.lr | epochs | validation error, % |"
    assert lines[4:8] == [
        "| 0.01 | 5 | 5.50 ± 0.71 |",
        "| 0.01 | 2 | **2.50 ± 0.71** |",
        "| 0.1 | 5 | 2 of 2 diverged |",
        "| 0.1 | 2 | 2 of 2 diverged |",
    ]
    rows = read_json(folder / "table.json")["rows"]
    assert rows[1] == {"settings": {"optim.lr": 0.01, "epochs": 2}, "val_error": [0.02, 0.03]}
    assert folder == tmp_path / "tuning" / "tiny-grid"


def test_bad_grids_are_refused_before_any_work(scripted: list[Experiment], tmp_path: Path) -> None:
    for grid, message in (
        ({}, "grid must have a field at least"),
        ({"optim.rl": [1]}, "grid must be of fields of an experiment, such as optim.lr or epochs; got optim.rl"),
        ({"seed": [1]}, "got seed"),
        ({"epochs": []}, "grid must have different values of epochs, at least one; got none"),
        ({"epochs": [2, 2]}, "got 2, 2"),
        ({"epochs": [1, 0]}, "epochs must be an integer of at least 1, got 0"),
        ({"model.options.n_itres": [1]}, "options of capsnet_small must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            sweep(recipe("tiny"), grid, runs=tmp_path, say=lambda _: None)
    with pytest.raises(ValueError, match="seeds must be an integer of at least 1"):
        sweep(recipe("tiny"), {"epochs": [1]}, seeds=0, runs=tmp_path)
    with pytest.raises(ValueError, match="recipe must be one of a classifier"):
        sweep(recipe("digits-translation"), {"epochs": [1]}, runs=tmp_path)
    assert not scripted and not list(tmp_path.iterdir())


def test_grids_as_they_are_typed() -> None:
    assert read_grid(["a.b=1e-3,2", "c=[2,3],[4,5]", "d=true,null", "e=adam,muon", "f=x"]) == {
        "a.b": [0.001, 2], "c": [[2, 3], [4, 5]], "d": [True, None], "e": ["adam", "muon"], "f": ["x"],
    }  # fmt: skip
    for wrong in (["optim.lr"], ["=1"], ["epochs="], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="grid must be FIELD=VALUE,VALUE of different fields"):
            read_grid(wrong)


def test_nothing_that_trains_is_no_best() -> None:
    with pytest.raises(ValueError, match="every one diverged"):
        best([Combination({"epochs": 1}, (0.1, None))])


def test_from_the_command_line_and_again(
    tiny: list[int],  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["tune", "tiny", "--runs", str(tmp_path), "--threads", "1", "--device", "cpu", "--epochs", "1"]
    grid = ["--grid", "optim.lr=1e-3,3e-3", "--grid", "model.options.n_types=2"]
    assert main([*arguments, *grid, "--seeds", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    folder = tmp_path / "tuning" / "tiny-grid"
    assert f"wrote {folder / 'table.md'}, .json and .png" in said and (folder / "table.png").stat().st_size > 1000
    command = shlex.split(said[-1].removeprefix("next: "))
    assert command[:3] == ["torchcaps", "train", "tiny"] and "--epochs 1 --optim.lr 0.00" in said[-1]
    results = sorted(folder.glob("*/result.json"))
    assert [path.parent.name for path in results] == [
        f"optim.lr={lr},model.options.n_types=2-seed{seed}" for lr in ("0.001", "0.003") for seed in (0, 1)
    ]
    assert not any(key.startswith("test") for key in read_json(results[0]))
    before = {path: path.stat().st_mtime_ns for path in results}
    wider = ["--grid", "optim.lr=1e-3,3e-3,1e-2", "--grid", "model.options.n_types=2"]
    assert main([*arguments, *wider, "--seeds", "2"]) == 0  # what is finished stays
    assert {path: path.stat().st_mtime_ns for path in results} == before
    assert len(list(folder.glob("*/result.json"))) == 6
    for further, message in (
        (["--grid", "optim.lr=1", "--keep", str(tmp_path)], "--keep must be left out with --grid"),
        (["--seeds", "2"], "--seeds must be left out without --grid, got 2"),
    ):
        assert main([*arguments, *further]) == 2
        assert message in capsys.readouterr().err


def test_the_picture_has_the_best_on_top() -> None:
    axes = draw_sweep({"a": [0.5, 0.7], "b": [0.1], "c": [0.2]}).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "c", "b"]
    assert [float(x) for x in axes.lines[0].get_xdata()] == [50.0, 70.0]
    with pytest.raises(ValueError, match="errors must have at least one each"):
        draw_sweep({"a": []})


def test_a_bad_network_is_found_before_any_training_whatever_the_data(tmp_path: Path) -> None:
    grid = {"data.shift": [1, 2], "model.options.channels": [8, -3]}
    with pytest.raises(ValueError, match="channels must be an integer of at least 1, got -3"):
        sweep(recipe("digits"), grid, runs=tmp_path, quick=True, device="cpu")
    assert not any(tmp_path.rglob("*.*"))
