"""Train an experiment in its run folder, resuming what was broken off."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import nn

from torchcaps.data import Dataset, load
from torchcaps.experiments.batches import image_shape, split
from torchcaps.experiments.callbacks import Checkpoints, Lines, Metrics
from torchcaps.experiments.evaluate import evaluate
from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.provenance import commit, device_in_words, versions
from torchcaps.experiments.run import Run
from torchcaps.experiments.saved import save_model
from torchcaps.experiments.task import Task
from torchcaps.layers.routed_layer import RoutedLayer
from torchcaps.models import build
from torchcaps.models.baseline_cnn import count_parameters

Progress = Literal["bar", "lines", "none"]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's advertisements, its advice on loader workers (batches are made on the device) and
    its own use of what torch is about to drop.
    """
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        for message in (".*does not have many workers.*", ".*isinstance.treespec, LeafSpec.*"):
            warnings.filterwarnings("ignore", message=message)
        yield


def train(
    config: Experiment, out: str | Path | None = None, *, progress: Progress = "bar", checkpoint_seconds: float = 120.0
) -> dict[str, Any]:
    """Train, evaluate and record one experiment.

    A run that was broken off resumes from its last checkpoint and ends as it would have ended; one
    that is finished is not touched, and its result returned.

    Args:
        config: the experiment.
        out: the run's folder; by default :func:`default_folder`.
        progress: a "bar", "lines" (one an epoch), or "none".
        checkpoint_seconds: how often a long epoch is saved in its midst.

    Returns:
        The content of ``result.json``.

    Raises:
        ValueError: data, model or folder do not fit (before any work is done), or the loss became
            NaN (the last good checkpoint is kept).
    """
    run = Run(out or default_folder(config))
    run.check(config)
    if run.result.is_file():
        return run.read(run.result)
    origin = {"versions": versions(), "commit": commit()}  # of what runs, not of what the checkout holds later
    device = choose_device(config.device)
    if config.threads:
        torch.set_num_threads(config.threads)
    L.seed_everything(config.seed, verbose=False)
    if config.compile:
        require_compiler()
    dataset = load(config.data.name, config.data.root, config.data.image_size)
    batches = {name: split(config, dataset, name, device) for name in ("train", "val", "test")}
    model = make_model(config, dataset)
    run.open(config)
    if config.compile:
        compile_capsules(model)
    steps, seconds = _fit(
        run, Task(config, model, batches["train"], batches["val"]), device, progress, checkpoint_seconds
    )
    save_model(run, model, config, dataset)
    val, test = (
        evaluate(config, model.to(device), batches[name], progress=progress == "bar") for name in ("val", "test")
    )
    result = {
        "recipe": config.recipe,
        "seed": config.seed,
        "val_error": val["error"],
        "test_error": test["error"],
        "val_loss": val["loss"],
        "test_loss": test["loss"],
        "epochs": config.epochs,
        "steps": steps,
        "seconds": round(seconds, 1),
        "n_parameters": count_parameters(model),
        "device": device_in_words(device),
        **origin,
        "config": config.to_dict(),
    }
    run.write(run.result, result)
    return result


def _fit(
    run: Run, task: Task, device: torch.device, progress: Progress, checkpoint_seconds: float
) -> tuple[int, float]:
    """Train to the end, from the last checkpoint if there is one; steps and seconds that it took in all."""
    metrics = Metrics(run)
    callbacks = [metrics, *([Lines(metrics)] if progress == "lines" else []), Checkpoints(run, checkpoint_seconds)]
    resume = _whole(run.checkpoint) if run.checkpoint.is_file() else None
    with _quiet():
        trainer = L.Trainer(
            accelerator={"cuda": "gpu"}.get(device.type, device.type),
            devices=1,
            max_epochs=task.config.epochs,
            precision={"32": "32-true", "bf16": "bf16-mixed"}[task.config.precision],  # type: ignore[arg-type]
            gradient_clip_val=task.config.optim.clip or None,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress == "bar",
            num_sanity_val_steps=0,
            default_root_dir=run.path,
        )
        try:
            trainer.fit(task, ckpt_path=resume)
        except SystemExit:  # Lightning's answer to Ctrl-C, which leaves the caller no say
            raise KeyboardInterrupt from None
    return trainer.global_step, metrics.elapsed()


def _whole(checkpoint: Path) -> str:
    """The path, once the file is known to be readable.

    Raises:
        ValueError: it is not; training from scratch instead would lose what it held.
    """
    try:
        torch.load(checkpoint, weights_only=True, map_location="meta")
    except Exception as error:  # torch raises whatever the broken bytes lead it to
        raise ValueError(f"{checkpoint} is not a whole checkpoint: {error}. Remove it to start again.") from error
    return str(checkpoint)


def default_folder(config: Experiment) -> Path:
    """``runs/<recipe>``, and ``runs/<recipe>-seed<n>`` for seeds other than 0."""
    return Path("runs") / (config.recipe if config.seed == 0 else f"{config.recipe}-seed{config.seed}")


def choose_device(name: str) -> torch.device:
    """The device that was named; "auto" is a GPU where there is one.

    Raises:
        ValueError: it is not to be had.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    if not there[name]:
        raise ValueError(f"device {name} is not there; there is: {', '.join(k for k, found in there.items() if found)}")
    return torch.device(name)


def require_compiler() -> None:
    """See that what ``compile`` needs is there.

    Raises:
        ValueError: no C++ compiler is to be found.
    """
    names = (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")
    if not any(shutil.which(name) for name in names):
        raise ValueError("compile needs a C++ compiler and found none: install one, or train with --compile false")


def compile_capsules(model: nn.Module) -> None:
    """Let torch compile the routed layers, in place: weights keep their names."""
    for layer in model.modules():
        if isinstance(layer, RoutedLayer):
            layer.compile()


def make_model(config: Experiment, dataset: Dataset) -> nn.Module:
    """The model that the experiment names, for the shape of its images.

    Raises:
        ValueError: unknown name or options, or images too small for it.
    """
    return build(config.model.name, image_shape(config, dataset), len(dataset.classes), **config.model.options)
