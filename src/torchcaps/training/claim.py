"""The folder of a run: what lies in it already, and that no other process trains in it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from torchcaps.data import SAME_EVERYWHERE, Dataset, load
from torchcaps.training import own_code
from torchcaps.training.build import refuse_what_does_nothing, warn_of_size
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.checkpoint import load_model
from torchcaps.training.config import Experiment
from torchcaps.training.environment import splits_in_words
from torchcaps.training.files import require_place
from torchcaps.training.more_epochs import epochs_before, put_aside, require_same_data
from torchcaps.training.resume import resumable
from torchcaps.training.run import Run
from torchcaps.training.session import Given, How, Session


def look(config: Experiment, run: Run, given: Given, how: How) -> tuple[int | None, dict[str, Any] | None]:
    """Look into the folder before any work: return the epochs that a finished run had, or its result if it is this."""
    before = epochs_before(run, config) if how.more_epochs else None
    if before is None:
        run.check(config)
        if run.result.is_file():
            _require_same_data(config, run, given.dataset)
            return None, run.read_result()
    require_place("out", run.path)
    if how.until is not None and time.monotonic() >= how.until:
        raise OutOfTime
    return before, None


def claim(session: Session, run: Run, before: int | None, held: ExitStack) -> dict[str, Any] | None:
    """Take the folder until ``held`` is left; return the result, if another process has written it meanwhile."""
    if not run.started():
        refuse_what_does_nothing(session.config, session.model)
        warn_of_size(session.config, session.dataset, session.model)
    held.enter_context(run.locked())
    # Unless another process did so while this one loaded.
    if before is not None and epochs_before(run, session.config) == before:
        require_same_data(run, session.dataset)
        resumable(run, session.model)
        put_aside(run, session.config)
    run.check(session.config)
    if run.result.is_file():  # by another process, while this one loaded
        return run.read_result()
    run.open(session.config)
    own_code.keep_in(run.path)
    return None


def _require_same_data(config: Experiment, run: Run, given: Dataset | None) -> None:
    """Do not return the result of one folder's data for another's, where it matters which it is and one is named."""
    if given is not None:
        content = torch.load(run.model, weights_only=True, map_location="cpu")
        if (given.note, tuple(given.classes), splits_in_words(given)) != (
            content["data"],
            tuple(content["classes"]),
            content["splits"],
        ):
            raise ValueError(f"{run.path} holds the run of other images: name another folder by out")
        return
    there = run.experiment().data.root
    if config.data.name in SAME_EVERYWHERE or config.data.root is None:
        return
    here = Path(config.data.root).expanduser().resolve()
    if there is not None and here == Path(there).expanduser().resolve():
        return
    trained = load_model(run)  # perhaps it was moved
    dataset = load(config.data.name, here, config.data.image_size, **config.data.options)
    now = dataset.note, dataset.classes, splits_in_words(dataset)
    if now != (trained.data, trained.classes, trained.splits or now[2]):  # older models lack them
        raise ValueError(f"{run.path} holds the run of other images, {there}: name another folder by out, got {here}")
