"""What an experiment minimizes, what it counts as an error, and both of a model on one split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from torchcaps.layers.modes import eval_mode
from torchcaps.models import ModelOutput, Reconstruction
from torchcaps.ops import spread_margin
from torchcaps.training.config import Experiment
from torchcaps.training.examples import Batch
from torchcaps.training.per_class import label_scores, recalls
from torchcaps.types import as_output

#: A loss of one's own: from a model's output and the batch to one number.
Loss = Callable[["ModelOutput | Reconstruction", Batch], Tensor]


def answer(model: nn.Module, batch: Batch) -> ModelOutput | Reconstruction:
    """Return the model's output for a batch."""
    return as_output(model(batch.images) if batch.transformation is None else model(batch.images, batch.transformation))


def judge(
    config: Experiment,
    model: nn.Module,
    views: Sequence[Batch],
    mistakes: list[Tensor] | None = None,
    loss: Loss | None = None,
) -> dict[str, float]:
    """Sums over a batch of what an evaluation averages: the loss and, of a classifier, the errors.

    Args:
        config: the experiment.
        model: in evaluation mode.
        views: windows of the same images; their losses are averaged, and their scores before one is called wrong.
        mistakes: of a classifier which images (or which labels of each) are wrong, as :func:`wrong` says it, is added
            to these.
        loss: in place of the experiment's.
    """
    outputs = [answer(model, view) for view in views]
    both = zip(outputs, views, strict=True)
    losses = [total_loss(config, model, output, view, loss=loss).item() for output, view in both]
    sums = {"loss": sum(losses) * len(views[0].images) / len(views)}
    if config.data.task.classifies:
        found = [output for output in outputs if isinstance(output, ModelOutput)]
        scores = [output.scores for output in found]
        threshold = 0.5 if found[0].capsules else 0.0  # of activations, or of logits
        mistaken = wrong(torch.stack(scores).mean(dim=0), views[0].labels, threshold)
        sums["error"] = (mistaken if mistaken.dim() == 1 else mistaken.any(dim=1)).sum().item()
        if mistakes is not None:
            mistakes.append(mistaken)
    return sums


def total_loss(
    config: Experiment,
    model: nn.Module,
    output: ModelOutput | Reconstruction,
    batch: Batch,
    *,
    progress: float = 1.0,
    margin: float | Tensor | None = None,
    loss: Loss | None = None,
) -> Tensor:
    """Return what the experiment minimizes: its task's loss, or a loss of one's own.

    Args:
        config: the experiment.
        model: whose output it is.
        output: of the batch.
        batch: what was shown.
        progress: part of the training that is done, 0 … 1; the spread loss's margin grows with it. Validation
            takes the last one throughout, so that its losses can be compared.
        margin: that margin itself, where it lies in memory; ``progress`` is then not looked at.
        loss: in place of the experiment's.

    Raises:
        ValueError: the experiment has a loss of one's own, and none was handed over.
    """
    if loss is not None:
        return loss(output, batch)
    if config.loss == "own":
        raise ValueError("loss must be handed over, as the experiment has one of your own; got None")
    if config.loss == "spread" and margin is None:
        margin = spread_margin(progress, config.margin)
    return config.data.task.loss(config, model, output, batch, margin)


def wrong(scores: Tensor, labels: Tensor, threshold: float = 0.5) -> Tensor:
    """Return which predictions are wrong: the K largest scores must be the K true classes, all of them.

    Args:
        scores: ``[B, J]``.
        labels: classes ``[B, K]``; or bool ``[B, J]`` of images with several labels each.
        threshold: a score above which a label is predicted, where images have several.

    Returns:
        ``[B]`` bool; of several labels ``[B, J]``, each of them.
    """
    if labels.dtype == torch.bool:
        return (scores > threshold) != labels
    predicted = scores.topk(labels.shape[1], dim=1).indices.sort(dim=1).values
    return (predicted != labels.sort(dim=1).values).any(dim=1)


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
    error (:func:`~torchcaps.training.per_class.recalls`); with several labels an image their recall, precision and F1
    (:func:`~torchcaps.training.per_class.label_scores`).

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
    if classes and mistakes and config.data.task.one_class:
        found |= recalls(torch.cat(labels).squeeze(1), torch.cat(mistakes), classes)
    if classes and mistakes and config.data.multi_label:
        found |= label_scores(torch.cat(labels), torch.cat(mistakes), classes)
    return found
