"""What an experiment minimizes, what it counts as an error, and both of a model on one split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.layers.modes import eval_mode
from torchcaps.models import ModelOutput, Reconstruction, SegmentationOutput
from torchcaps.ops import spread_margin
from torchcaps.progress import with_time_left
from torchcaps.training.config import Experiment
from torchcaps.training.dice import averages, count_overlaps, dice_scores
from torchcaps.training.examples import Batch
from torchcaps.training.logits import are_logits
from torchcaps.training.per_class import class_scores, label_scores, probability_scores
from torchcaps.training.processes import ALONE, World
from torchcaps.training.tasks import Classification
from torchcaps.types import as_output

#: What networks return.
Output = ModelOutput | Reconstruction | SegmentationOutput
#: A loss of one's own: from a model's output and the batch to one number.
Loss = Callable[["Output", Batch], Tensor]


class Answer(NamedTuple):
    """Hold what a classifier said of images, on the CPU.

    Attributes:
        labels: what they show, as batches have it: ``[N, K]``, or bool ``[N, J]``.
        probabilities: of the classes ``[N, J]``, float64: lengths or activations of capsules, or the softmax of logits.
        predicted: the K most probable classes ``[N, K]``; or bool ``[N, J]``.
        mistaken: which images ``[N]``, or which labels of each ``[N, J]``, are wrong, as :func:`wrong` says it.
    """

    labels: Tensor
    probabilities: Tensor
    predicted: Tensor
    mistaken: Tensor


def read_answer(config: Experiment, model: nn.Module, outputs: Sequence[ModelOutput], labels: Tensor) -> Answer:
    """Read what a classifier says off its outputs for several windows of the same images, their scores averaged.

    Args:
        config: the experiment, of a classifier.
        model: whose outputs they are.
        outputs: one for each window.
        labels: of the images.
    """
    task = config.data.task
    assert isinstance(task, Classification)
    scores, logits = (
        torch.stack([output.scores for output in outputs]).mean(dim=0),
        are_logits(config.loss, model, outputs[0]),
    )
    threshold = 0.0 if logits else 0.5
    mistaken, several = wrong(scores, labels, threshold), labels.dtype == torch.bool
    predicted = scores > threshold if several else scores.topk(labels.shape[1], dim=1).indices
    scores = scores.cpu().double()  # Apple's GPUs have no float64
    probabilities = task.probabilities(scores) if logits else scores
    return Answer(labels.cpu(), probabilities, predicted.cpu(), mistaken.cpu())


def answer(model: nn.Module, batch: Batch) -> Output:
    """Return the model's output for a batch."""
    return as_output(model(batch.images) if batch.transformation is None else model(batch.images, batch.transformation))


def judge(
    config: Experiment,
    model: nn.Module,
    views: Sequence[Batch],
    answers: list[Answer] | None = None,
    loss: Loss | None = None,
) -> dict[str, float]:
    """Sums over a batch of what an evaluation averages: the loss, errors of a classifier, overlaps of a segmentation.

    Args:
        config: the experiment.
        model: in evaluation mode.
        views: windows of the same images; their losses are averaged, and their scores before one is called wrong.
        answers: of a classifier what it said is added to these.
        loss: in place of the experiment's.
    """
    if not len(views[0].images):  # of a process that has no part of the last batches
        return {}
    outputs = [answer(model, view) for view in views]
    both = zip(outputs, views, strict=True)
    losses = [total_loss(config, model, output, view, loss=loss).item() for output, view in both]
    sums = {"loss": sum(losses) * len(views[0].images) / len(views)}
    if isinstance(config.data.task, Classification):
        said = read_answer(config, model, [each for each in outputs if isinstance(each, ModelOutput)], views[0].labels)
        sums["error"] = (said.mistaken if said.mistaken.dim() == 1 else said.mistaken.any(dim=1)).sum().item()
        if answers is not None:
            answers.append(said)
    if views[0].masks is not None:
        assert isinstance(outputs[0], SegmentationOutput)
        sums |= count_overlaps(outputs[0].scores, views[0].masks)
    return sums


def total_loss(
    config: Experiment,
    model: nn.Module,
    output: Output,
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
        scores: ``[B, J]``, or ``[B, J, H, W]`` of each pixel.
        labels: classes ``[B, K]``; or bool, of the scores' shape, of images or pixels with several labels each.
        threshold: a score above which a label is predicted, where there are several.

    Returns:
        ``[B]`` bool; of several labels each of them, in the scores' shape.
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
    answers: list[Answer] | None = None,
    world: World = ALONE,
) -> dict[str, Any]:
    """Mean loss and, of a classifier, error as a fraction of 1 (for pairs both classes must be right).

    A network that segments has a mean Dice score of the classes instead, all pixels of all images counted together;
    with the names of the ``classes`` ``dice_per_class`` besides.

    Where the batches have several windows of each image, their scores are averaged before one is called
    wrong, and their losses are averaged too.

    With the names of the ``classes`` a classifier has recall and precision of each besides, and their means
    (:func:`~torchcaps.training.per_class.class_scores`, or :func:`~torchcaps.training.per_class.label_scores` with
    several labels an image), and how good its probabilities are
    (:func:`~torchcaps.training.per_class.probability_scores`). One of pairs has not.

    A ``loss`` of one's own takes the place of the experiment's. What a classifier said is added to ``answers``. Of
    several processes, the ``world``, each gives its own batches, and all get what one would of all batches.

    Evaluated in float32, whatever the training's precision, with the model in evaluation mode.
    """
    sums, n = Counter[str](), 0
    answers = list[Answer]() if answers is None else answers
    with eval_mode(model):
        for batch in with_time_left(batches, "evaluate") if progress else batches:
            sums.update(judge(config, model, batch.views(), answers, loss))
            n += len(batch.images)
    sums, n, answers = _of_all(world, sums, n, answers)
    found: dict[str, Any] = averages(sums, n)
    if classes and "dice" in found:
        found["dice_per_class"] = dict(zip(classes, dice_scores(sums), strict=True))
    if classes and answers and (config.data.task.one_class or config.data.multi_label):
        found |= scores_of_classes(joined(answers), classes)
    return found


def _of_all(world: World, sums: Counter[str], n: int, answers: list[Answer]) -> tuple[Counter[str], int, list[Answer]]:
    """Put together what the processes found."""
    if world.size == 1:
        return sums, n, answers
    total = Counter[str]()
    found = world.gathered((sums, n, answers))
    for of_one, *_ in found:
        total.update(of_one)
    return total, sum(each[1] for each in found), [each for *_, of_one in found for each in of_one]


def joined(answers: Sequence[Answer]) -> Answer:
    """Join what was said of several batches."""
    return Answer(*map(torch.cat, zip(*answers, strict=True)))


def scores_of_classes(said: Answer, classes: Sequence[str]) -> dict[str, Any]:
    """Compute what is measured of each class, where images have one label each, or several; see :func:`evaluate`."""
    if said.labels.dtype == torch.bool:
        labels, found = said.labels, label_scores(said.labels, said.mistaken, classes)
    else:
        labels = said.labels.squeeze(1)
        found = class_scores(labels, said.predicted[:, 0], classes)
    return found | probability_scores(labels, said.probabilities, classes)
