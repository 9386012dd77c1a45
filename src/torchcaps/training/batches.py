"""Batches made on the training device, each a function of the seed and its number alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Dataset, Images, Pairs
from torchcaps.data.augment import (
    CROPS_13,
    central_crop,
    crop,
    random_affine,
    random_brightness,
    random_contrast,
    random_corners,
    random_flip,
    random_gamma,
    random_shading,
    random_shift,
)
from torchcaps.data.images import fixed_order, to_float
from torchcaps.data.transformed import Limits, transformed_pairs
from torchcaps.training.config import Data, Experiment


class Batch(NamedTuple):
    """What one step trains on.

    Attributes:
        images: ``[B, C, H, W]`` floats 0 … 1; beyond that where shading, brightness or contrast was changed.
        labels: ``[B, K]``: the K different classes in each image (1, or 2 for pairs).
        parts: ``[B, K, C, H, W]`` floats 0 … 1: what is to be reconstructed from each class's capsule.
        transformation: T of each image, ``[B, 3, 3]`` in pixels, where the parts are the transformed images.
        crops: in evaluation the other windows of the same images, each ``[B, C, H, W]``.
    """

    images: Tensor
    labels: Tensor
    parts: Tensor
    transformation: Tensor | None = None
    crops: tuple[Tensor, ...] = ()

    def views(self) -> list[Batch]:
        """All that an evaluation averages over: the images themselves, then every other window of them."""
        others = (Batch(images, self.labels, images.unsqueeze(1)) for images in self.crops)
        return [self._replace(crops=()), *others]


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers, such that nearby numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class Batches:
    """Iterates over one epoch, and can start in its middle.

    Nothing here keeps a random state: the order of epoch e and the augmentation of its batch k are
    drawn from (seed, e, k). So a resumed run sees what an unbroken one would have seen.
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
    ) -> None:
        self.data, self.source, self.batch_size, self.mirrored = data, source, batch_size, mirrored
        self.seed, self.train = seed, train
        self.epoch = self.done = self._start = 0
        n = data.n_pairs[0 if train else 1] if data.pairs else len(source)
        if train and data.n_shown is not None:
            n = data.n_shown
        self.n = n
        # The pairs of training seeds 0 and 1 are shifted as those of test and validation are; their images are others.
        self._pairs = Pairs(source, seed=mixed_seed(seed, 1), blend=data.blend) if data.pairs else None
        if data.crop is not None:
            _require_room(data.crop, data.test_crops, source)
        side = min(source.images.shape[2:])
        if data.shift >= side and not data.pairs:
            raise ValueError(f"data.shift must be below {side}, the images' size in pixels, got {data.shift}")
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
        if self._pairs is not None:
            first = self.epoch * self.n if self.train else 0
            for k in range(start, len(self)):
                at = k * self.batch_size
                batch = self._pairs.batch(first + at, min(self.batch_size, self.n - at))
                yield Batch(batch.images, batch.labels, batch.parts)
            return
        limits = Limits(self.data.shift, self.data.degrees, self.data.scale, self.data.shear)
        order = torch.arange(self.n, device="cpu")
        if self.train:
            generator, n = self._generator(0), len(self.source)
            orders = [torch.randperm(n, generator=generator, device="cpu") for _ in range(-(-self.n // n))]
            order = torch.cat(orders)[: self.n]
        order = order.to(self.source.images.device)
        for k in range(start, len(self)):
            index = order[k * self.batch_size : (k + 1) * self.batch_size]
            images, labels = to_float(self.source.images[index]), self.source.labels[index].unsqueeze(1)
            if self.data.transformed:
                pair = transformed_pairs(images, limits, self._generator(1 + k), self.data.crop)
                yield Batch(pair.images, labels, pair.transformed.unsqueeze(1), pair.transformation)
            elif self.train:
                images, parts = self._augment(images, self._generator(1 + k))
                yield Batch(images, labels, parts.unsqueeze(1))
            else:
                first, *others = self._windows(images)
                yield Batch(first, labels, first.unsqueeze(1), crops=tuple(others))

    def _augment(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the network is to see, and what it is to reconstruct.

        That is without the changes of light: of brightness and contrast a network that standardises its images cannot
        know, and they may leave the 0 … 1 that a decoder can paint.
        """
        data = self.data
        if data.degrees or data.scale or data.shear:
            images = random_affine(images, generator, degrees=data.degrees, scale=data.scale, shear=data.shear)
        images = random_shift(images, data.shift, generator)
        if data.flip:
            images = random_flip(images, generator, self.mirrored)
        parts = images
        if data.gamma:
            images = random_gamma(images, data.gamma, generator)
        if data.shading:
            images = random_shading(images, data.shading, generator)
        if data.brightness:
            images = random_brightness(images, data.brightness, generator)
        if data.contrast != (1, 1):
            images = random_contrast(images, data.contrast, generator)
        if data.crop is None:
            return images, parts
        corners = random_corners(images, data.crop, generator)
        return crop(images, corners, data.crop), crop(parts, corners, data.crop)

    def _windows(self, images: Tensor) -> list[Tensor]:
        """The central window of each image, and the others of ``test_crops``."""
        if self.data.crop is None:
            return [images]
        return [central_crop(images, self.data.crop, offset) for offset in CROPS_13[: self.data.test_crops]]

    def _generator(self, what: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed_seed(self.seed, self.epoch, what))


def _require_room(size: tuple[int, int], n: int, source: Images) -> None:
    """See that all windows, and the outermost of several too, lie within the images."""
    around = 2 * max(max(offset) for offset in CROPS_13[:n])
    height, width = source.images.shape[2:]
    if size[0] + around > height or size[1] + around > width:
        raise ValueError(
            f"data.crop must be at most {height - around}×{width - around} in images of {height}×{width} "
            f"with data.test_crops = {n}, got {size[0]}×{size[1]}"
        )


def split(config: Experiment, dataset: Dataset, name: str, device: torch.device) -> Batches:
    """Batches of "train", "val", "test" or one of the further splits, with the images on ``device``.

    Raises:
        ValueError: fewer training examples than a batch, images smaller than their crop or shift, pairs of a single
            class, or a split that the data do not have.
    """
    if name not in dataset.splits:
        raise ValueError(f"split must be one of {', '.join(dataset.splits)} for these data, got {name!r}")
    if name == "train":
        if config.data.pairs and len(dataset.classes) == 2:  # what is painted of them may be wanted all the same
            logging.getLogger("torchcaps").warning(
                "both classes, %s, are in every pair: none can be misclassified, and an error of 0 says nothing",
                " and ".join(dataset.classes),
            )
        asked, there = config.data.n_train, len(dataset.train)
        if asked is not None and asked > there:
            raise ValueError(f"data.n_train must be at most the {there:,} training images, got {asked:,}")
        images = dataset.train if asked is None else dataset.train.take(slice(asked))
        _require_two_classes(config.data, images, "data.n_train, if given, and its training images")
        shown, mirrored = images.to(device), dataset.mirrored
        return Batches(config.data, shown, config.batch_size, seed=config.seed, train=True, mirrored=mirrored)
    # The pairs to validate and to test on are the same ones for every seed.
    seed = {"val": 1, "test": 0}.get(name, 2)
    images = evaluated(config.data, dataset.splits[name])
    _require_two_classes(config.data, images, f"data.n_eval, if given, and its {name} images")
    return Batches(config.data, images.to(device), config.batch_size, seed=seed, train=False)


def _require_two_classes(data: Data, images: Images, what: str) -> None:
    if data.pairs and len(images.labels.unique()) < 2:
        raise ValueError(f"data must have two classes to make pairs of: {what} leave one or none, got {data.name}")


def evaluated(data: Data, images: Images) -> Images:
    """Those of a split that are evaluated: all, or ``n_eval`` drawn ones, as the first may be of a single object."""
    if data.n_eval is None:
        return images
    return images.take(fixed_order(len(images), 0)[: data.n_eval].sort().values)


def image_shape(config: Experiment, dataset: Dataset) -> tuple[int, int, int]:
    """(channels, height, width) of what the model sees: the window of a crop; the larger canvas of pairs."""
    if config.data.pairs:
        return Pairs(dataset.train).image_shape
    return (dataset.image_shape[0], *(config.data.crop or dataset.image_shape[1:]))
