"""What an analysis needs of a model, checked at its door."""

from __future__ import annotations

from torch import nn

from torchcaps.layers import Decoder
from torchcaps.models import CapsNet


def capsnet(model: nn.Module) -> CapsNet:
    """The model itself, if it is made of capsules.

    Raises:
        ValueError: it is not.
    """
    if isinstance(model, CapsNet):
        return model
    raise ValueError(f"model must be a CapsNet, got a {type(model).__name__}, which has no capsules")


def decoder_of(model: nn.Module) -> Decoder:
    """The model's decoder.

    Raises:
        ValueError: the model has none.
    """
    decoder = capsnet(model).decoder
    if decoder is None:
        raise ValueError("model must have a decoder, got a CapsNet that has no decoder (it was made with decoder=None)")
    return decoder
