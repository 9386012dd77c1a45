"""What an experiment minimizes, what it counts as an error, and both of a model on one split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from torchcaps.layers.modes import eval_mode
from torchcaps.models import ModelOutput, Reconstruction, Transforming
from torchcaps.ops import margin_loss, pose_loss, reconstruction_loss, spread_loss, spread_margin, transform_pose
from torchcaps.training.batches import Batch
from torchcaps.training.config import Experiment
from torchcaps.training.per_class import recalls
from torchcaps.types import as_output

#: A loss of one's own: from a model's output and the batch to one number.
Loss = Callable[["ModelOutput | Reconstruction", Batch], Tensor]


def answer(model: nn.Module, batch: Batch) -> ModelOutput | Reconstruction:
    """What the model says to a batch."""
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
        mistakes: of a classifier which images are wrong, ``[B]`` bool, is added to these.
        loss: in place of the experiment's.
    """
    outputs = [answer(model, view) for view in views]
    both = zip(outputs, views, strict=True)
    losses = [total_loss(config, model, output, view, loss=loss).item() for output, view in both]
    sums = {"loss": sum(losses) * len(views[0].images) / len(views)}
    scores = [output.scores for output in outputs if isinstance(output, ModelOutput)]
    if scores:
        mistaken = wrong(torch.stack(scores).mean(dim=0), views[0].labels)
        sums["error"] = mistaken.sum().item()
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
    """Of a classifier its loss, plus the weighted reconstruction loss where it has a decoder; of an auto-encoder
    the squared error of what it paints, plus the weighted inconsistency of its poses.

    With several classes in an image each is reconstructed from its own capsule alone, and their
    losses add up.

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
    if isinstance(output, Reconstruction):
        squared = reconstruction_loss(output.images, batch.parts.squeeze(1))
        return squared + config.consistency * _inconsistency(model, output, batch) if config.consistency else squared
    if config.loss == "spread" and margin is None:
        margin = spread_margin(progress, config.margin)
    total = _classification_loss(config, output.scores.float(), batch.labels, margin)
    decoder = getattr(model, "decoder", None)
    if decoder is None or config.reconstruction == 0:
        return total
    images = decoder.each(output.capsules[-1].pose, batch.labels)  # [B, K, C, H, W]
    error = reconstruction_loss(images.flatten(0, 1), batch.parts.flatten(0, 1)) * batch.labels.shape[1]
    return total + config.reconstruction * error


def _classification_loss(config: Experiment, scores: Tensor, labels: Tensor, margin: float | Tensor | None) -> Tensor:
    present = torch.zeros_like(scores).scatter(1, labels, 1.0)  # [B, J]
    if config.loss == "spread":
        assert margin is not None
        return spread_loss(scores, labels.squeeze(1), margin)
    if config.loss == "margin":
        return margin_loss(scores, present)
    if labels.shape[1] == 1:
        return F.cross_entropy(scores, labels.squeeze(1))
    return F.binary_cross_entropy_with_logits(scores, present, reduction="none").sum(dim=1).mean()


def _inconsistency(model: nn.Module, output: Reconstruction, batch: Batch) -> Tensor:
    assert isinstance(model, Transforming)
    assert batch.transformation is not None
    found = model.encode(batch.parts.squeeze(1)).pose
    return pose_loss(found, transform_pose(output.capsules.pose, batch.transformation), model.unit)


def wrong(scores: Tensor, labels: Tensor) -> Tensor:
    """Which predictions are wrong: the K largest scores must be the K true classes, all of them.

    Args:
        scores: ``[B, J]``.
        labels: ``[B, K]``.

    Returns:
        ``[B]`` bool.
    """
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
    error (:func:`~torchcaps.training.per_class.recalls`).

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
