"""Loggers of Lightning that get each epoch's metrics."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger

from tests.tiny import TINY
from torchcaps.cli import main
from torchcaps.training.train import train


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_every_epoch_is_handed_over(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "log", name=None, version="mine")
    result = train(TINY, tmp_path / "run", progress="none", logger=[logger])
    ours, theirs = rows(tmp_path / "run" / "metrics.csv"), rows(tmp_path / "log" / "mine" / "metrics.csv")
    assert len(theirs) == TINY.epochs
    for one, other in zip(ours, theirs, strict=True):
        assert {name: float(value) for name, value in one.items()} == {name: float(other[name]) for name in one}
    # What is logged changes nothing of the outcome.
    same = train(TINY, tmp_path / "without", progress="none")
    assert same["test_loss"] == result["test_loss"]


@pytest.mark.parametrize("logger", ["wandb", 3, [1], []])
def test_what_is_no_logger(logger: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="logger must be a Lightning logger, several, or 'tensorboard'; got"):
        train(TINY, tmp_path / "run", progress="none", logger=logger)
    assert not (tmp_path / "run").exists()


def test_tensorboard_that_is_not_installed_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("tensorboard")

    monkeypatch.setattr(sys.modules["torchcaps.training.loggers"], "TensorBoardLogger", missing)
    assert main(["train", "digits", "--smoke", "--log", "tensorboard", "--out", str(tmp_path / "run")]) == 2
    assert "logger tensorboard is not there: pip install tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
