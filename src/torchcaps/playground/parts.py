"""The parts that a transforming auto-encoder finds in an image, each drawn by its own capsule."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.layers.modes import unwrap
from torchcaps.models import TemplateAutoencoder
from torchcaps.playground.drawing import SIDE
from torchcaps.training.checkpoint import load_model


class PartsSeen(NamedTuple):
    """What the J capsules draw of one image.

    Attributes:
        pictures: what each adds to the reconstruction, ``[J, H, W]``.
        places: where each stands, (x, y) in pixels from the image's centre, ``[J, 2]``.
    """

    pictures: Tensor
    places: Tensor


class Parts(nn.Module):
    """Take an image apart by a trained auto-encoder of templates.

    Args:
        model: in evaluation mode; of images ``[1, 28, 28]``.

    Raises:
        ValueError: another network, or images of another shape.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        bare = unwrap(model)
        if not isinstance(bare, TemplateAutoencoder):
            raise ValueError(f"parts must be a template_autoencoder, got a {type(bare).__name__}")
        if tuple(bare.image_shape) != (1, SIDE, SIDE):
            raise ValueError(f"parts must take images of (1, 28, 28), got {tuple(bare.image_shape)}")
        self.model = bare.requires_grad_(False)

    def forward(self, images: Tensor) -> PartsSeen:
        """Look at one image ``[1, 1, 28, 28]``."""
        pose, presence = self.model.encode(images)[:2]
        alone = torch.diag(presence[0])  # [J, J]: row j has capsule j only
        pictures = self.model.decode(pose.expand(alone.shape[0], -1, -1, -1), alone) - self.model.background
        return PartsSeen(pictures[:, 0], pose[0, :, :2, 2])


def load_parts(run: str | Path) -> Parts:
    """Load the parts of a run, or of weights such as "pretrained:mnist-templates-small".

    Raises:
        ValueError: no finished run, or one of another network.
    """
    return Parts(load_model(run).model.eval())
