"""The weights of the epoch that validates best are kept, whatever comes after it and whoever kills the run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_train import KILLED, TINY, fit, metrics, weights
from torchcaps.cli import main
from torchcaps.cli.train_command import parse_experiment
from torchcaps.data import DATASETS, load
from torchcaps.training.config import Experiment
from torchcaps.training.module import TrainingModule
from torchcaps.training.recipes import recipe
from torchcaps.training.run import Run

BEST = replace(TINY, epochs=4, keep_best=True)


def checkpoint(run: Path) -> dict[str, torch.Tensor]:
    states = torch.load(Run(run).checkpoint, weights_only=True)["state_dict"]
    return {name.removeprefix("model."): value for name, value in states.items()}


def validating(monkeypatch: pytest.MonkeyPatch, values: list[tuple[float, float]]) -> None:
    """Validation errors and losses of the epochs, whatever is learned."""

    def step(self: TrainingModule, batch: object, k: int) -> None:
        error, loss = values[self.current_epoch]
        self._sums, self._n = Counter(error=error, loss=loss), 1

    monkeypatch.setattr(TrainingModule, "validation_step", step)


@pytest.mark.parametrize(
    ("values", "epoch"),
    [
        ([(0.5, 1.0), (0.2, 2.0), (0.3, 0.5), (0.4, 0.1)], 2),
        ([(0.5, 1.0), (0.2, 2.0), (0.2, 1.5), (0.2, 1.5)], 3),  # equal errors by their loss, then the earliest
        ([(0.5, 1.0), (0.4, 1.0), (0.3, 1.0), (0.2, 1.0)], 4),
    ],
)
def test_the_best_epoch_is_kept_and_the_last_one_is_in_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[tuple[float, float]], epoch: int
) -> None:
    validating(monkeypatch, values)
    result = fit(BEST, tmp_path / "a")
    assert (result["kept_epoch"], result["epochs"], result["steps"]) == (epoch, 4, 16)
    plain = fit(replace(BEST, keep_best=False), tmp_path / "plain")
    assert plain["kept_epoch"] == 4
    for name, value in weights(tmp_path / "plain").items():  # training itself is the same
        assert torch.equal(checkpoint(tmp_path / "a")[name], value), name
    # What the run had when it stood at that epoch.
    monkeypatch.undo()
    stopped = replace(BEST, keep_best=False, stop_at=0.25)
    validating(monkeypatch, [(0.2 if k + 1 == epoch else 1.0, 1.0) for k in range(4)])
    fit(stopped, tmp_path / "then")
    same = [torch.equal(value, weights(tmp_path / "then")[name]) for name, value in weights(tmp_path / "a").items()]
    assert all(same)
    last = [torch.equal(value, checkpoint(tmp_path / "a")[name]) for name, value in weights(tmp_path / "a").items()]
    assert all(last) is (epoch == 4)


def test_its_errors_are_of_the_weights_that_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fit(BEST, tmp_path / "a")
    errors = [float(row["val_error"]) for row in metrics(tmp_path / "a")]
    assert result["val_error"] == pytest.approx(min(errors), abs=1e-6)
    assert main(["evaluate", str(tmp_path / "a"), "--split", "val"]) == 0
    assert f"val error {result['val_error']:.2%}" in capsys.readouterr().out


def test_killed_after_the_best_epoch_it_is_kept_all_the_same(tmp_path: Path) -> None:
    """Killed in the last epoch, when an earlier one was the best: by its real validation, with a rate that wrecks."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    arguments = [
        sys.executable,
        "-c",
        KILLED.replace("test_train", "test_keep_best"),
        str(killed),
        "14",
        "WRECKED",
        "0",
    ]
    done = subprocess.run(arguments, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    result, wanted = fit(WRECKED, killed), fit(WRECKED, whole)
    assert result["kept_epoch"] == wanted["kept_epoch"] < 4
    assert result["test_loss"] == wanted["test_loss"]
    for name, value in weights(whole).items():
        assert torch.equal(weights(killed)[name], value), name
        assert torch.equal(checkpoint(killed)[name], checkpoint(whole)[name]), name


#: Learns, then is thrown off by the rise of its rate.
WRECKED = replace(BEST, optim=replace(BEST.optim, lr=0.3, warmup=0.9))


def test_an_autoencoders_best_epoch_is_that_of_the_least_loss(tmp_path: Path) -> None:
    config = replace(
        recipe("digits-plain-autoencoder"), epochs=2, batch_size=16, threads=1, device="cpu", keep_best=True
    )
    config = replace(config, data=replace(config.data, n_train=32, n_eval=32))
    result = fit(config, tmp_path / "a")
    losses = [float(row["val_loss"]) for row in metrics(tmp_path / "a")]
    assert losses[result["kept_epoch"] - 1] == min(losses)


def test_nothing_is_chosen_by_images_that_were_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = replace(load("digits"), held_out=False)
    monkeypatch.setitem(DATASETS, "digits", lambda root, image_size: data)
    with pytest.raises(ValueError, match="data must hold validation images out where settings or weights are chosen"):
        fit(BEST, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--keep-best"], True),
        (["--keep_best"], True),
        (["--keep-best", "--epochs", "3"], True),
        (["--keep-best", "true"], True),
        (["--keep-best=false"], False),
        (["--keep_best", "false"], False),
        ([], False),
    ],
)
def test_the_option(given: list[str], wanted: bool) -> None:
    config, _ = parse_experiment("digits", recipe("digits"), given)
    assert config.keep_best is wanted


def test_what_is_no_flag(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_best must be True or False, got 'yes'"):
        Experiment(keep_best="yes")  # type: ignore[arg-type]
    content: dict[str, Any] = TINY.to_dict()
    del content["keep_best"]  # of an older version
    Run(tmp_path).config.write_text(json.dumps(content))
    assert Run(tmp_path).experiment().keep_best is False


def test_the_command_says_which_epoch_it_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data.n_train=64", "--data.n_eval=20", "--epochs=2", "--batch_size=32", "--threads=1", "--device=cpu"]
    assert main(["train", "digits-cnn", *options, "--keep-best", f"--out={tmp_path / 'a'}"]) == 0
    kept = json.loads((tmp_path / "a" / "result.json").read_text())["kept_epoch"]
    assert f"2 epochs, kept epoch {kept}, the best on validation, in " in capsys.readouterr().out
