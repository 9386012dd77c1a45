"""Examples made of images: single ones, overlapping pairs, or an image and what a transformation makes of it.

Nothing here keeps a random state: the order of epoch e and the augmentation of its batch k are drawn from
(seed, e, k). So a resumed run sees what an unbroken one would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Images, Pairs
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
from torchcaps.data.sampling import balanced_weights
from torchcaps.data.transformed import Limits, transformed_pairs
from torchcaps.training.processes import Share, World, slice_of

if TYPE_CHECKING:
    from torchcaps.training.config import Data


class Batch(NamedTuple):
    """Hold what one step trains on.

    Attributes:
        images: ``[B, C, H, W]`` floats 0 … 1; beyond that where shading, brightness or contrast was changed.
        labels: ``[B, K]``: the K different classes in each image (1, or 2 for pairs); of images with several labels
            ``[B, J]`` bool, for each class whether it is there.
        parts: ``[B, K, C, H, W]`` floats 0 … 1: what is to be reconstructed from each class's capsule.
        transformation: T of each image, ``[B, 3, 3]`` in pixels, where the parts are the transformed images.
        crops: in evaluation the other windows of the same images, each ``[B, C, H, W]``.
        share: what part of a training batch this is, where several processes have one each.
        masks: of networks that segment: where each class is, ``[B, J, H, W]`` floats 0 and 1.
    """

    images: Tensor
    labels: Tensor
    parts: Tensor
    transformation: Tensor | None = None
    crops: tuple[Tensor, ...] = ()
    share: Share | None = None
    masks: Tensor | None = None

    def take(self, part: slice) -> Batch:
        """Return some of its examples."""
        transformation = None if self.transformation is None else self.transformation[part]
        crops = tuple(images[part] for images in self.crops)
        masks = None if self.masks is None else self.masks[part]
        return Batch(self.images[part], self.labels[part], self.parts[part], transformation, crops, masks=masks)

    def of(self, world: World) -> Batch:
        """Return what this process has of the batch."""
        if world.size == 1:
            return self
        part = slice_of(world, len(self.images))
        return self.take(part)._replace(share=Share(world, part.start, len(self.images)))

    def views(self) -> list[Batch]:
        """Return all that an evaluation averages over: the images themselves, then every other window of them."""
        others = (Batch(images, self.labels, images.unsqueeze(1)) for images in self.crops)
        return [self._replace(crops=()), *others]


def mixed_seed(*numbers: int) -> int:
    """Make one seed of several numbers, such that nearby numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class SingleExamples:
    """Make batches of single images: shuffled and augmented in training, windows of them in evaluation.

    Args:
        data: the settings.
        source: the images.
        seed: of order and augmentation.
        train: whether to shuffle, repeat and augment.
        mirrored: channels that change places in a mirror image, as the eyes of a stereo pair; None for none.

    Raises:
        ValueError: images smaller than their crop or shift.
    """

    def __init__(
        self, data: Data, source: Images, seed: int, *, train: bool, mirrored: tuple[int, ...] | None = None
    ) -> None:
        self.data, self.source, self.seed, self.train, self.mirrored = data, source, seed, train, mirrored
        #: Examples in an epoch.
        self.n = data.n_shown if train and data.n_shown is not None else len(source)
        if data.crop is not None:
            _require_room(data.crop, data.test_crops, source)
        side = min(source.images.shape[2:])
        if data.shift >= side:
            raise ValueError(f"data.shift must be below {side}, the images' size in pixels, got {data.shift}")

    def epoch(self, epoch: int, batch_size: int, start: int) -> Iterator[Batch]:
        """Make the batches of an epoch from number ``start`` on; the last one may be smaller."""
        order = torch.arange(self.n, device="cpu")
        if self.train:
            generator, n = self._generator(epoch, 0), len(self.source)
            orders = [torch.randperm(n, generator=generator, device="cpu") for _ in range(-(-self.n // n))]
            order = torch.cat(orders)[: self.n]
            if self.data.balance:
                weights = balanced_weights(self.source.labels)
                order = torch.multinomial(weights, self.n, replacement=True, generator=generator)
        order = order.to(self.source.images.device)
        for k in range(start, -(-self.n // batch_size)):
            index = order[k * batch_size : (k + 1) * batch_size]
            images, labels = self._floats(index), self.source.labels[index]
            labels = labels if self.source.several_labels else labels.unsqueeze(1)
            yield self._batch(images, labels, self._generator(epoch, 1 + k))

    def _floats(self, index: Tensor) -> Tensor:
        """Return what a batch is made of, ``[B, C, H, W]``."""
        return self.source.floats(index)

    def _batch(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Batch:
        if self.train:
            images, parts = self._augment(images, generator)
            return Batch(images, labels, parts.unsqueeze(1))
        first, *others = self._windows(images)
        return Batch(first, labels, first.unsqueeze(1), crops=tuple(others))

    def _augment(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return what the network sees, and what it is to reconstruct.

        That is without the changes of light: of brightness and contrast a network that standardizes its images cannot
        know, and they may leave the 0 … 1 that a decoder can give.
        """
        parts = self._move(images, generator)
        images = self._light(parts, generator)
        return self._window(images, parts, generator)

    def _move(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Warp, shift and mirror."""
        data = self.data
        if data.degrees or data.scale or data.shear:
            limits = {"degrees": data.degrees, "scale": data.scale, "shear": data.shear}
            images = random_affine(images, generator, **limits, fill=data.fill)
        images = random_shift(images, data.shift, generator, data.fill)
        return random_flip(images, generator, self.mirrored) if data.flip else images

    def _light(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change brightness and contrast, and leave all in its place."""
        data = self.data
        if data.gamma:
            images = random_gamma(images, data.gamma, generator)
        if data.shading:
            images = random_shading(images, data.shading, generator)
        if data.brightness:
            images = random_brightness(images, data.brightness, generator)
        if data.contrast != (1, 1):
            images = random_contrast(images, data.contrast, generator)
        return images

    def _window(self, images: Tensor, parts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Cut the same window out of both, at a place of its own for each image."""
        if self.data.crop is None:
            return images, parts
        corners = random_corners(images, self.data.crop, generator)
        return crop(images, corners, self.data.crop), crop(parts, corners, self.data.crop)

    def _windows(self, images: Tensor) -> list[Tensor]:
        """Return the central window of each image, and the others of ``test_crops``."""
        if self.data.crop is None:
            return [images]
        return [central_crop(images, self.data.crop, offset) for offset in CROPS_13[: self.data.test_crops]]

    def _generator(self, epoch: int, what: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed_seed(self.seed, epoch, what))


class TransformedExamples(SingleExamples):
    """Make batches of transformed images, with the transformation that leads from one to the other.

    Both are transformed at random, in evaluation too.
    """

    def _batch(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Batch:
        limits = Limits(self.data.shift, self.data.degrees, self.data.scale, self.data.shear)
        pair = transformed_pairs(images, limits, generator, self.data.crop, fill=self.data.fill)
        return Batch(pair.images, labels, pair.transformed.unsqueeze(1), pair.transformation)


class SegmentedExamples(SingleExamples):
    """Make batches of images with their masks, which move together: masks are further channels while they are moved."""

    def __init__(
        self, data: Data, source: Images, seed: int, *, train: bool, mirrored: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(data, source, seed, train=train, mirrored=mirrored)
        assert source.masks is not None
        self._masks, self._channels = source.masks, source.images.shape[1]
        if mirrored is not None:
            self.mirrored = (*mirrored, *range(self._channels, self._channels + source.masks.shape[1]))

    def _floats(self, index: Tensor) -> Tensor:
        return torch.cat((self.source.floats(index), self._masks[index].float()), dim=1)

    def _batch(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Batch:
        if not self.train:
            (both,) = self._windows(images)
            images, masks = both[:, : self._channels], both[:, self._channels :]
            return Batch(images, labels, images.unsqueeze(1), masks=masks)
        moved = self._move(images, generator)
        clean, masks = moved[:, : self._channels], moved[:, self._channels :]
        changed = torch.cat((self._light(clean, generator), clean), dim=1)
        changed, masks = self._window(changed, masks, generator)
        images, parts = changed[:, : self._channels], changed[:, self._channels :]
        return Batch(images, labels, parts.unsqueeze(1), masks=(masks > 0.5).float())  # a warp interpolates


class PairedExamples:
    """Make batches of overlapping pairs; see :class:`SingleExamples`. In training every epoch has new ones."""

    def __init__(
        self, data: Data, source: Images, seed: int, *, train: bool, mirrored: tuple[int, ...] | None = None
    ) -> None:
        self.n, self.train = data.n_pairs[0 if train else 1], train
        # The pairs of training seeds 0 and 1 are shifted as those of test and validation are; their images are others.
        self._pairs = Pairs(source, seed=mixed_seed(seed, 1), blend=data.blend)

    def epoch(self, epoch: int, batch_size: int, start: int) -> Iterator[Batch]:
        """Make the batches of an epoch from number ``start`` on; the last one may be smaller."""
        first = epoch * self.n if self.train else 0
        for at in range(start * batch_size, self.n, batch_size):
            pairs = self._pairs.batch(first + at, min(batch_size, self.n - at))
            yield Batch(pairs.images, pairs.labels, pairs.parts)


def _require_room(size: tuple[int, int], n: int, source: Images) -> None:
    """Check that all windows, and the outermost of several too, lie within the images."""
    around = 2 * max(max(offset) for offset in CROPS_13[:n])
    height, width = source.images.shape[2:]
    if size[0] + around > height or size[1] + around > width:
        raise ValueError(
            f"data.crop must be at most {height - around}×{width - around} in images of {height}×{width} "
            f"with data.test_crops = {n}, got {size[0]}×{size[1]}"
        )
