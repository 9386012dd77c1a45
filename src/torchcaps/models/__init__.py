"""The networks of the papers, made of layers alone.

``build("capsnet", image_shape=(1, 28, 28), n_classes=10)`` makes any of :data:`MODELS`. Every model
takes images ``[B, C, H, W]`` with values 0 … 1 and returns an :class:`~torchcaps.models.output.Output`, or, if it is
an auto-encoder, :class:`~torchcaps.models.output.Transformed`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_type_hints

from torch import nn

from torchcaps.checks import check_choice
from torchcaps.models.baseline_cnn import baseline_cnn, matched_cnn, multimnist_cnn, norb_cnn
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_deep, capsnet_small, capsnet_stacked
from torchcaps.models.hidden import HiddenCaps, HiddenConv
from torchcaps.models.matrix_capsnet import MatrixCapsNet, matrix_capsnet, matrix_capsnet_deep, matrix_capsnet_small
from torchcaps.models.output import Output, Transformed
from torchcaps.models.plain_autoencoder import PlainAutoencoder, plain_autoencoder
from torchcaps.models.template_autoencoder import TemplateAutoencoder, template_autoencoder
from torchcaps.models.transforming import Transforming
from torchcaps.models.transforming_autoencoder import (
    TransformingAutoencoder,
    affine_autoencoder,
    local_autoencoder,
    parts_autoencoder,
    translation_autoencoder,
)

#: Every model, by the name under which ``build`` and the experiments take it.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "affine_autoencoder": affine_autoencoder,
    "baseline_cnn": baseline_cnn,
    "capsnet": capsnet,
    "capsnet_deep": capsnet_deep,
    "capsnet_small": capsnet_small,
    "capsnet_stacked": capsnet_stacked,
    "local_autoencoder": local_autoencoder,
    "matched_cnn": matched_cnn,
    "matrix_capsnet": matrix_capsnet,
    "matrix_capsnet_deep": matrix_capsnet_deep,
    "matrix_capsnet_small": matrix_capsnet_small,
    "multimnist_cnn": multimnist_cnn,
    "norb_cnn": norb_cnn,
    "parts_autoencoder": parts_autoencoder,
    "plain_autoencoder": plain_autoencoder,
    "template_autoencoder": template_autoencoder,
    "translation_autoencoder": translation_autoencoder,
}


def build(name: str, image_shape: tuple[int, int, int], n_classes: int | None = None, **options: Any) -> nn.Module:
    """Make a model by name.

    Args:
        name: one of :data:`MODELS`.
        image_shape: (channels, height, width).
        n_classes: number of classes; auto-encoders know of none, and take no heed of it.
        options: as the model's own function says.

    Raises:
        ValueError: an unknown name or option, no number of classes for a classifier, or images too small for the model.
    """
    check_choice("model", name, MODELS)
    function = MODELS[name]
    if "n_classes" in inspect.signature(function).parameters:
        if n_classes is None:
            raise ValueError(f"n_classes must be given for {name}, got None")
        options = {"n_classes": n_classes, **options}
    try:
        return function(image_shape=image_shape, **options)
    except TypeError as error:
        if not any(words in str(error) for words in ("unexpected keyword argument", "multiple values for")):
            raise
        raise ValueError(f"model {name}: {error}") from None
    except ValueError as error:
        if not str(error).startswith("an option of layers"):
            raise
        # What a model does not know it hands to its layers, whose options alone the message lists.
        own = ", ".join(each for each in _options(function) if each not in ("image_shape", "n_classes"))
        of_layers = str(error).split(" must be one of ", 1)[1]
        raise ValueError(f"options of {name} must be one of {own}; or of its layers {of_layers}") from None


def _options(function: Callable[..., nn.Module]) -> list[str]:
    """Names of the options that a model takes for itself."""
    takers: list[Callable[..., Any]] = [function]
    with suppress(TypeError, KeyError, NameError):  # of one of your own, that need not say what it returns
        takers.append(get_type_hints(function)["return"])
    found = [each for taker in takers for each in inspect.signature(taker).parameters.values()]
    return list({each.name: None for each in found if each.kind != each.VAR_KEYWORD})


__all__ = [
    "MODELS",
    "CapsNet",
    "HiddenCaps",
    "HiddenConv",
    "MatrixCapsNet",
    "Output",
    "PlainAutoencoder",
    "TemplateAutoencoder",
    "Transformed",
    "Transforming",
    "TransformingAutoencoder",
    "affine_autoencoder",
    "baseline_cnn",
    "build",
    "capsnet",
    "capsnet_deep",
    "capsnet_small",
    "capsnet_stacked",
    "local_autoencoder",
    "matched_cnn",
    "matrix_capsnet",
    "matrix_capsnet_deep",
    "matrix_capsnet_small",
    "multimnist_cnn",
    "norb_cnn",
    "parts_autoencoder",
    "plain_autoencoder",
    "template_autoencoder",
    "translation_autoencoder",
]
