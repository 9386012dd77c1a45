"""What an explanation asks of a model: its parts, its capsules or its scores, checked by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from torchcaps.layers import ClassCaps, Decoder, EMRouting
from torchcaps.layers.modes import eval_mode, full_gradient, inspects_model, unwrap
from torchcaps.models import CapsNet, MatrixCapsNet, ModelOutput
from torchcaps.models.pose_recovery import as_autoencoder
from torchcaps.ops import Capsules
from torchcaps.typed import typed

__all__ = [
    "Decode",
    "as_autoencoder",
    "as_capsnet",
    "class_capsules",
    "decode_each",
    "decoder_of",
    "decoding",
    "em_class_caps",
    "eval_mode",
    "full_gradient",
    "inspects_model",
    "scores_of",
    "unwrap",
]

#: A decoder: class poses ``[B, J, D]`` and one class of each image ``[B]`` give images ``[B, C, H, W]``.
Decode = Callable[[Tensor, Tensor], Tensor]


@typed
def as_capsnet(model: nn.Module) -> CapsNet | MatrixCapsNet:
    """Return the model as a network of this library, whose parts have known names; unwrap it first.

    Raises:
        ValueError: the model is another one.
    """
    bare = unwrap(model)
    if isinstance(bare, CapsNet | MatrixCapsNet):
        return bare
    raise ValueError(
        f"model must be a CapsNet or MatrixCapsNet, whose parts are known by name; got a {type(model).__name__}"
    )


@typed
def decoder_of(model: nn.Module) -> Decoder:
    """Return the decoder that the model owns; unwrap the model first.

    Raises:
        ValueError: the model owns none, or another module under that name.
    """
    decoder = getattr(unwrap(model), "decoder", None)
    if decoder is None:
        raise ValueError(f"model must have a decoder, got a {type(model).__name__} that has no decoder")
    if not isinstance(decoder, Decoder):
        raise ValueError(f"model must have a torchcaps.Decoder as its decoder, got a {type(decoder).__name__}")
    return decoder


@contextmanager
def decoding(model: nn.Module, decoder: Decode | None = None) -> Iterator[Decode]:
    """Provide a decoder in evaluation mode: the given one, or else the model's own.

    Raises:
        ValueError: the given one cannot be called; or none is given, and the model owns none.
    """
    if decoder is None:
        decoder = decoder_of(model)
    if not callable(decoder):
        raise ValueError(f"decoder must map poses and classes to images, got a {type(decoder).__name__}")
    if not isinstance(decoder, nn.Module):
        yield decoder
        return
    with eval_mode(decoder):
        yield decoder


def decode_each(decoder: Decode, pose: Tensor, classes: Tensor) -> Tensor:
    """Reconstruct several classes of one image, each from its own capsule alone.

    Args:
        decoder: reconstructs one class of each image.
        pose: poses of the class capsules, ``[B, J, D]``.
        classes: K classes of each image, ``[B, K]`` int64.

    Returns:
        ``[B, K, C, H, W]``.
    """
    if isinstance(decoder, Decoder):
        return decoder.each(pose, classes)
    images = decoder(pose.repeat_interleave(classes.shape[1], dim=0), classes.flatten())
    return images.unflatten(0, tuple(classes.shape))


@typed
def class_capsules(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Run a network that returns its capsules, whatever its class.

    Args:
        model: returns a :class:`~torchcaps.models.ModelOutput`, its class capsules (a ``Capsules``), or a sequence of
            ``Capsules`` with the class capsules last.
        images: ``[B, C, H, W]``.

    Returns:
        scores ``[B, J]``, which are the activations where the model returns capsules alone; poses of the class
        capsules ``[B, J, D]``, with matrices flattened.

    Raises:
        ValueError: the model returns no capsules.
    """
    output = model(images)
    scores, capsules = output if isinstance(output, ModelOutput) else (None, output)
    if isinstance(capsules, Sequence) and not isinstance(capsules, Capsules):
        capsules = capsules[-1] if capsules else None
    if not isinstance(capsules, Capsules) or capsules.pose.dim() < 3:
        got = f"a {type(output).__name__}"
        if isinstance(output, ModelOutput):
            got = "one without capsules" if capsules is None else f"a {type(capsules).__name__} there"
        raise ValueError(
            f"model must return its class capsules, alone or last in a torchcaps.models.ModelOutput; got {got}"
        )
    return capsules.activation if scores is None else scores, capsules.pose.flatten(2)


@typed
def em_class_caps(model: nn.Module) -> ClassCaps:
    """Return the model's class capsules, which must be the only ones of their kind, and routed by EM.

    Raises:
        ValueError: they are routed otherwise, or there are several.
    """
    found = [part for part in unwrap(model).modules() if isinstance(part, ClassCaps)]
    if len(found) == 1 and isinstance(found[0].routing, EMRouting):
        return found[0]
    others = ", ".join(f"by {part.routing.name} in a ClassCaps" for part in found) or "without a ClassCaps"
    raise ValueError(f"model must route to its classes by em in a ClassCaps, got a {type(model).__name__}, {others}")


@typed
def scores_of(model: nn.Module, images: Tensor) -> Tensor:
    """Run any classifier: it may return scores, an output that has ``scores``, or capsules with activations.

    Returns:
        ``[B, J]``.

    Raises:
        ValueError: the model returns something else, or NaN, of which no score is the largest.
    """
    if images.dim() < 1:
        raise ValueError(f"images must be [B, C, H, W], got shape {list(images.shape)}")
    output = model(images)
    scores = output.activation if isinstance(output, Capsules) else getattr(output, "scores", output)
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(images):
        got = f"shape {list(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise ValueError(f"model must return scores [B={len(images)}, J], bare, as .scores or in a Capsules; got {got}")
    if scores.isnan().any():
        raise ValueError(
            f"model must return numbers as scores, got NaN for {int(scores.isnan().any(dim=1).sum())} images"
        )
    return scores
