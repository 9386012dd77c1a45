"""Loss and error of a model on one split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import nn
from tqdm import tqdm

from torchcaps.analysis.needs import evaluating
from torchcaps.experiments.batches import Batch
from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.objective import judge


@torch.no_grad()
def evaluate(
    config: Experiment, model: nn.Module, batches: Iterable[Batch], *, progress: bool = False
) -> dict[str, float]:
    """Mean loss and, of a classifier, error as a fraction of 1 (for pairs both classes must be right).

    Where the batches have several windows of each image, their scores are averaged before one is called
    wrong, and their losses are averaged too.

    Evaluated in float32, whatever the training's precision, with the model in evaluation mode.
    """
    sums, n = Counter[str](), 0
    with evaluating(model):
        for batch in tqdm(batches, desc="evaluate", leave=False, disable=not progress):
            sums.update(judge(config, model, batch.views()))
            n += len(batch.images)
    return {name: total / n for name, total in sums.items()}
