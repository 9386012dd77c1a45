"""scikit-learn's bundled digits: real handwriting that needs no network."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from torchcaps.data.images import Dataset, Images, fixed_order, resized

#: Sizes of the fixed splits of the 1,797 digits, and the seed that picked them.
N_TEST, N_VALIDATION, SPLIT_SEED = 360, 180, 0


def load_digits(
    root: Path | None = None,  # noqa: ARG001 (every loader takes it)
    image_size: tuple[int, int] | None = None,
) -> Dataset:
    """1,797 handwritten digits (1,257 to train, 180 to validate, 360 to test), laid out as MNIST's.

    The originals are 8×8 with 17 grey levels; they are shown here at 20×20, smoothly interpolated,
    in the middle of 28×28, which is how MNIST places its digits.

    Args:
        root: not used: the data come with scikit-learn.
        image_size: (height, width) to resize to; 28×28 by default.

    Source: UCI "Optical Recognition of Handwritten Digits" (Alpaydin, Kaynak 1998).
    """
    from sklearn.datasets import load_digits as bundled

    pixels, target = bundled(return_X_y=True)  # [N, 64] in 0 … 16, [N]
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) * (255 / 16)
    images = resized(images.round().to(torch.uint8), (20, 20))
    images = resized(F.pad(images, (4, 4, 4, 4)), image_size)
    every = Images(images, torch.from_numpy(target).long())
    order = fixed_order(len(every), SPLIT_SEED)
    return Dataset(
        "digits",
        tuple("0123456789"),
        train=every.take(order[N_TEST + N_VALIDATION :]),
        val=every.take(order[N_TEST : N_TEST + N_VALIDATION]),
        test=every.take(order[:N_TEST]),
    )
