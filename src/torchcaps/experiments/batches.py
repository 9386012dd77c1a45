"""Batches made on the training device, each a function of the seed and its number alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Dataset, Images, Pairs
from torchcaps.data.augment import random_affine, random_shift
from torchcaps.data.images import to_float
from torchcaps.experiments.experiment import Data, Experiment


class Batch(NamedTuple):
    """What one step trains on.

    Attributes:
        images: ``[B, C, H, W]`` floats 0 … 1.
        labels: ``[B, K]``: the K different classes in each image (1, or 2 for pairs).
        parts: ``[B, K, C, H, W]``: what is to be reconstructed from each class's capsule.
    """

    images: Tensor
    labels: Tensor
    parts: Tensor


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers, such that nearby numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class Batches:
    """Iterates over one epoch, and can start in its middle.

    Nothing here keeps a random state: the order of epoch e and the augmentation of its batch k are
    drawn from (seed, e, k). So a resumed run sees what an unbroken one would have seen.
    """

    def __init__(self, data: Data, source: Images, batch_size: int, *, seed: int, train: bool) -> None:
        self.data, self.source, self.batch_size = data, source, batch_size
        self.seed, self.train = seed, train
        self.epoch = self.done = self._start = 0
        n = data.n_pairs[0 if train else 1] if data.pairs else len(source)
        self.n = n
        if train and n < batch_size:
            raise ValueError(f"batch_size must be at most the {n} training examples, got {batch_size}")

    def __len__(self) -> int:
        """Batches in an epoch; in training the incomplete last one is dropped."""
        return self.n // self.batch_size if self.train else -(-self.n // self.batch_size)

    def state_dict(self) -> dict[str, int]:
        """Where the iteration stands; Lightning keeps it in the checkpoint."""
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on behind the batches that were done."""
        self.epoch, self._start = state["epoch"], state["done"]

    def __iter__(self) -> Iterator[Batch]:
        start, self._start = self._start, 0
        for done, batch in enumerate(self._batches(start), start + 1):
            self.done = done
            yield batch

    def _batches(self, start: int) -> Iterator[Batch]:
        if self.data.pairs:
            pairs = Pairs(self.source, seed=mixed_seed(self.seed, 1), blend=self.data.blend)
            first = self.epoch * self.n if self.train else 0
            for k in range(start, len(self)):
                at = k * self.batch_size
                batch = pairs.batch(first + at, min(self.batch_size, self.n - at))
                yield Batch(batch.images, batch.labels, batch.parts)
            return
        order = torch.arange(self.n)
        if self.train:
            order = torch.randperm(self.n, generator=self._generator(0))
        order = order.to(self.source.images.device)
        for k in range(start, len(self)):
            index = order[k * self.batch_size : (k + 1) * self.batch_size]
            images = to_float(self.source.images[index])
            if self.train:
                images = self._augment(images, self._generator(1 + k))
            yield Batch(images, self.source.labels[index].unsqueeze(1), images.unsqueeze(1))

    def _augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        data = self.data
        if data.degrees or data.scale or data.shear:
            images = random_affine(images, generator, degrees=data.degrees, scale=data.scale, shear=data.shear)
        return random_shift(images, data.shift, generator)

    def _generator(self, what: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed_seed(self.seed, self.epoch, what))


def split(config: Experiment, dataset: Dataset, name: str, device: torch.device) -> Batches:
    """Batches of "train", "val" or "test", with the images on ``device``.

    Raises:
        ValueError: fewer training examples than a batch.
    """
    if name == "train":
        images = dataset.train if config.data.n_train is None else dataset.train.take(slice(config.data.n_train))
        return Batches(config.data, images.to(device), config.batch_size, seed=config.seed, train=True)
    # The pairs to validate and to test on are the same ones for every seed.
    images, seed = {"val": (dataset.val, 1), "test": (dataset.test, 0)}[name]
    return Batches(config.data, images.to(device), config.batch_size, seed=seed, train=False)


def image_shape(config: Experiment, dataset: Dataset) -> tuple[int, int, int]:
    """(channels, height, width) of the images that the model sees; pairs lie on a larger canvas."""
    return Pairs(dataset.train).image_shape if config.data.pairs else dataset.image_shape
