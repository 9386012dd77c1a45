"""Training that ends when validation is good enough."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.test_train import TINY
from torchcaps.data import DATASETS, load
from torchcaps.training.callbacks import Checkpoints, Metrics, Stop
from torchcaps.training.config import Experiment
from torchcaps.training.module import TrainingModule
from torchcaps.training.run import Run
from torchcaps.training.train import train

#: Validation errors of the epochs, as fractions that float32 does not have.
ERRORS = (0.6, 0.4, 0.3, 0.2)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation errors that come as :data:`ERRORS` says, whatever is learned."""

    def step(self: TrainingModule, batch: object, k: int) -> None:
        self._sums, self._n = Counter(loss=1.0, error=ERRORS[self.current_epoch]), 1

    monkeypatch.setattr(TrainingModule, "validation_step", step)


class Killed(Exception):
    """As good as a kill: nothing behind it is done."""


CONFIG = replace(TINY, epochs=4, stop_at=0.3)


def epochs(run: Path) -> list[str]:
    return [row["epoch"] for row in csv.DictReader((run / "metrics.csv").read_text().splitlines())]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(("stop_at", "wanted"), [(0.3, 3), (0.29, 4), (0.6, 1), (0.0, 4), (None, 4)])
def test_training_ends_with_the_epoch_that_is_good_enough(tmp_path: Path, stop_at: float | None, wanted: int) -> None:
    result = train(replace(CONFIG, stop_at=stop_at), tmp_path / "a", progress="none")
    assert result["epochs"] == wanted and result["steps"] == 4 * wanted
    assert epochs(tmp_path / "a") == [str(k + 1) for k in range(wanted)]
    assert result["config"]["stop_at"] == stop_at and result["config"]["epochs"] == 4


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("epoch", [1, 2])
def test_killed_and_resumed_it_ends_where_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Killed right behind the checkpoint of an epoch: of one that goes on, and of the one that is good enough."""
    whole = train(CONFIG, tmp_path / "whole", progress="none")
    save, run = Checkpoints.save, Run(tmp_path / "a")

    def save_and_die(self: Checkpoints, trainer: Any) -> None:
        save(self, trainer)
        if trainer.current_epoch == epoch:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_die)
        with pytest.raises(Killed):
            train(CONFIG, run.path, progress="none")
    assert not run.result.exists() and len(epochs(run.path)) == epoch + 1
    result = train(CONFIG, run.path, progress="none")
    assert (result["epochs"], result["steps"]) == (whole["epochs"], whole["steps"]) == (3, 12)
    assert result["val_loss"] == whole["val_loss"] and result["test_loss"] == whole["test_loss"]


def test_an_error_is_compared_as_a_count_of_images() -> None:
    """39 of 5,000 in float32 is a little more than 0.0078, and 40 of 5,000 is a mistake more."""
    metrics = object.__new__(Metrics)
    for n, stops in ((38, True), (39, True), (40, False)):
        metrics.rows = [{"val_error": float(np.float32(n / 5000))}]
        trainer = type("Trainer", (), {"should_stop": False})()
        Stop(metrics, 0.0078)._ask(trainer)
        assert trainer.should_stop is stops


def test_it_does_not_end_by_images_that_were_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = replace(load("digits"), held_out=False)
    monkeypatch.setitem(DATASETS, "digits", lambda root, image_size: data)
    with pytest.raises(ValueError, match=r"data must hold validation images out"):
        train(CONFIG, tmp_path / "a", progress="none")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_out_of_range(value: float) -> None:
    with pytest.raises(ValueError, match=r"stop_at must be 0 … 1 and finite, got"):
        Experiment(stop_at=value)


def test_old_configurations_have_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    content = TINY.to_dict()
    del content["stop_at"], content["data"]["n_shown"], content["data"]["flip"]
    run.config.write_text(json.dumps(content))
    assert run.experiment() == replace(TINY, model=run.experiment().model)
