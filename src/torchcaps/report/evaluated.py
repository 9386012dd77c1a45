"""Evaluate a finished run on its test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.data import Dataset
from torchcaps.progress import with_time_left
from torchcaps.training.batches import split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.config import Experiment
from torchcaps.training.environment import choose_device
from torchcaps.training.logits import are_logits
from torchcaps.training.objective import Answer, read_answer, scores_of_classes
from torchcaps.training.run import Run, with_data_in
from torchcaps.training.tasks import OverlappingPairs
from torchcaps.typed import typed
from torchcaps.types import as_output

#: Number of pairs that are evaluated.
N_PAIRS = 1000


class EvaluatedRun(NamedTuple):
    """A run, its model, and its predictions for the test split (for pairs, for its first thousand).

    Of N images with K classes each ``labels`` and ``predicted`` are classes ``[N, K]``, and ``wrong`` is ``[N]``. Of
    images with several labels all three are bool ``[N, J]``. ``probabilities`` are ``[N, J]``.
    """

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
    probabilities: Tensor
    data: Dataset

    def first_correct(self) -> list[int]:
        """Return the first correctly classified test image of each class that has one."""
        right = [((self.labels[:, 0] == k) & ~self.wrong).nonzero() for k in range(len(self.classes))]
        return [int(found[0]) for found in right if len(found)] or [0]

    def scores(self) -> dict[str, Any]:
        """Compute what is measured of each class, see ``torchcaps.training.objective.scores_of_classes``."""
        return scores_of_classes(Answer(self.labels, self.probabilities, self.predicted, self.wrong), self.classes)

    @torch.no_grad()
    def has_lengths(self) -> bool:
        """Return whether the network's scores are lengths or activations of class capsules, and no logits."""
        return not are_logits(self.config.loss, self.model, as_output(self.model(self.images[:1])))

    @property
    def several_labels(self) -> bool:
        """Whether an image may have several labels."""
        return self.labels.dtype == torch.bool


@torch.no_grad()
@typed
def evaluate_run(run: Run, root: str | Path | None = None) -> EvaluatedRun:
    """Predict the test split of a finished run, whose files lie in ``root`` or where the run found them.

    Raises:
        ValueError: its model or its data cannot be loaded, or it is an auto-encoder's.
    """
    result, config = run.finished(), with_data_in(run.classifier(), root)
    trained, device = load_model(run), choose_device("auto")
    model = trained.model.to(device)
    dataset = data_for(config, trained, run.path)
    pairs, batches = isinstance(config.data.task, OverlappingPairs), split(config, dataset, "test", device)
    found, n = [], 0
    for batch in with_time_left(batches, "predict the test images"):
        said = read_answer(config, model, [as_output(model(view.images)) for view in batch.views()], batch.labels)
        found.append((batch.images, batch.labels, batch.parts, said.predicted, said.mistaken, said.probabilities))
        n += len(batch.images)
        if pairs and n >= N_PAIRS:
            break
    most = N_PAIRS if pairs else n
    kept = (torch.cat(parts)[:most].cpu() for parts in zip(*found, strict=True))
    return EvaluatedRun(run, config, result, model.cpu(), trained.classes, *kept, data=dataset)
