"""What an analysis needs of a model, checked at its door."""

from __future__ import annotations

from torch import nn

from torchcaps.layers import ClassCaps, Decoder
from torchcaps.models import CapsNet, MatrixCapsNet, TemplateAutoencoder, TransformingAutoencoder


def capsnet(model: nn.Module) -> CapsNet | MatrixCapsNet:
    """The model itself, if it is made of capsules.

    Raises:
        ValueError: it is not.
    """
    if isinstance(model, CapsNet | MatrixCapsNet):
        return model
    raise ValueError(f"model must be a CapsNet or MatrixCapsNet, got a {type(model).__name__}, which has no capsules")


def decoder_of(model: nn.Module) -> Decoder:
    """The model's decoder.

    Raises:
        ValueError: the model has none.
    """
    decoder = capsnet(model).decoder
    if decoder is None:
        raise ValueError(f"model must have a decoder, got a {type(model).__name__} that has no decoder")
    return decoder


def em_classes_of(model: nn.Module) -> ClassCaps:
    """The model's class capsules, if they fit Gaussians to votes.

    Raises:
        ValueError: they do not.
    """
    classes = capsnet(model).classes
    if isinstance(classes, ClassCaps) and classes.routing == "em":
        return classes
    raise ValueError(
        f"model must route to its classes by em, got a {type(model).__name__} that does by dynamic routing"
    )


def autoencoder(model: nn.Module) -> TransformingAutoencoder | TemplateAutoencoder:
    """The model itself, if its capsules have poses that a transformation applies to.

    Raises:
        ValueError: it is another one.
    """
    if isinstance(model, TransformingAutoencoder | TemplateAutoencoder):
        return model
    raise ValueError(f"model must be a transforming auto-encoder, got a {type(model).__name__}")
