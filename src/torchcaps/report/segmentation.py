"""Pictures of a network that segments: images, true and predicted masks, and the Dice score of each class."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps import explain
from torchcaps.ops import dice_score
from torchcaps.progress import with_time_left
from torchcaps.report import page
from torchcaps.report.page import Album
from torchcaps.training.batches import split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.dice import THRESHOLD
from torchcaps.training.environment import choose_device
from torchcaps.training.run import Run, with_data_in

#: Examples in a picture.
_N = 8


class _Segmented(NamedTuple):
    """Hold test images, their masks and the network's scores, each of N images, on the CPU."""

    images: Tensor
    masks: Tensor
    scores: Tensor
    classes: tuple[str, ...]


def pictures_of_segmentation(album: Album, run: Run, root: str | Path | None) -> list[str]:
    """Build the sections of a run on images with masks."""
    found = _segment(run, root)
    each = dice_score(found.scores, found.masks, threshold=THRESHOLD, per_image=True)  # [N, J]
    shown = found.masks.flatten(2).any(dim=2)
    # Of each image only the classes that are there or predicted: of others the score is 1 for nothing.
    counted = shown | (found.scores > THRESHOLD).flatten(2).any(dim=2)
    mean = torch.where(counted, each, 0).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
    mean = torch.where(counted.any(dim=1), mean, 1.0)
    return [_classes(found, each, shown), _examples(album, found), _worst(album, found, mean)]


@torch.no_grad()
def _segment(run: Run, root: str | Path | None) -> _Segmented:
    config, trained = with_data_in(run.experiment(), root), load_model(run)
    batches = split(config, data_for(config, trained, run.path), "test", choose_device("cpu"))
    found = list[tuple[Tensor, Tensor, Tensor]]()
    for batch in with_time_left(batches, "segment the test images"):
        assert batch.masks is not None
        found.append((batch.images, batch.masks, trained.model(batch.images).scores))
    images, masks, scores = map(torch.cat, zip(*found, strict=True))
    return _Segmented(images, masks, scores, trained.classes)


def _classes(found: _Segmented, each: Tensor, shown: Tensor) -> str:
    """Show the Dice score of each class."""
    overall = dice_score(found.scores, found.masks, threshold=THRESHOLD)
    area = found.masks.mean(dim=(0, 2, 3))
    rows = []
    for k, name in enumerate(found.classes):
        n = int(shown[:, k].sum())
        of_images = f"{each[shown[:, k], k].mean():.4f}" if n else "–"
        rows.append((name, f"{n:,}", f"{100 * area[k]:.1f} %", f"{overall[k]:.4f}", of_images))
    head = ("class", "test images", "of all pixels", "Dice", "mean of its images")
    text = (
        f"Dice is 2 |A ∩ B| / (|A| + |B|) of true and predicted pixels, over all {len(found.images):,} test images "
        f"together: 1 where they are the same. The last column measures each image that shows the class by itself, and "
        f"averages. A class is predicted where its score is above {THRESHOLD:g}."
    )
    return page.section("Dice score of each class", page.paragraph(text), page.table(head, rows, numbers=True))


def _examples(album: Album, found: _Segmented) -> str:
    """Show the first test images."""
    figure = explain.draw_masks(found.images[:_N], found.masks[:_N], found.scores[:_N], found.classes)
    text = "The first test images, their true masks, and the predicted ones. Where classes overlap, colours are mixed."
    return page.section("Examples", album.add("masks", figure, text))


def _worst(album: Album, found: _Segmented, mean: Tensor) -> str:
    """Show the images with the lowest scores."""
    places = mean.argsort(stable=True)[:_N]
    figure = explain.draw_masks(found.images[places], found.masks[places], found.scores[places], found.classes)
    text = (
        f"The test images with the lowest Dice score, {mean[places[0]]:.3f} to {mean[places[-1]]:.3f} (mean of the "
        "classes that an image shows or that are predicted in it)."
    )
    return page.section("Worst examples", album.add("worst-masks", figure, text))
