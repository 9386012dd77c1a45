"""Many image files as one tensor: read by several threads, into memory or a file that is allocated once."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.image_file import Frames, Shown, read_shown
from torchcaps.data.medical import Window
from torchcaps.progress import with_time_left

#: Files that are read before their pixels are put away: the memory beside the tensor is that of these.
_AT_ONCE = 64
_MOST_THREADS = 16


class Pixels(NamedTuple):
    """Hold what many files show.

    Attributes:
        images: ``[N, C, H, W]`` uint8 of those that could be read; C is 3 if any of them has colour, else 1.
        digests: of each.
        good: which files these are.
        broken: what is wrong with the others.
        brightest: the largest value of the files of 16 bits, and None where there are none.
        n_deep: how many these are.
    """

    images: Tensor
    digests: list[bytes]
    good: list[int]
    broken: list[str]
    brightest: int | None
    n_deep: int


def read_files(
    paths: Sequence[Path],
    size: tuple[int, int],
    *,
    max_value: int | None = None,
    frames: Frames = "one",
    window: Window = None,
    store: Path | None = None,
) -> Pixels:
    """Read images, resized to (height, width).

    Args:
        paths: the files.
        size: (height, width).
        max_value: as :func:`~torchcaps.data.image_file.read_image` takes it.
        frames: likewise.
        window: likewise.
        store: a folder on whose disk the tensor lies; None for memory.

    Raises:
        ValueError: the disk has no room for it.
    """
    images = _allocate((len(paths), 1, *size), store)
    digests, good, broken, deep = list[bytes](), list[int](), list[str](), list[int]()
    shown_one_by_one = _each(paths, size, max_value, frames, window)
    for k, shown in enumerate(with_time_left(shown_one_by_one, "read images", len(paths))):
        if isinstance(shown, ValueError):
            broken.append(str(shown))
            continue
        if images.shape[1] == 1 and not bool((shown.pixels == shown.pixels[:1]).all()):  # the first with colour
            grey, images = images, _allocate((len(paths), 3, *size), store)
            images[: len(good)] = grey[: len(good)]
        images[len(good)] = shown.pixels[: images.shape[1]]
        digests.append(shown.digest)
        good.append(k)
        deep += [] if shown.brightest is None else [shown.brightest]
    return Pixels(images[: len(good)], digests, good, broken, max(deep, default=None), len(deep))


def _allocate(shape: tuple[int, ...], store: Path | None) -> Tensor:
    """Make room for images: in memory, or in a file that has no name and goes with the process, however it ends."""
    if store is None:
        return torch.empty(shape, dtype=torch.uint8)
    n_bytes = math.prod(shape)
    try:
        with tempfile.TemporaryFile(dir=store) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would be met as pixels are written, by a crash
                os.posix_fallocate(file.fileno(), 0, max(1, n_bytes))
            return torch.from_numpy(np.memmap(file, np.uint8, "r+" if n_bytes else "w+", shape=shape))
    except OSError as error:
        raise ValueError(f"data.options.store must have room for {n_bytes:,} bytes, got {store}: {error}") from error


def _each(
    paths: Sequence[Path], size: tuple[int, int], max_value: int | None, frames: Frames, window: Window
) -> Iterator[Shown | ValueError]:
    def read(path: Path) -> Shown | ValueError:
        try:
            return read_shown(path, size, max_value=max_value, frames=frames, window=window)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        for first in range(0, len(paths), _AT_ONCE):
            yield from threads.map(read, paths[first : first + _AT_ONCE])


def put_in_order(images: Tensor, order: Sequence[int]) -> None:
    """Put images ``[N, ...]`` into another order in place, as ``images[order]`` would in twice the memory.

    Args:
        images: to be put in order.
        order: a permutation of 0 … N − 1: where what comes to each place stands now.
    """
    done = [False] * len(order)
    for start in range(len(order)):
        if done[start] or order[start] == start:
            continue
        first, place = images[start].clone(), start
        while order[place] != start:  # around the cycle
            images[place], done[place] = images[order[place]], True
            place = order[place]
        images[place], done[place] = first, True
