"""Two overlapping images, without end: of different classes, or on request of the same one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_choice, check_flag
from torchcaps.data.augment import shift, to_device
from torchcaps.data.images import Images

BLENDS = ("sum", "max")


@dataclass(frozen=True)
class PairBatch:
    """Pairs of overlapping images.

    Attributes:
        images: what the network sees, ``[B, C, H, W]`` floats 0 … 1.
        labels: the two classes, ``[B, 2]``; always different ones, or always the same.
        parts: each of the two alone, ``[B, 2, C, H, W]``.
    """

    images: Tensor
    labels: Tensor
    parts: Tensor


@dataclass(frozen=True)
class Pairs:
    """Pairs drawn from labelled images: MultiMNIST, when those are MNIST.

    Each is shifted by up to ``most`` pixels in each direction on a canvas that is ``most`` larger on
    every side, then both are laid over each other. Pair number k depends on the seed and k alone,
    not on how the pairs are batched.

    Args:
        source: the images, at least two classes.
        seed: of the draw.
        most: largest shift; 4 in the paper, which makes 36×36 of 28×28.
        blend: "sum", clipped at full brightness (the paper's), or "max".
        same: draw two different images of one class instead, which a network with one capsule for each class
            has no way to name.

    Raises:
        ValueError: no :class:`Images`; one class only, an unknown ``blend``, or a negative ``seed`` or ``most``; with
            ``same``, a class of one image.

    Example:
        >>> from torchcaps.data import load
        >>> batch = Pairs(load("digits").train, seed=0).batch(first=0, n=4)
        >>> batch.images.shape, batch.labels.shape
        (torch.Size([4, 1, 36, 36]), torch.Size([4, 2]))

    Source: Sabour et al. 2017, section 6.
    """

    source: Images
    seed: int = 0
    most: int = 4
    blend: str = "sum"
    same: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.source, Images):
            raise ValueError(
                f"source must be Images, labelled ones, such as load('digits').train; got {type(self.source)}"
            )
        if self.source.several_labels:
            raise ValueError("source must have one label an image to make pairs of, got several")
        check_choice("blend", self.blend, BLENDS)
        check_at_least("seed", self.seed, 0, below=2**63)
        check_at_least("most", self.most, 0)
        check_flag("same", self.same)
        if self.same and (self.source.labels.bincount() == 1).any():
            raise ValueError("source must have at least two images of each class to make pairs of the same class")
        if len(self.source.labels.unique()) < (1 if self.same else 2):
            wanted = "images" if self.same else "images of at least two classes"
            raise ValueError(f"source must have {wanted} to make pairs of")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the canvas."""
        channels, height, width = self.source.images.shape[1:]
        return channels, height + 2 * self.most, width + 2 * self.most

    def batch(self, first: int, n: int) -> PairBatch:
        """Pairs number ``first`` … ``first + n − 1``, on the device of the source.

        Raises:
            ValueError: numbers that are no integers, or negative.
        """
        check_at_least("first", first, 0)
        check_at_least("n", n, 0)
        # A counter-based generator: pair k owns the raw numbers 8k … 8k + 7 of its key, the seed.
        raw = np.random.Philox(key=self.seed).advance(2 * first).random_raw(8 * n).reshape(n, 8)
        draws = torch.from_numpy((raw >> np.uint64(2)).astype(np.int64))  # [n, 8], not negative
        one = draws[:, 0] % len(self.source)
        two = self._others(one, draws[:, 1])
        offsets = draws[:, 2:6] % (2 * self.most + 1) - self.most
        drawn = to_device(torch.cat((one[:, None], two[:, None], offsets), dim=1), self.source.images.device)
        pair, offsets = drawn[:, :2], drawn[:, 2:].reshape(-1, 2)
        parts = shift(self.source.floats(pair.flatten()), offsets, self.most).unflatten(0, (n, 2))
        images = parts.sum(dim=1).clamp_max(1) if self.blend == "sum" else parts.amax(dim=1)
        return PairBatch(images, self.source.labels[pair], parts)

    @cached_property
    def _sorted(self) -> _Sorted:
        return _Sorted.of(self.source.labels.cpu())

    def __getstate__(self) -> dict[str, Any]:
        """Return what it was made of: a copy sorts anew."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _others(self, one: Tensor, draw: Tensor) -> Tensor:
        """Draw the second image of each pair among those of other classes, or of the same one but itself."""
        order, place, start, size = self._sorted
        start, count = start[one], size[one]
        if self.same:
            step = 1 + draw % (count - 1)
            return order[start + (place[one] - start + step) % count]
        rank = draw % (len(order) - count)
        return order[torch.where(rank < start, rank, rank + count)]


class _Sorted(NamedTuple):
    """Images by class, on the CPU, where pairs are drawn.

    Attributes:
        order: the images, sorted by their labels, ``[N]``.
        place: where in that order each image stands, ``[N]``.
        start: where in that order its class begins, ``[N]``.
        size: how many images its class has, ``[N]``.
    """

    order: Tensor
    place: Tensor
    start: Tensor
    size: Tensor

    @classmethod
    def of(cls, labels: Tensor) -> _Sorted:
        """Sort images by their labels ``[N]``."""
        order, counts = labels.argsort(stable=True), labels.bincount()
        return cls(order, order.argsort(), (counts.cumsum(0) - counts)[labels], counts[labels])
