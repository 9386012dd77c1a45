"""What a network is trained to do: name classes of an image, or of each pixel, or follow a transformation.

Each task is one object: how images become examples, what is minimized, and what is measured.
``config.data.task`` is that of an experiment.

Sources: Sabour et al. 2017, sections 3, 4.1 and 6; Hinton et al. 2018, section 3; Hinton et al. 2011; LaLonde, Bagci
2018.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.data import Dataset, Images, Pairs
from torchcaps.models import ModelOutput, Reconstruction, SegmentationOutput, Transforming
from torchcaps.ops import (
    dice_loss,
    margin_loss,
    pixel_margin_loss,
    pose_loss,
    reconstruction_loss,
    spread_loss,
    transform_pose,
    weighted_cross_entropy,
)
from torchcaps.training.examples import Batch, PairedExamples, SegmentedExamples, SingleExamples, TransformedExamples
from torchcaps.training.pose_metrics import pose_metrics
from torchcaps.training.processes import ALONE, World

if TYPE_CHECKING:
    from torchcaps.training.config import Data, Experiment

#: Fields of :class:`Data` that pairs alone have a use for.
_OF_PAIRS = ("n_pairs", "blend")


class Task(ABC):
    """What a network is trained to do.

    Attributes:
        examples: what makes its batches.
        few: fields of the data with which an epoch has eight examples.
        shown: what the network sees, in words.
        classifies: whether it names classes, so that there is an error.
        kind: of network, in words.
        one_class: whether it names one class for each image, so that a class has a recall.
        segments: whether it says of every pixel what is there, so that a class has a Dice score.
        error: what settings are chosen by on validation images, in words; None where there is nothing to choose by.
    """

    examples: ClassVar[type[SingleExamples] | type[PairedExamples]] = SingleExamples
    few: ClassVar[Mapping[str, Any]] = {"n_shown": 8}
    shown: ClassVar[str] = "images"
    classifies: ClassVar[bool] = True
    kind: ClassVar[str] = "a classifier"
    one_class: ClassVar[bool] = False
    segments: ClassVar[bool] = False
    error: ClassVar[str | None] = "validation error"

    def check_tunable(self, recipe: str) -> None:
        """Refuse to choose the settings of a recipe by an error that there is not.

        Raises:
            ValueError: naming the recipe.
        """
        if self.error is None:
            raise ValueError(f"recipe must be one of a classifier or of masks, got {recipe}, of {self.kind}")

    def check_unused(self, data: Data) -> None:
        """Refuse settings that would do nothing.

        Raises:
            ValueError: naming the field.
        """
        for field in _OF_PAIRS:
            if getattr(data, field) != getattr(type(data)(), field):
                raise ValueError(f"data.{field} must be left alone without data.pairs, got {getattr(data, field)}")

    def check_images(self, data: Data, images: Images, which: str) -> None:
        """Refuse images that no example can be made of; ``which`` says how they were chosen.

        Raises:
            ValueError: there are too few.
        """
        if not len(images):
            raise ValueError(f"data must have images: {which} leave none, got {data.name}")

    def warning(self, dataset: Dataset) -> str | None:
        """Return what is to be known of the numbers of such data, if anything."""
        return None

    def image_shape(self, data: Data, dataset: Dataset) -> tuple[int, int, int]:
        """Return (channels, height, width) of what the network sees."""
        return (dataset.image_shape[0], *(data.crop or dataset.image_shape[1:]))

    @abstractmethod
    def loss(
        self, config: Experiment, model: nn.Module, output: Any, batch: Batch, margin: float | Tensor | None
    ) -> Tensor:
        """Return what is minimized; ``margin`` is the spread loss's."""

    def metrics(self, model: nn.Module, batches: Iterable[Batch], world: World = ALONE) -> dict[str, Any]:
        """Return what is measured after training, beside loss and error, with the model in evaluation mode.

        Of several processes, the ``world``, each has batches of its own.
        """
        return {}


