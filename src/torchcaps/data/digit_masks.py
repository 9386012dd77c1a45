"""Overlapping digits with a mask for each class: segmentation that needs no download."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_two
from torchcaps.data.digits import load_digits
from torchcaps.data.images import Dataset, Images, labels_of, resized
from torchcaps.data.mask_file import nearest

#: Side of an image, and of the digits in it.
SIZE, DIGIT = 32, 20
#: Pixels brighter than this, of 255, belong to a digit.
INK = 76
#: Images to validate and to test on.
N_VALIDATION, N_TEST = 200, 500
#: Of the draws of each split.
_SEEDS = {"train": 0, "val": 1, "test": 2}


def load_digit_masks(
    root: Path | None = None,  # noqa: ARG001 (every loader takes it)
    image_size: tuple[int, int] | None = None,
    n_classes: int = 3,
    n_images: int = 4000,
) -> Dataset:
    """Two of scikit-learn's digits at random places of 32×32 pixels, with a mask for each class.

    Where digits overlap, a pixel belongs to both. Digits that validate or test are in no image to train on: splits are
    those of ``digits``, from which pairs are drawn. Both digits may be of one class.

    Args:
        root: not used: the data come with scikit-learn.
        image_size: (height, width) to resize to; 32×32 by default. Masks take the nearest pixel.
        n_classes: digits 0 … n_classes − 1 are shown, 1 to 10.
        n_images: images to train on; 200 validate and 500 test.

    Raises:
        ValueError: sizes below 1, or more than 10 classes.

    Source: UCI "Optical Recognition of Handwritten Digits" (Alpaydin, Kaynak 1998).
    """
    check_at_least("data.options.n_classes", n_classes, 1, below=11)
    check_at_least("data.options.n_images", n_images, 1)
    if image_size is not None:
        check_two("data.image_size", image_size, 1)
    digits = load_digits()
    numbers = {"train": n_images, "val": N_VALIDATION, "test": N_TEST}
    parts = {}
    for name, n in numbers.items():
        images, masks = draw_digits(digits.splits[name], n_classes, n, _SEEDS[name])
        masks = nearest(masks, image_size)
        parts[name] = Images(resized(images, image_size), labels_of(masks), masks=masks)
    return Dataset("digit-masks", digits.classes[:n_classes], parts["train"], parts["val"], parts["test"])


def draw_digits(digits: Images, n_classes: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw images of two digits each.

    Args:
        digits: of 28×28 with an empty edge of 4.
        n_classes: digits 0 … n_classes − 1 are drawn.
        n: how many images.
        seed: of the draw.

    Returns:
        Images ``[n, 1, 32, 32]`` uint8, the brighter of both digits at each pixel; masks ``[n, n_classes, 32, 32]``
        bool.
    """
    generator = torch.Generator().manual_seed(seed)
    wanted = digits.labels < n_classes
    crops, labels = digits.images[wanted][:, 0, 4:24, 4:24], digits.labels[wanted]
    images = torch.zeros(n, 1, SIZE, SIZE, dtype=torch.uint8)
    masks = torch.zeros(n, n_classes, SIZE, SIZE, dtype=torch.bool)
    for image, mask in zip(images, masks, strict=True):
        for which in torch.randint(len(crops), (2,), generator=generator, device="cpu"):
            row, column = torch.randint(SIZE - DIGIT + 1, (2,), generator=generator, device="cpu").tolist()
            place = slice(row, row + DIGIT), slice(column, column + DIGIT)
            image[0][place] = torch.maximum(image[0][place], crops[which])
            mask[labels[which]][place] |= crops[which] > INK
    return images, masks
