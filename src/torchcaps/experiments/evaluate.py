"""Loss and error of a model on one split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from torchcaps.experiments.batches import Batch
from torchcaps.experiments.experiment import Experiment
from torchcaps.experiments.objective import Loss, judge
from torchcaps.experiments.per_class import recalls
from torchcaps.layers.modes import eval_mode


@torch.no_grad()
def evaluate(
    config: Experiment,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    classes: Sequence[str] = (),
    progress: bool = False,
    loss: Loss | None = None,
) -> dict[str, Any]:
    """Mean loss and, of a classifier, error as a fraction of 1 (for pairs both classes must be right).

    Where the batches have several windows of each image, their scores are averaged before one is called
    wrong, and their losses are averaged too.

    With the names of the ``classes`` a classifier of single images has the recall of each besides, and the balanced
    error (:func:`~torchcaps.experiments.per_class.recalls`).

    A ``loss`` of one's own takes the place of the experiment's.

    Evaluated in float32, whatever the training's precision, with the model in evaluation mode.
    """
    sums, n = Counter[str](), 0
    labels, mistakes = list[Tensor](), list[Tensor]()
    with eval_mode(model):
        for batch in tqdm(batches, desc="evaluate", leave=False, disable=not progress):
            sums.update(judge(config, model, batch.views(), mistakes, loss))
            labels.append(batch.labels)
            n += len(batch.images)
    found: dict[str, Any] = {name: total / n for name, total in sums.items()}
    if classes and mistakes and not config.data.pairs:
        found |= recalls(torch.cat(labels).squeeze(1), torch.cat(mistakes), classes)
    return found