class Classification(Task):
    """Name the class of each image, and reconstruct it where the network has a decoder."""

    one_class = True

    def loss(
        self, config: Experiment, model: nn.Module, output: ModelOutput, batch: Batch, margin: float | Tensor | None
    ) -> Tensor:
        """Return the classification loss, plus the weighted reconstruction loss where there is a decoder.

        With several classes in an image each is reconstructed from its own capsule alone, and their losses add up.
        """
        total = self._classification_loss(config.loss, output.scores.float(), batch.labels, margin)
        decoder = getattr(model, "decoder", None)
        if decoder is None or config.reconstruction == 0:
            return total
        images = decoder.each(output.capsules[-1].pose, batch.labels)  # [B, K, C, H, W]
        error = reconstruction_loss(images.flatten(0, 1), batch.parts.flatten(0, 1)) * batch.labels.shape[1]
        return total + config.reconstruction * error

    def _classification_loss(self, name: str, scores: Tensor, labels: Tensor, margin: float | Tensor | None) -> Tensor:
        if name == "spread":
            assert margin is not None
            return spread_loss(scores, labels.squeeze(1), margin)
        if name == "margin":
            return margin_loss(scores, _present(scores, labels))
        return F.cross_entropy(scores, labels.squeeze(1))

    def check_images(self, data: Data, images: Images, which: str) -> None:
        """Refuse images with several labels."""
        super().check_images(data, images, which)
        if images.several_labels:
            raise ValueError(
                f"data.multi_label must be True for {data.name}, whose images have several labels; got False"
            )

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities ``[B, J]`` of the classes, of logits ``[B, J]``."""
        return logits.softmax(dim=1)


class MultiLabel(Classification):
    """Name all classes that an image shows, and reconstruct it from their capsules together."""

    one_class = False

    def check_images(self, data: Data, images: Images, which: str) -> None:
        """Refuse images with one label each."""
        Task.check_images(self, data, images, which)
        if not images.several_labels:
            raise ValueError(
                f"data.multi_label must be False for {data.name}, whose images have one label each; got True"
            )

    def loss(
        self, config: Experiment, model: nn.Module, output: ModelOutput, batch: Batch, margin: float | Tensor | None
    ) -> Tensor:
        """Return the loss of every label, plus that of one reconstruction from all classes that are there."""
        scores, present = output.scores.float(), batch.labels.float()
        if config.loss == "margin":
            total = margin_loss(scores, present)
        else:
            total = F.binary_cross_entropy_with_logits(scores, present, reduction="none").sum(dim=1).mean()
        decoder = getattr(model, "decoder", None)
        if decoder is None or config.reconstruction == 0:
            return total
        images = decoder(output.capsules[-1].pose, present)
        return total + config.reconstruction * reconstruction_loss(images, batch.parts.squeeze(1))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each label by itself."""
        return logits.sigmoid()


