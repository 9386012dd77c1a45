"""A finished run that takes a second, as files that every case may have a copy of."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from torchcaps.training import Data, Experiment, Model
from torchcaps.training.recipes import recipe
from torchcaps.training.run import Run


def tiny() -> Experiment:
    """Return an experiment of two steps."""
    return replace(
        recipe("digits"),
        data=Data("digits", n_train=16, n_eval=8),
        model=Model("capsnet_small", {"channels": 4, "n_types": 2, "decoder": None}),
        epochs=1,
        batch_size=8,
        threads=1,
        device="cpu",
    )


@cache
def run_files() -> dict[str, bytes]:
    """Train once, and return the files of the run by their names."""
    from torchcaps.training.train import train

    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        train(tiny(), run.path, progress="none")
        shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
        return {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}


def write_run(folder: Path) -> Path:
    """Write a copy of the run into a folder."""
    folder.mkdir(exist_ok=True)
    for name, content in run_files().items():
        (folder / name).write_bytes(content)
    return folder
