"""The Dice score of each class over many batches, whose pixels are counted together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: A class is predicted where its score is above this.
THRESHOLD = 0.5


@torch.no_grad()
def count_overlaps(scores: Tensor, masks: Tensor) -> dict[str, float]:
    """Count what :func:`dice_scores` divides: sums over the images of a batch, which add up over batches.

    Args:
        scores: ``[B, J, H, W]``.
        masks: ``[B, J, H, W]`` of 0 and 1.
    """
    found, there = scores > THRESHOLD, masks > THRESHOLD
    both, sizes = ((x.sum(dim=(0, 2, 3))).tolist() for x in (found & there, found.int() + there.int()))
    counts = {f"both {k}": float(n) for k, n in enumerate(both)}
    return counts | {f"sizes {k}": float(n) for k, n in enumerate(sizes)}


def dice_scores(counts: Mapping[str, float]) -> list[float]:
    """Return ``2 |A ∩ B| / (|A| + |B|)`` of each class, A and B over all pixels of all images; 1 where both are empty.

    Args:
        counts: sums of those of :func:`count_overlaps`; empty where nothing was segmented.

    Example:
        >>> dice_scores({"both 0": 2.0, "sizes 0": 8.0})
        [0.5]

    Source: Dice 1945, as in :func:`torchcaps.ops.dice_score`.
    """
    sizes = [value for name, value in counts.items() if name.startswith("sizes ")]
    return [2 * counts[f"both {k}"] / size if size else 1.0 for k, size in enumerate(sizes)]


def averages(sums: Mapping[str, float], n: int) -> dict[str, float]:
    """Return the mean loss of n images, a classifier's error, and the mean Dice score of a segmentation."""
    found = {name: sums[name] / n for name in ("loss", "error") if name in sums}
    scores = dice_scores(sums)
    return found | ({"dice": sum(scores) / len(scores)} if scores else {})


def validation_error(result: Mapping[str, Any]) -> float:
    """Return what settings are chosen by: a classifier's validation error, or 1 minus the mean Dice score of masks.

    Args:
        result: of a run, as ``result.json`` has it.

    Example:
        >>> validation_error({"val_loss": 0.3, "val_dice": 0.75})
        0.25
    """
    return result["val_error"] if "val_error" in result else 1 - result["val_dice"]


def dice_lines_of(result: Mapping[str, Any], split: str) -> list[str]:
    """:func:`dice_lines` of a split of a result."""
    return dice_lines(result[f"{split}_dice_per_class"], result["images_per_class"][split])


def dice_lines(scores: Mapping[str, float], counts: Mapping[str, int]) -> list[str]:
    """Lay out the Dice score of each class as a table.

    Args:
        scores: by class.
        counts: how many images show each class.
    """
    rows: Sequence[tuple[str, str, str]] = [("class", "images", "Dice")]
    rows = [*rows, *((name, f"{counts[name]:,}", f"{score:.4f}") for name, score in scores.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
