"""Train an experiment in its run folder, resuming what was broken off."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import Logger
from torch import nn

from torchcaps.checks import as_number, check_choice, check_flag, check_path
from torchcaps.data import Dataset
from torchcaps.training import launch
from torchcaps.training.checkpoint import load_model
from torchcaps.training.claim import claim, look
from torchcaps.training.config import PROGRESS, Experiment, Progress
from torchcaps.training.environment import choose_device, flushed, undisturbed
from torchcaps.training.fit import fit
from torchcaps.training.loggers import as_loggers
from torchcaps.training.objective import Loss
from torchcaps.training.processes import World, as_launched, connected, world_here
from torchcaps.training.record import record
from torchcaps.training.run import Run
from torchcaps.training.session import Given, How, prepare


def train(
    config: Experiment,
    out: str | Path | None = None,
    *,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    loss: Loss | None = None,
    progress: Progress = "bar",
    checkpoint_seconds: float = 120.0,
    until: float | None = None,
    more_epochs: bool = False,
    logger: Logger | Sequence[Logger] | str | None = None,
) -> dict[str, Any]:
    """Train, evaluate and record one experiment.

    A run that was broken off resumes from its last checkpoint and ends as it would have ended; one
    that is finished is not touched, and its result returned.

    On an NVIDIA GPU a training step is recorded as a CUDA graph and replayed, which does the same in less time. The
    first replays are checked; a step that cannot be recorded is launched kernel by kernel, and a warning says why.
    The environment variable ``TORCHCAPS_CUDA_GRAPH=0`` asks for that from the start.

    With ``config.devices`` above 1, or under torchrun, several processes train together: each has a part of every
    batch, and gradients, batch normalization and metrics are those of all (``docs/do/several-processes.md``). A program
    that is not started by torchrun then needs ``if __name__ == "__main__":``, as for any process that Python starts.

    Args:
        config: the experiment.
        out: the run's folder; by default ``runs/<recipe>``, with ``-seed<n>`` for seeds other than 0.
        dataset: images of your own, in place of ``config.data``'s; augmentation is still as ``config.data`` says. With
            masks it is segmented.
        model: a network of your own, in place of ``config.model``'s, trained in place. It takes images
            ``[B, C, H, W]`` and returns scores ``[B, J]``, capsules, or a :class:`~torchcaps.models.ModelOutput`; of
            images with masks a :class:`~torchcaps.models.SegmentationOutput`. Hand it over again to resume, and to
            :func:`load_model`.
        loss: of your own, in place of ``config.loss``: a function of the model's output and the
            :class:`~torchcaps.training.examples.Batch`. Hand it over again to resume.
        progress: a "bar", "lines" (one an epoch), or "none".
        checkpoint_seconds: how often a long epoch is saved in its midst.
        until: when to stop, on the clock of ``time.monotonic``; None for never.
        more_epochs: let a finished run that differs in having fewer epochs alone go on to these, from its checkpoint.
            What it was is kept as ``<out>/<n>-epochs``. The learning rate goes on as that of all epochs: unless it is
            "constant" or "exponential" by steps, without warm-up, the outcome is not that of training in one go.
        logger: one or several of Lightning's loggers, which get each epoch's row of ``metrics.csv``; "tensorboard" for
            one that writes into the run's folder, with ``pip install tensorboard``.

    Returns:
        The content of ``result.json``.

    Raises:
        ValueError: data, model or folder do not fit (before any work is done), or the loss became
            NaN (the last good checkpoint is kept).
        OutOfTime: ``until`` was reached; the same call goes on from the checkpoint.
        ChildProcessError, ConnectionError: one of several processes was ended, and so all were; the same call goes on
            from the checkpoint, with as many processes or others.
    """
    if not isinstance(config, Experiment):
        raise ValueError(f"config must be an Experiment, such as that of a recipe, got {config!r}")
    if out is not None:
        check_path("out", out)
    check_choice("progress", progress, PROGRESS)
    checkpoint_seconds = as_number("checkpoint_seconds", checkpoint_seconds, 0)
    until = None if until is None else as_number("until", until)
    check_flag("more_epochs", more_epochs)
    given, world = Given(dataset, model, loss), world_here()
    config, threads = as_launched(given.named_in(config), world), torch.get_num_threads()
    run = Run(default_folder(config) if out is None else out)
    how = How(progress, checkpoint_seconds, until, more_epochs, as_loggers(logger, run.path))
    if world.size < config.devices:
        return _train_together(config, run, given, how, logger)
    try:
        with undisturbed(), flushed(), _heard(world):
            device = choose_device(config.device, config.devices, world.local_rank)
            if world.size > 1 and device.type == "cuda":
                torch.cuda.set_device(device)
            with connected(world, device):
                return _train(config, run, given, how, world)
    finally:
        torch.set_num_threads(threads)


def _train_together(
    config: Experiment, run: Run, given: Given, how: How, logger: Logger | Sequence[Logger] | str | None
) -> dict[str, Any]:
    """Start the processes of this machine, and return what they wrote."""
    _, result = look(config, run, given, how)
    if result is not None:
        return result
    choose_device(config.device, config.devices)  # before they are started
    handed = given._replace(model=deepcopy(given.model))  # what is handed over goes into memory that all share
    launch.start(config.devices, _train_as_one, (config, run.path, handed, how._replace(loggers=()), logger), _OBJECTS)
    result = run.read_result()
    if given.model is not None:
        load_model(run, given.model)
    return result


#: What may be handed over.
_OBJECTS = "dataset, model, loss and logger"


def _train_as_one(
    config: Experiment, out: Path, given: Given, how: How, logger: Logger | Sequence[Logger] | str | None
) -> None:
    """Train as one of several processes that were started for it, which must not step the same memory."""
    given = given._replace(model=deepcopy(given.model))
    train(
        config,
        out,
        **given._asdict(),
        progress=how.progress,
        checkpoint_seconds=how.checkpoint_seconds,
        until=how.until,
        more_epochs=how.more_epochs,
        logger=logger,
    )


@contextmanager
def _heard(world: World) -> Iterator[None]:
    """Let warnings be those of the first process alone."""
    if world.first:
        yield
        return
    log = logging.getLogger("torchcaps")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _train(config: Experiment, run: Run, given: Given, how: How, world: World) -> dict[str, Any]:
    before, result = world.decided(lambda: look(config, run, given, how))
    if result is not None:
        return result
    session = world.in_turn(lambda: prepare(config, given, world))
    with ExitStack() as held:
        result = world.decided(lambda: claim(session, run, before, held))
        if result is not None:
            return result
        return record(session, run, fit(session, run, how), progress=how.progress != "none")


def default_folder(config: Experiment) -> Path:
    """``runs/<recipe>``, with ``-seed<n>`` for seeds other than 0, and ``-trial`` for a trial."""
    seed = f"-seed{config.seed}" if config.seed else ""
    return Path("runs") / f"{config.recipe}{seed}{'-trial' if config.trial else ''}"
