"""Runs of networks that are not trained, and small pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.tests.measures.measured import DIGITS
from tests.report.test_report import CAPSULES, CNN, finished
from torchcaps.training import Data, files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs "caps", "cnn" and "pairs" on the bundled digits, not trained."""
    folder = tmp_path_factory.mktemp("measures")
    finished(folder / "caps", DIGITS, CAPSULES)
    finished(folder / "cnn", DIGITS, CNN, loss="cross_entropy")
    finished(folder / "pairs", Data("digits", image_size=(16, 16), pairs=True, n_pairs=(4, 12)), CAPSULES)
    return folder


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DPI", 30)
