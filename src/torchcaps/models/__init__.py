"""The networks of the papers, made of layers alone.

``build("capsnet", image_shape=(1, 28, 28), n_classes=10)`` makes any of :data:`MODELS`. Every model
takes images ``[B, C, H, W]`` with values 0 … 1 and returns a :class:`~torchcaps.models.output.Output`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torchcaps.models.baseline_cnn import baseline_cnn, matched_cnn, multimnist_cnn, norb_cnn
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_small, capsnet_stacked
from torchcaps.models.matrix_capsnet import MatrixCapsNet, matrix_capsnet, matrix_capsnet_small
from torchcaps.models.output import Output
from torchcaps.ops.checks import check_choice

#: Every model, by the name under which ``build`` and the experiments take it.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "baseline_cnn": baseline_cnn,
    "capsnet": capsnet,
    "capsnet_small": capsnet_small,
    "capsnet_stacked": capsnet_stacked,
    "matched_cnn": matched_cnn,
    "matrix_capsnet": matrix_capsnet,
    "matrix_capsnet_small": matrix_capsnet_small,
    "multimnist_cnn": multimnist_cnn,
    "norb_cnn": norb_cnn,
}


def build(name: str, image_shape: tuple[int, int, int], n_classes: int, **options: Any) -> nn.Module:
    """Make a model by name.

    Args:
        name: one of :data:`MODELS`.
        image_shape: (channels, height, width).
        n_classes: number of classes.
        options: as the model's own function says.

    Raises:
        ValueError: an unknown name or option, or images too small for the model.
    """
    check_choice("model", name, MODELS)
    try:
        return MODELS[name](image_shape=image_shape, n_classes=n_classes, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(f"model {name}: {error}") from None


__all__ = [
    "MODELS",
    "CapsNet",
    "MatrixCapsNet",
    "Output",
    "baseline_cnn",
    "build",
    "capsnet",
    "capsnet_small",
    "capsnet_stacked",
    "matched_cnn",
    "matrix_capsnet",
    "matrix_capsnet_small",
    "multimnist_cnn",
    "norb_cnn",
]
