"""MNIST's digits at random places of a larger canvas: what is trained on before a test of affine changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from study.data.affine_mnist import SHA256, affine_mnist
from study.data.affnist import load_affnist
from torchcaps.checks import check_flag
from torchcaps.data.augment import shift
from torchcaps.data.images import Dataset, Images
from torchcaps.data.mnist import load_mnist

#: Black pixels that are added on every side, and so the largest shift that keeps all of a 28×28 image.
PAD = 6

#: Of the places of the validation and the test digits.
SEEDS = {"val": 1, "test": 0}


def load_expanded_mnist(
    root: Path | None = None, image_size: tuple[int, int] | None = None, *, affnist: bool = False
) -> Dataset:
    """Expanded MNIST, and affine-MNIST to test on: digits at random places of a black 40×40 canvas.

    The validation and the test digits have their places for good. The training digits stand in the
    middle: a recipe moves them anew in every epoch, by ``data.shift=6``. The further split
    ``affine_mnist`` is that of :func:`~study.data.affine_mnist.affine_mnist`, which is not affNIST;
    ``affnist`` is the official one.

    Args:
        root: a folder with MNIST's four files (and affNIST's, if asked for), or with folders ``mnist`` and
            ``affnist`` of them; None downloads them.
        image_size: None; the canvas has its size.
        affnist: have the official affNIST test set as a split too.

    Raises:
        ValueError: another size; a file is missing, damaged, or not to be downloaded.

    Source: Sabour et al. 2017, section 5.2.
    """
    if image_size is not None:
        raise ValueError(f"data.image_size must be None for expanded-mnist, which is 40×40; got {image_size}")
    check_flag("data.options.affnist", affnist)
    mnist = load_mnist(_within(root, "mnist"))
    further = {"affine_mnist": affine_mnist(mnist.test)}
    if affnist:
        further["affnist"] = load_affnist(_within(root, "affnist"))
    train = replace(mnist.train, images=F.pad(mnist.train.images, (PAD,) * 4))
    val, test = (placed(mnist.splits[name], seed) for name, seed in SEEDS.items())
    note = f"tested on affine-MNIST too, sha256 {SHA256}"
    return Dataset("expanded-mnist", mnist.classes, train, val, test, further, note)


def _within(root: Path | None, name: str) -> Path | None:
    return root if root is None or not (root / name).is_dir() else root / name


def placed(digits: Images, seed: int) -> Images:
    """Each image ``[N, C, H, W]`` at its own place, drawn from the seed, of a canvas 12 pixels higher and wider."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.randint(-PAD, PAD + 1, (len(digits), 2), generator=generator, device="cpu")
    return replace(digits, images=shift(digits.images, offsets, PAD))
