"""What the scores of two ONNX files are worth on the same images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from torchcaps.training.dice import count_overlaps, dice_scores
from torchcaps.training.examples import Batch
from torchcaps.training.export import open_onnx
from torchcaps.training.objective import wrong


class Compared(NamedTuple):
    """How right each of two files is, and how far they are from each other.

    Attributes:
        error: the share of images that each gets wrong; of masks that of pixels at which any class is wrong.
        dice: of masks the Dice score of each class, by each file; empty lists of classifiers.
        difference: the largest difference of a score between the two.
        n_images: how many images there were.
    """

    error: tuple[float, float]
    dice: tuple[list[float], list[float]]
    difference: float
    n_images: int


def compare_files(one: Path, other: Path, batches: Iterable[Batch], threshold: float) -> Compared:
    """Compare two files on at least one image, batch by batch.

    Args:
        one: an ONNX file of scores.
        other: another one, of the same images and classes.
        batches: images with labels or masks.
        threshold: a score above which a class is predicted, where several may be.
    """
    runs = [open_onnx(path) for path in (one, other)]
    sums, n, difference = (Counter[str](), Counter[str]()), 0, 0.0
    for batch in batches:
        scores = [run(batch.images.float()) for run in runs]
        for total, each in zip(sums, scores, strict=True):
            total.update(_judge(each, batch, threshold))
        difference = max(difference, (scores[0] - scores[1]).abs().max().item())
        n += len(batch.images)
    first, second = sums
    return Compared((first["error"] / n, second["error"] / n), (dice_scores(first), dice_scores(second)), difference, n)


def _judge(scores: Tensor, batch: Batch, threshold: float) -> dict[str, float]:
    """Sum over a batch what is averaged: errors, and the overlaps of masks."""
    mistaken = wrong(scores, batch.labels if batch.masks is None else batch.masks.bool(), threshold)
    mistaken = mistaken if mistaken.dim() == 1 else mistaken.any(dim=1)  # of an image, or of each of its pixels
    sums = {"error": mistaken.double().flatten().unflatten(0, (len(scores), -1)).mean(dim=1).sum().item()}
    return sums if batch.masks is None else sums | count_overlaps(scores, batch.masks)
