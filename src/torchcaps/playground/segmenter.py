"""One trained network of the page that segments: what it says of every pixel."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor, nn

from torchcaps.data import Images
from torchcaps.playground.network import run_of
from torchcaps.training.checkpoint import data_for, load_model


class Segmenter:
    """A trained network that segments, asked by one thread at a time: a large image takes much memory.

    Args:
        name: what the page calls it.
        model: in evaluation mode; takes ``[B, C, H, W]``, returns :class:`~torchcaps.types.SegmentationOutput`.
        classes: names of the J classes.
        image_shape: (channels, height, width) of what is drawn for it.
        samples: test images of this shape with their masks, or None.

    Raises:
        ValueError: images of other than one or three channels.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        classes: tuple[str, ...],
        image_shape: tuple[int, int, int],
        samples: Images | None = None,
    ) -> None:
        if image_shape[0] not in (1, 3):
            raise ValueError(
                f"{name}: image_shape must have one or three channels to draw for, got {tuple(image_shape)}"
            )
        self.name, self.model, self.classes = name, model.requires_grad_(False), classes
        self.image_shape, self.samples = image_shape, samples
        self._one_at_a_time = Lock()
        self.has_capsules = bool(self.lengths(torch.zeros(image_shape)))

    @torch.no_grad()
    def see(self, image: Tensor) -> Tensor:
        """Return the score of each class at each pixel of an image ``[C, H, W]``: ``[J, H, W]``."""
        with self._one_at_a_time:
            return self.model(image[None]).scores[0].float()

    @torch.no_grad()
    def lengths(self, image: Tensor) -> list[Tensor]:
        """Return the activations ``[T, H', W']`` of each layer's capsules; none of a network without capsules."""
        with self._one_at_a_time:
            return [each.activation[0].float() for each in self.model(image[None]).capsules]


def segments(run: str | Path) -> bool:
    """Return whether a run's network segments; of what is no run it does not."""
    owner = run_of(run)
    return (owner.pretrained is not None or owner.config.is_file()) and owner.experiment().data.task.segments


def load_segmenter(run: str | Path) -> Segmenter:
    """Load the trained network of a run that segments, and its test images where they are at hand.

    Raises:
        ValueError: no finished run, or images that cannot be drawn.
    """
    trained, owner = load_model(run), run_of(run)
    samples = None
    try:
        samples = data_for(owner.experiment(), trained, owner.path).test
    except ValueError as error:  # as where the folder is gone: one can still draw
        logging.getLogger("torchcaps").warning("the playground has no test images of %s: %s", run, error)
    name = owner.pretrained or Path(run).expanduser().resolve().name
    shape = (trained.image_shape[0], *trained.uncropped)
    return Segmenter(name, trained.model, trained.classes, shape, samples)
