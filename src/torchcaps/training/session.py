"""What a run trains: the experiment with its data and model, made before anything is written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from lightning.pytorch.loggers import Logger
from torch import nn

from torchcaps.checks import check_choice
from torchcaps.data import Dataset, load
from torchcaps.models import MODELS
from torchcaps.training import cuda_graph
from torchcaps.training.batches import Batches, split
from torchcaps.training.build import check_model, require_compiler
from torchcaps.training.checkpoint import HANDED_OVER
from torchcaps.training.config import Experiment, Model, Progress
from torchcaps.training.environment import choose_device, device_in_words
from torchcaps.training.objective import Loss
from torchcaps.training.processes import ALONE, World


class Given(NamedTuple):
    """Hold what was handed over to :func:`train` as objects; None where the experiment names it."""

    dataset: Dataset | None
    model: nn.Module | None
    loss: Loss | None

    def named_in(self, config: Experiment) -> Experiment:
        """Return the experiment with the names of what was handed over, as its files say it.

        Raises:
            ValueError: something else than a data set, a network or a function was handed over.
        """
        for name, value, kind in (("dataset", self.dataset, Dataset), ("model", self.model, nn.Module)):
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got a {type(value).__name__}")
        if self.loss is not None and not callable(self.loss):
            raise ValueError(f"loss must be a function of output and batch, got {self.loss!r}")
        if self.loss is None and config.loss == "own":
            raise ValueError("loss must be handed over, as the experiment has one of your own; got None")
        if self.loss is not None:
            config = replace(config, loss="own")
        if self.dataset is not None:
            masks = config.data.masks or (self.dataset.train.masks is not None and not config.data.multi_label)
            several = config.data.multi_label or (self.dataset.several_labels and not masks)
            name = f"{self.dataset.name}{HANDED_OVER}"
            data = replace(config.data, name=name, options={}, multi_label=several, masks=masks)
            config = replace(config, data=data)
        if self.model is not None:
            config = replace(config, model=Model(f"{type(self.model).__name__}{HANDED_OVER}"))
        return config

    def in_words(self) -> dict[str, list[str]]:
        """Return which parts were handed over, for the result."""
        names = [name for name, value in self._asdict().items() if value is not None]
        return {"handed_over": names} if names else {}


class How(NamedTuple):
    """Hold how a run is trained, which changes nothing of its outcome; see :func:`torchcaps.train`."""

    progress: Progress
    checkpoint_seconds: float
    until: float | None
    more_epochs: bool
    loggers: tuple[Logger, ...] = ()


class Session(NamedTuple):
    """Hold what a run trains: the experiment with its data and model, on a device."""

    config: Experiment
    device: torch.device
    dataset: Dataset
    batches: dict[str, Batches]
    model: nn.Module
    given: Given
    world: World = ALONE

    def place(self) -> str:
        """Say where it trains, and by how many processes."""
        n, device = self.world.size, device_in_words(self.device)
        return device if n == 1 else f"{n} processes, each on {device}"


def prepare(config: Experiment, given: Given, world: World = ALONE) -> Session:
    """Load the data and make the model, and see that all fits; writes nothing.

    Raises:
        ValueError: data, model and experiment do not fit, or this machine cannot train as asked.
    """
    if config.data.root is not None:  # so that the run is found again from another folder
        config = replace(config, data=replace(config.data, root=str(Path(config.data.root).expanduser().resolve())))
    device = choose_device(config.device, config.devices, world.local_rank)
    cuda_graph.wanted()  # or refuses what the environment says, before data are loaded
    if config.threads:
        torch.set_num_threads(config.threads)
    if world.size > 1:  # or Lightning takes all cores for each
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    if config.compile:
        require_compiler()
    if given.model is None:
        check_choice("model.name", config.model.name, MODELS)  # before data are downloaded
    torch.manual_seed(config.seed)
    dataset = given.dataset
    if dataset is None:
        dataset = load(config.data.name, config.data.root, config.data.image_size, **config.data.options)
    for name, images in dataset.splits.items():
        if not len(images):
            raise ValueError(f"data must have {name} images, got none of {config.data.name}")
    if (config.trial or config.stop_at is not None or config.keep_best) and not dataset.held_out:
        raise ValueError(
            "data must hold validation images out where settings or weights are chosen, or training ended, by them; of "
            f"{config.recipe} {dataset.note}: take a recipe or data.options that hold them out"
        )
    batches = {name: split(config, dataset, name, device, world) for name in dataset.splits}
    model = check_model(config, dataset, given.model)
    return Session(config, device, dataset, batches, model, given, world)
