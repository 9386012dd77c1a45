"""Drawn faces, and figures that lack a part: what a network that only looks for parts tells apart.

In training every part that is there is in its place, so that nothing teaches where parts belong. :func:`draw_faces`
then puts eyes, nose and mouth into each other's places, and asks whether that is still a face.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_choice
from torchcaps.data.images import Dataset, Images

CLASSES = ("face", "no face")
ARRANGEMENTS = ("face", "incomplete", "exchanged")

#: Examples that train, validate and test, half of each class; and the seeds that drew them.
SIZES = {"train": 6000, "val": 1000, "test": 1000}
SEEDS = {"train": 0, "val": 1, "test": 2}

# Left eye, right eye, nose, mouth: centres (right, down) and half axes, in halves of the outline's height.
_PLACES = ((-0.35, -0.3), (0.35, -0.3), (0.0, 0.1), (0.0, 0.52))
_HALF_AXES = ((0.13, 0.13), (0.13, 0.13), (0.07, 0.2), (0.3, 0.08))
#: Where each part goes, so that no place holds a part of its own kind.
_EXCHANGES = ((2, 3, 0, 1), (3, 2, 0, 1), (2, 3, 1, 0), (3, 2, 1, 0))


def draw_faces(n: int, seed: int, arrangement: str = "face", image_size: tuple[int, int] = (28, 28)) -> Tensor:
    """Draw eyes, nose and mouth in an outline, bright on black, each figure with its own place, size and tilt.

    Args:
        n: figures.
        seed: of all that is random. Figure k of one seed has the same outline and parts in every arrangement.
        arrangement: "face"; "incomplete", without one to three of the four parts; "exchanged", all parts,
            but the eyes in the places of nose and mouth and these in the eyes'.
        image_size: (height, width).

    Returns:
        ``[n, 1, H, W]`` uint8.

    Raises:
        ValueError: an unknown arrangement, or n below 1.
    """
    check_choice("arrangement", arrangement, ARRANGEMENTS)
    check_at_least("n", n, 1)
    with torch.device("cpu"):  # whatever torch.set_default_device says
        return _drawn(n, torch.Generator().manual_seed(seed), arrangement, image_size)


def _drawn(n: int, random: torch.Generator, arrangement: str, image_size: tuple[int, int]) -> Tensor:
    def within(most: float, *shape: int) -> Tensor:
        return most * (2 * torch.rand(n, *shape, generator=random) - 1)

    x, y = _own_coordinates(image_size, within)
    places = torch.tensor(_PLACES) + within(0.05, 4, 2)  # [n, 4, 2]
    half = torch.tensor(_HALF_AXES) * (1 + within(0.2, 4, 2))
    exchange = torch.tensor(_EXCHANGES)[torch.randint(len(_EXCHANGES), (n,), generator=random)]  # [n, 4]
    # One to three parts are left: the ones above the k-th of random heights.
    heights = torch.rand(n, 4, generator=random)
    left = torch.randint(1, 4, (n, 1), generator=random)
    shown = torch.ones(n, 4, dtype=torch.bool)
    if arrangement == "incomplete":
        shown = heights.argsort(dim=1).argsort(dim=1) < left
    if arrangement == "exchanged":
        places = places.gather(1, exchange[:, :, None].expand(-1, -1, 2))
    sharp = 0.5 * min(image_size) / 2.6  # edges are about two pixels wide
    ring = ((x / 0.8).square() + y.square()).sqrt()
    picture = (1 - (ring - 1).abs() * sharp).clamp(0, 1)  # [n, H, W]
    for k in range(4):
        dx, dy = (x - places[:, k, 0, None, None], y - places[:, k, 1, None, None])
        a, b = half[:, k, 0, None, None], half[:, k, 1, None, None]
        radius = ((dx / a).square() + (dy / b).square()).sqrt()
        part = ((1 - radius) * torch.minimum(a, b) * 2 * sharp + 0.5).clamp(0, 1)
        picture = torch.maximum(picture, part * shown[:, k, None, None])
    return (255 * picture).round().to(torch.uint8).unsqueeze(1)


def load_faces(
    root: Path | None = None,  # noqa: ARG001 (every loader takes it)
    image_size: tuple[int, int] | None = None,
) -> Dataset:
    """Drawn faces, and figures without some of eyes, nose and mouth, but those that are there in their places.

    Args:
        root: not used: the figures are drawn.
        image_size: (height, width); 28×28 by default.
    """
    size = image_size or (28, 28)
    splits = {}
    for split, n in SIZES.items():
        images = torch.cat([draw_faces(n // 2, SEEDS[split] + 10 * k, a, size) for k, a in enumerate(ARRANGEMENTS[:2])])
        order = torch.randperm(n, generator=torch.Generator().manual_seed(SEEDS[split]))
        splits[split] = Images(images[order], (torch.arange(n) >= n // 2).long()[order])
    return Dataset("faces", CLASSES, **splits)


def _own_coordinates(image_size: tuple[int, int], within: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Each pixel in the frame of each figure: right and down of its centre, in halves of its height, ``[n, H, W]``."""
    height, width = image_size
    unit = min(height, width) / 2.6 * (1 + within(0.12))[:, None, None]
    down = (torch.arange(height) - (height - 1) / 2)[None, :, None] - within(0.06 * height)[:, None, None]
    right = (torch.arange(width) - (width - 1) / 2)[None, None, :] - within(0.06 * width)[:, None, None]
    tilt = within(math.radians(15))[:, None, None]
    x = (right * tilt.cos() + down * tilt.sin()) / unit
    y = (down * tilt.cos() - right * tilt.sin()) / unit
    return x, y
