"""Data sets of one's own, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps.data import DATASETS, NO_FILES, SAME_EVERYWHERE, Dataset, Images, load, register


def reader(root: Path | None, image_size: tuple[int, int] | None, n: int = 4) -> Dataset:
    images = Images(torch.zeros(n, 1, 2, 2, dtype=torch.uint8), torch.arange(n) % 2)
    return Dataset("mine", ("a", "b"), images, images, images)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Any:
    for names in (NO_FILES, SAME_EVERYWHERE):
        before = set(names)
        monkeypatch.setattr("torchcaps.data." + ("NO_FILES" if names is NO_FILES else "SAME_EVERYWHERE"), before)
    yield
    DATASETS.pop("mine", None)


def test_it_is_loaded_by_its_name_with_its_options() -> None:
    register("mine", reader)
    assert len(load("mine", n=6).train) == 6
    register("mine", reader)  # once more, as where a notebook's cell runs again
    with pytest.raises(ValueError, match=r"data.options of mine must be among n; got m"):
        load("mine", m=1)


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ValueError, match="name must be new, got 'mnist', which is"):
        register("mnist", reader)
    assert DATASETS["mnist"] is not reader


def test_data_without_files_take_no_root() -> None:
    register("mine", reader, files=False)
    with pytest.raises(ValueError, match=r"data.root must be left alone for mine, which has no files; got x"):
        load("mine", "x")