class OverlappingPairs(Classification):
    """Name both classes of two overlapping images, and reconstruct each from its own capsule."""

    examples = PairedExamples
    few: ClassVar[Mapping[str, Any]] = {"n_pairs": (8, 8)}
    shown = "pairs of overlapping images"
    one_class = False

    def check_unused(self, data: Data) -> None:
        """Refuse a shift, which pairs have of their own."""
        plain = type(data)().shift
        if data.shift != plain:
            raise ValueError(f"data.shift must be left at {plain} with data.pairs, which shift by 4; got {data.shift}")

    def check_images(self, data: Data, images: Images, which: str) -> None:
        """Refuse images of which no pair can be made."""
        if images.several_labels:
            raise ValueError(f"data.pairs must be False for {data.name}, whose images have several labels; got True")
        if len(images.labels.unique()) < 2:
            raise ValueError(f"data must have two classes to make pairs of: {which} leave one or none, got {data.name}")

    def warning(self, dataset: Dataset) -> str | None:
        """Warn where every pair shows the same two classes."""
        if len(dataset.classes) > 2:
            return None
        return (
            f"both classes, {' and '.join(dataset.classes)}, are in every pair: none can be misclassified, and an "
            "error of 0 says nothing"
        )

    def image_shape(self, data: Data, dataset: Dataset) -> tuple[int, int, int]:
        """Return (channels, height, width) of a pair."""
        return Pairs(dataset.train).image_shape

    def _classification_loss(self, name: str, scores: Tensor, labels: Tensor, margin: float | Tensor | None) -> Tensor:
        present = _present(scores, labels)
        if name == "margin":
            return margin_loss(scores, present)
        return F.binary_cross_entropy_with_logits(scores, present, reduction="none").sum(dim=1).mean()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class by itself."""
        return logits.sigmoid()


class PoseAutoencoding(Task):
    """Reconstruct the transformed image from the image and the transformation."""

    examples = TransformedExamples
    error = None
    classifies = False
    kind = "an auto-encoder"

    def loss(
        self, config: Experiment, model: nn.Module, output: Reconstruction, batch: Batch, margin: float | Tensor | None
    ) -> Tensor:
        """Return the squared error of the reconstruction, plus the weighted inconsistency of the poses."""
        squared = reconstruction_loss(output.images, batch.parts.squeeze(1))
        if not config.consistency:
            return squared
        assert isinstance(model, Transforming)
        assert batch.transformation is not None
        poses = model.encode(batch.parts.squeeze(1)).pose
        wanted = transform_pose(output.capsules.pose, batch.transformation)
        if batch.share is not None:  # poses count relative to their size in the whole batch
            poses, wanted = batch.share.joined(poses), batch.share.joined(wanted)
        return squared + config.consistency * pose_loss(poses, wanted, model.unit)

    def metrics(self, model: nn.Module, batches: Iterable[Batch], world: World = ALONE) -> dict[str, Any]:
        """Return how the poses follow the images, of a network that has some."""
        return pose_metrics(model, batches, world) if isinstance(model, Transforming) else {}


def _dice_cross_entropy(scores: Tensor, masks: Tensor) -> Tensor:
    return dice_loss(scores, masks) + weighted_cross_entropy(scores, masks)


#: Losses of scores and masks ``[B, J, H, W]``.
_PIXEL_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": weighted_cross_entropy,
    "dice": dice_loss,
    "dice_cross_entropy": _dice_cross_entropy,
    "margin": pixel_margin_loss,
}


class Segmentation(Task):
    """Say of every pixel which classes are there, and reconstruct these where the network has a decoder."""

    examples = SegmentedExamples
    shown = "images with masks"
    classifies = False
    kind = "a network that segments"
    segments = True
    error = "validation Dice error"  # 1 − Dice

    def check_images(self, data: Data, images: Images, which: str) -> None:
        """Refuse images without masks."""
        super().check_images(data, images, which)
        if images.masks is None:
            raise ValueError(
                f"data.masks must be False for {data.name}, whose images have no masks (those of digit-masks and "
                "mask-folder have); got True"
            )

    def loss(
        self,
        config: Experiment,
        model: nn.Module,
        output: SegmentationOutput,
        batch: Batch,
        margin: float | Tensor | None,
    ) -> Tensor:
        """Return the loss of the pixels, plus that of the reconstruction of all that is in a mask."""
        assert batch.masks is not None
        total = _PIXEL_LOSSES[config.loss](output.scores, batch.masks)
        decoder = getattr(model, "decoder", None)
        if decoder is None or config.reconstruction == 0:
            return total
        inside = batch.masks.amax(dim=1, keepdim=True)  # [B, 1, H, W]
        images = decoder(output.capsules[-1], batch.masks)
        return total + config.reconstruction * reconstruction_loss(images * inside, batch.parts.squeeze(1) * inside)


def task_of(data: Data) -> Task:
    """Return the task that the settings of the data ask for."""
    if data.masks:
        return Segmentation()
    if data.transformed:
        return PoseAutoencoding()
    if data.pairs:
        return OverlappingPairs()
    return MultiLabel() if data.multi_label else Classification()


def _present(scores: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for each class ``[B, J]`` that is among the labels ``[B, K]``, else 0."""
    return torch.zeros_like(scores).scatter(1, labels, 1.0)
