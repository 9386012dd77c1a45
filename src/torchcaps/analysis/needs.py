"""What an analysis needs of a model, checked at its door."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from torchcaps.layers import ClassCaps, Decoder, EMRouting
from torchcaps.layers.base import RoutedLayer
from torchcaps.models import CapsNet, MatrixCapsNet, Output, Transforming
from torchcaps.ops import Routed

_WRAPPERS = (AveragedModel, nn.DataParallel, nn.parallel.DistributedDataParallel)
_Look = TypeVar("_Look", bound=Callable[..., Any])


def unwrapped(model: nn.Module) -> nn.Module:
    """A model without what torch wraps around it: compile, an average of weights, data in parallel."""
    while isinstance(model, _WRAPPERS) or hasattr(model, "_orig_mod"):
        model = cast(nn.Module, model._orig_mod if hasattr(model, "_orig_mod") else model.module)
    return model


def capsnet(model: nn.Module) -> CapsNet | MatrixCapsNet:
    """The model itself, if it is one of this library's whose parts are known; from within torch's wrappers too.

    Raises:
        ValueError: it is not.
    """
    bare = unwrapped(model)
    if isinstance(bare, CapsNet | MatrixCapsNet):
        return bare
    raise ValueError(
        f"model must be a CapsNet or MatrixCapsNet, whose parts are known by name; got a {type(model).__name__}"
    )


def decoder_of(model: nn.Module) -> Decoder:
    """The decoder of any network that has one; from within torch's wrappers too.

    Raises:
        ValueError: the model has none.
    """
    decoder = getattr(unwrapped(model), "decoder", None)
    if decoder is None:
        raise ValueError(f"model must have a decoder, got a {type(model).__name__} that has no decoder")
    if not isinstance(decoder, Decoder):
        raise ValueError(f"model must have a torchcaps.Decoder as its decoder, got a {type(decoder).__name__}")
    return decoder


def decodable(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """What a network with a decoder says to images.

    Returns:
        scores ``[B, J]``, and poses of the class capsules, ``[B, J, D]``, of matrices too.

    Raises:
        ValueError: it returns no capsules.
    """
    output = model(images)
    classes = output.capsules[-1] if isinstance(output, Output) and output.capsules else None
    if not isinstance(classes, Routed) or classes.pose.dim() < 3:
        got = f"a {type(output).__name__}" if classes is None else f"a {type(classes).__name__} there"
        got = "one without capsules" if isinstance(output, Output) and not output.capsules else got
        raise ValueError(f"model must return torchcaps.models.Output with its class capsules last, got {got}")
    return output.scores, classes.pose.flatten(2)


def em_classes_of(model: nn.Module) -> ClassCaps:
    """The model's class capsules, if they fit Gaussians to votes.

    Raises:
        ValueError: they do not.
    """
    classes = capsnet(model).classes
    if isinstance(classes, ClassCaps) and isinstance(classes.routing, EMRouting):
        return classes
    raise ValueError(
        f"model must route to its classes by em in a ClassCaps, got a {type(model).__name__} that does by "
        f"{classes.routing.name} in a {type(classes).__name__}"
    )


def autoencoder(model: nn.Module) -> Transforming:
    """The model itself, if its capsules have poses that a transformation applies to; from within torch's wrappers too.

    Raises:
        ValueError: it is another one.
    """
    bare = unwrapped(model)
    if isinstance(bare, Transforming):
        return bare
    raise ValueError(f"model must be a transforming auto-encoder, got a {type(model).__name__}")


def scores_of(model: nn.Module, images: Tensor) -> Tensor:
    """What any classifier says: its scores, whether it returns them bare, as ``scores`` or as capsules' activation.

    Returns:
        ``[B, J]``.

    Raises:
        ValueError: it returns something else, or NaN, of which no score is the largest.
    """
    output = model(images)
    found = output.activation if isinstance(output, Routed) else getattr(output, "scores", output)
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(images):
        got = f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ValueError(f"model must return scores [B={len(images)}, J], bare, as .scores or in a Routed; got {got}")
    if found.isnan().any():
        raise ValueError(
            f"model must return numbers as scores, got NaN for {int(found.isnan().any(dim=1).sum())} images"
        )
    return found


@contextmanager
def derivable(model: nn.Module) -> Iterator[None]:
    """With the gradient through all iterations for a while: that of the last one alone is not the derivative."""
    routed = [part for part in model.modules() if isinstance(part, RoutedLayer)]
    kept = [part.routing for part in routed]
    for part in routed:
        part.routing = part.routing.with_full_gradient()
    try:
        yield
    finally:
        for part, routing in zip(routed, kept, strict=True):
            part.routing = routing


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout for a while; then every part is in the mode in which it was.

    Raises:
        ValueError: it is no module.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def observing(look: _Look) -> _Look:
    """Of a function whose first argument is a model: looks at it without gradients and dropout, and changes nothing."""

    @functools.wraps(look)
    def wrapped(model: nn.Module, *given: Any, **named: Any) -> Any:
        with torch.no_grad(), evaluating(model):
            return look(model, *given, **named)

    return cast(_Look, wrapped)
