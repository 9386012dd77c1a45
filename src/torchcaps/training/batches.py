"""Batches made on the training device, each a function of the seed and its number alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from itertools import islice

import torch

from torchcaps.data import Dataset, Images
from torchcaps.data.images import fixed_order
from torchcaps.training.config import Data, Experiment
from torchcaps.training.examples import Batch
from torchcaps.training.processes import ALONE, World


class Batches:
    """Iterate over one epoch of a task's examples; may start in its middle.

    Of several processes each has its part of every batch in training, and in evaluation every so many whole batches.
    All have as many batches: where evaluation leaves one over, a process without has one of no examples.

    Raises:
        ValueError: fewer training examples than a batch, or images smaller than their crop or shift.
    """

    def __init__(
        self,
        data: Data,
        source: Images,
        batch_size: int,
        *,
        seed: int,
        train: bool,
        mirrored: tuple[int, ...] | None = None,
        world: World = ALONE,
    ) -> None:
        self.source, self.batch_size, self.train, self.world = source, batch_size, train, world
        self.epoch = self.done = self._start = 0
        self.examples = data.task.examples(data, source, seed, train=train, mirrored=mirrored)
        self.n = self.examples.n
        if train and self.n < batch_size:
            raise ValueError(f"batch_size must be at most the {self.n} training examples, got {batch_size}")

    def __len__(self) -> int:
        """Batches in an epoch; in training the incomplete last one is dropped."""
        if self.train:
            return self.n // self.batch_size
        return math.ceil(self.n / (self.batch_size * self.world.size))

    def state_dict(self) -> dict[str, int]:
        """Return where the iteration stands; Lightning keeps it in the checkpoint."""
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on behind the batches that were done."""
        self.epoch, self._start = state["epoch"], state["done"]

    def __iter__(self) -> Iterator[Batch]:
        start, self._start = self._start, 0
        batches = self.examples.epoch(self.epoch, self.batch_size, start) if self.train else self._evaluated(start)
        for done, batch in enumerate(islice(batches, len(self) - start), start + 1):
            self.done = done
            yield batch.of(self.world) if self.train else batch

    def _evaluated(self, start: int) -> Iterator[Batch]:
        """Make this process's batches of an evaluation, from its number ``start`` on."""
        if self.world.size == 1:
            yield from self.examples.epoch(self.epoch, self.batch_size, start)
            return
        for turn in range(start, len(self)):
            number = turn * self.world.size + self.world.rank
            there = number * self.batch_size < self.n
            batch = next(self.examples.epoch(self.epoch, self.batch_size, number if there else 0))
            yield batch if there else batch.take(slice(0))


def split(config: Experiment, dataset: Dataset, name: str, device: torch.device, world: World = ALONE) -> Batches:
    """Batches of "train", "val", "test" or one of the further splits, with the images on ``device``.

    Raises:
        ValueError: fewer training examples than a batch, images smaller than their crop or shift, pairs of a single
            class, or a split that the data do not have.
    """
    if name not in dataset.splits:
        raise ValueError(f"split must be one of {', '.join(dataset.splits)} for these data, got {name!r}")
    task = config.data.task
    if name == "train":
        warning = task.warning(dataset)
        if warning:
            logging.getLogger("torchcaps").warning(warning)
        asked, there = config.data.n_train, len(dataset.train)
        if asked is not None and asked > there:
            raise ValueError(f"data.n_train must be at most the {there:,} training images, got {asked:,}")
        images = dataset.train if asked is None else dataset.train.take(slice(asked))
        task.check_images(config.data, images, "data.n_train, if given, and its training images")
        shown, mirrored = images.to(device), dataset.mirrored
        return Batches(
            config.data, shown, config.batch_size, seed=config.seed, train=True, mirrored=mirrored, world=world
        )
    # The pairs to validate and to test on are the same ones for every seed.
    seed = {"val": 1, "test": 0}.get(name, 2)
    images = evaluated(config.data, dataset.splits[name])
    task.check_images(config.data, images, f"data.n_eval, if given, and its {name} images")
    return Batches(config.data, images.to(device), config.batch_size, seed=seed, train=False, world=world)


def evaluated(data: Data, images: Images) -> Images:
    """Return those of a split that are evaluated: all, or ``n_eval`` drawn ones, as the first may be of one object."""
    if data.n_eval is None:
        return images
    return images.take(fixed_order(len(images), 0)[: data.n_eval].sort().values)


def image_shape(config: Experiment, dataset: Dataset) -> tuple[int, int, int]:
    """(channels, height, width) of what the model sees: the window of a crop; the larger canvas of pairs."""
    return config.data.task.image_shape(config.data, dataset)
