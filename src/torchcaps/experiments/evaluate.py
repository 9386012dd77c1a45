"""Loss and error of a model on one split."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from tqdm import tqdm

from torchcaps.experiments.batches import Batch
from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.objective import total_loss, wrong


@torch.no_grad()
def evaluate(
    config: Experiment, model: nn.Module, batches: Iterable[Batch], *, progress: bool = False
) -> dict[str, float]:
    """Mean loss, and error as a fraction of 1 (for pairs both classes must be right).

    Where the batches have several windows of each image, their scores are averaged before one is called
    wrong, and their losses are averaged too.

    Evaluated in float32, whatever the training's precision, with the model in evaluation mode.
    """
    was_training = model.training
    model.eval()
    loss, errors, n = 0.0, 0, 0
    for batch in tqdm(batches, desc="evaluate", leave=False, disable=not progress):
        views = batch.views()
        scores = torch.zeros(())
        for view in views:
            output = model(view.images)
            loss += total_loss(config, model, output, view).item() * len(view.images) / len(views)
            scores = output.scores / len(views) + scores
        errors += int(wrong(scores, batch.labels).sum())
        n += len(batch.images)
    model.train(was_training)
    return {"loss": loss / n, "error": errors / n}
