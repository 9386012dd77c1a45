"""Labelled images as tensors, and their splits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Labelled images that live in memory as one tensor.

    Attributes:
        images: ``[N, C, H, W]`` uint8, 0 … 255 (a quarter of the memory of floats).
        labels: ``[N]`` int64.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype != torch.uint8:
            raise ValueError(f"images must be [N, C, H, W] uint8, got {list(self.images.shape)} of {self.images.dtype}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels must be [N={len(self.images)}] int64, got {list(self.labels.shape)} of {self.labels.dtype}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: Tensor | slice) -> Images:
        """The images at these places."""
        return Images(self.images[index], self.labels[index])

    def to(self, device: torch.device | str) -> Images:
        """The same on another device."""
        return Images(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Dataset:
    """A data set with its fixed splits: choose on ``val``, report on ``test`` once."""

    name: str
    classes: tuple[str, ...]
    train: Images
    val: Images
    test: Images

    def __post_init__(self) -> None:
        for split, part in (("train", self.train), ("val", self.val), ("test", self.test)):
            if part.images.shape[1:] != self.train.images.shape[1:]:
                raise ValueError(
                    f"{self.name}: {split} images must be {list(self.train.images.shape[1:])} "
                    f"as in train, got {list(part.images.shape[1:])}"
                )
            if len(part) and not 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(self.classes):
                raise ValueError(
                    f"{self.name}: {split} labels must be 0 … {len(self.classes) - 1}, "
                    f"got {int(part.labels.min())} … {int(part.labels.max())}"
                )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


def to_float(images: Tensor) -> Tensor:
    """uint8 0 … 255 to float32 0 … 1."""
    return images.float() / 255


def resized(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Smoothly resize uint8 images ``[N, C, H, W]`` to (height, width); None leaves them alone."""
    if size is None or tuple(images.shape[2:]) == tuple(size):
        return images
    smooth = F.interpolate(images.float(), size=tuple(size), mode="bicubic", align_corners=False, antialias=True)
    return smooth.round().clamp(0, 255).to(torch.uint8)


def fixed_order(n: int, seed: int) -> Tensor:
    """A permutation of 0 … n − 1 that is the same on every machine."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))
