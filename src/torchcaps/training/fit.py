"""Train in a run's folder, by Lightning, to the end."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from torchcaps.models.baselines import count_parameters
from torchcaps.training.batch_norm import over_processes
from torchcaps.training.build import compile_capsules
from torchcaps.training.callbacks import (
    Bar,
    Best,
    Checkpoints,
    FirstLine,
    Lines,
    Metrics,
    Rate,
    Stop,
    Straight,
    ToLoggers,
)
from torchcaps.training.checkpoint import save_model
from torchcaps.training.config import Progress
from torchcaps.training.module import TrainingModule
from torchcaps.training.processes import World
from torchcaps.training.resume import require_seen, resumable
from torchcaps.training.run import Run
from torchcaps.training.session import How, Session
from torchcaps.training.stuck import Stuck

#: What warnings say that is of no use here.
_UNASKED = (
    "does not have many workers",
    "isinstance.treespec, LeafSpec",
    "in eval mode at the start",
    "sync_dist=True",
    "find_unused_parameters=True was specified",
    "Grad strides do not match bucket view strides",
)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what Lightning and torch say of matters that are settled here.

    These are Lightning's advertisements, its advice on loader workers (batches are made on the device), on parts in
    evaluation mode (as a frozen backbone is) and on sums over processes (which are taken), and its own use of what
    torch is about to drop; and torch's advice on parameters that are all used, and on layouts that cost no time.
    """
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for message in _UNASKED:
                warnings.filterwarnings("ignore", message=f"(?s).*{message}.*")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


class Fitted(NamedTuple):
    """Hold what training came to."""

    metrics: Metrics
    best: Best | None
    steps: int


def fit(session: Session, run: Run, how: How) -> Fitted:
    """Train in the run's folder, from its checkpoint if there is one, and write ``metrics.csv`` and ``model.pt``."""
    config, dataset, model, world = session.config, session.dataset, session.model, session.world
    if config.compile:
        compile_capsules(model)
    metrics = Metrics(run, dataset, session.place())
    task = TrainingModule(config, model, session.batches["train"], session.batches["val"], session.given.loss)
    first = FirstLine(_in_words(session), run)
    shown = {"bar": [first, Bar()], "lines": [first, Lines(metrics)]}.get(how.progress if world.first else "none", [])
    stop = [] if config.stop_at is None else [Stop(metrics, config.stop_at)]
    best = [Best(metrics)] if config.keep_best else []
    rate = [Rate()] if metrics.befores else []
    saved = Checkpoints(run, how.checkpoint_seconds, how.until)
    loggers = [ToLoggers(metrics, how.loggers)] if how.loggers and world.first else []
    callbacks = [metrics, *rate, *best, *stop, *shown, *loggers, Stuck(dataset.classes), saved]
    with over_processes(model, world):
        steps = _fit(run, task, session.device, how.progress, callbacks)
    for kept in best:  # the last ones stay in the checkpoint
        model.load_state_dict(kept.weights)
    if world.first:
        metrics.write()
        save_model(run, model, config, dataset)
    return Fitted(metrics, best[0] if best else None, steps)


def _in_words(session: Session) -> str:
    """Say what is trained on what and where, in one line."""
    n, config = len(session.batches["train"].source), session.config
    return (
        f"{config.model.name} with {count_parameters(session.model):,} parameters, {n:,} training images of "
        f"{config.data.name}, {config.epochs} epochs on {session.place()}"
    )


def _fit(run: Run, task: TrainingModule, device: torch.device, progress: Progress, callbacks: list[L.Callback]) -> int:
    """Train to the end, from the last checkpoint if there is one; returns the steps taken in all."""
    world = task.world
    resume = world.decided(lambda: resumable(run, task.model))
    if resume is not None:
        world.in_turn(lambda: require_seen(Path(resume)))
    with _quiet():
        trainer = L.Trainer(
            accelerator={"cuda": "gpu"}.get(device.type, device.type),
            devices=_devices(device, world),
            num_nodes=task.config.nodes if world.size > 1 else 1,
            strategy=DDPStrategy(find_unused_parameters=True) if world.size > 1 else "auto",
            use_distributed_sampler=False,  # batches are shared out as they are made
            max_epochs=task.config.epochs,
            precision={"32": "32-true", "bf16": "bf16-mixed"}[task.config.precision],  # type: ignore[arg-type]
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress == "bar" and world.first,
            # Not a cluster's: there Lightning has the job queued again, and keeps a checkpoint of its own.
            plugins=[LightningEnvironment() if world.size == 1 else TorchElasticEnvironment(), Straight()],
            num_sanity_val_steps=0,
            default_root_dir=run.path,
        )
        try:
            trainer.fit(task, ckpt_path=resume)
        except SystemExit:
            if trainer.interrupted:  # Lightning's answer to Ctrl-C, which leaves the caller no say
                raise KeyboardInterrupt from None
            raise
    return trainer.global_step


def _devices(device: torch.device, world: World) -> list[int] | int:
    """Return which devices Lightning takes, of all the processes of this machine."""
    if world.size > 1:
        return world.local_size
    return [torch.cuda.current_device()] if device.type == "cuda" else 1
