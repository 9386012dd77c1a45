"""A network's scores alone, for tools that know tensors only."""

from __future__ import annotations

from torch import Tensor, nn

from torchcaps.checks import check_module
from torchcaps.types import ModelOutput, SegmentationOutput, as_output


class Scores(nn.Module):
    """Return the scores of a network alone: one tensor, as Captum, OpenVINO, skorch or torchattacks want.

    Args:
        model: a network of the library, or any that returns scores ``[B, J]``, capsules, a
            :class:`~torchcaps.models.ModelOutput` or a :class:`~torchcaps.models.SegmentationOutput`.

    Input:
        x: images ``[B, C, H, W]``.

    Output:
        ``[B, J]``: lengths of the class capsules, or a CNN's logits. Of networks that segment ``[B, J, H, W]``.

    Raises:
        ValueError: no module, or one that returns something else, as an auto-encoder does.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> from torchcaps.models import Scores
        >>> Scores(build("capsnet_small", (1, 28, 28), 10))(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_module("model", model)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of images ``[B, C, H, W]``."""
        output = as_output(self.model(x))
        if not isinstance(output, ModelOutput | SegmentationOutput):
            raise ValueError(f"model must return scores, got a {type(output).__name__}")
        return output.scores
