"""Evaluate a finished run on its test images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from torchcaps.data import Dataset
from torchcaps.training.batches import split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.config import Experiment
from torchcaps.training.environment import choose_device
from torchcaps.training.objective import wrong
from torchcaps.training.run import Run, with_data_in
from torchcaps.training.tasks import OverlappingPairs
from torchcaps.types import as_output

#: Number of pairs that are evaluated.
N_PAIRS = 1000


class EvaluatedRun(NamedTuple):
    """A run, its model, and its predictions for the test split (for pairs, for its first thousand)."""

    run: Run
    config: Experiment
    result: dict[str, Any]
    model: nn.Module
    classes: tuple[str, ...]
    images: Tensor
    labels: Tensor
    parts: Tensor
    predicted: Tensor
    wrong: Tensor
    data: Dataset

    def first_correct(self) -> list[int]:
        """Return the first correctly classified test image of each class that has one."""
        right = [((self.labels[:, 0] == k) & ~self.wrong).nonzero() for k in range(len(self.classes))]
        return [int(found[0]) for found in right if len(found)] or [0]


@torch.no_grad()
def evaluate_run(run: Run, root: str | Path | None = None) -> EvaluatedRun:
    """Predict the test split of a finished run, whose files lie in ``root`` or where the run found them.

    Raises:
        ValueError: its model or its data cannot be loaded, or it is an auto-encoder's.
    """
    result, config = run.finished(), with_data_in(run.classifier(), root)
    if config.data.multi_label:
        raise ValueError(
            f"{run.path} must hold a classifier of one label an image for a report, got several; recall, precision and "
            f"F1 of each are in {run.result}"
        )
    trained, device = load_model(run), choose_device("auto")
    model = trained.model.to(device)
    dataset = data_for(config, trained, run.path)
    batches, pairs = split(config, dataset, "test", device), isinstance(config.data.task, OverlappingPairs)
    found, n = [], 0
    for batch in tqdm(batches, desc="predict the test images", leave=False, disable=not sys.stderr.isatty()):
        scores = torch.stack([as_output(model(view.images)).scores for view in batch.views()]).mean(dim=0)
        predicted = scores.topk(batch.labels.shape[1], dim=1).indices
        found.append((batch.images, batch.labels, batch.parts, predicted, wrong(scores, batch.labels)))
        n += len(batch.images)
        if pairs and n >= N_PAIRS:
            break
    most = N_PAIRS if pairs else n
    kept = (torch.cat(parts)[:most].cpu() for parts in zip(*found, strict=True))
    return EvaluatedRun(run, config, result, model.cpu(), trained.classes, *kept, data=dataset)
