"""What a run says while it trains: what it is, where it resumes, and how long it will take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tiny import TINY
from torchcaps.progress import in_minutes, with_time_left
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.train import train


def test_a_run_says_what_it_is_and_where_it_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))  # a second passes whenever anybody looks
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: float(next(clock)))
        with pytest.raises(OutOfTime):
            train(TINY, tmp_path, progress="lines", until=8.0)
    first = capsys.readouterr().out
    assert re.match(r"capsnet_small with [\d,]+ parameters, 64 training images of digits, 3 epochs on .+; ", first)
    assert "resuming" not in first
    train(TINY, tmp_path, progress="lines")
    second = capsys.readouterr().out
    assert re.search(r"resuming after step \d+ of 12, in epoch \d", second)
    assert re.search(r"epoch 3/3: train loss .*, \d+ s$", second, re.MULTILINE)


def test_the_bar_counts_epochs_from_one_and_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(TINY, tmp_path, progress="bar")
    shown = "".join(capsys.readouterr())
    assert "epoch 3/3" in shown and "epoch 0" not in shown.lower() and re.search(r"left=\d+ s", shown)


def test_durations_are_written_as_one_reads_them() -> None:
    assert [in_minutes(x) for x in (4.4, 59, 61, 3599, 3600, 7500)] == [
        "4 s", "59 s", "1 min", "1 h 00 min", "1 h 00 min", "2 h 05 min",
    ]  # fmt: skip


def test_a_log_is_told_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(with_time_left(range(3), "measure", seconds=0)) == [0, 1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" done, ")[0] for line in lines] == ["measure: 1 of 3", "measure: 2 of 3"]
    assert all(line.endswith(" s left") for line in lines)
    assert list(with_time_left(iter("ab"), "measure", seconds=0)) == ["a", "b"]
    assert capsys.readouterr().err.startswith("measure: 1 done after 0 s\n")
    assert list(with_time_left(range(1000), "measure")) == list(range(1000)) and not capsys.readouterr().err
