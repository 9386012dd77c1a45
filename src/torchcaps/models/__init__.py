"""The networks of the papers, made of layers alone.

``build("capsnet", image_shape=(1, 28, 28), n_classes=10)`` makes any of :data:`MODELS`. Every model
takes images ``[B, C, H, W]`` with values 0 … 1 and returns a :class:`ModelOutput`. An auto-encoder returns a
:class:`Reconstruction`, a network that segments a :class:`SegmentationOutput`, a stacked capsule auto-encoder a
:class:`StackedOutput`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from torch import nn

from torchcaps.checks import check_choice
from torchcaps.layers.routings import as_routing
from torchcaps.layers.shapes import as_image_shape
from torchcaps.models.attention_capsnet import AttentionCapsNet, attention_capsnet
from torchcaps.models.backbone import BackboneCapsNet, capsnet_backbone
from torchcaps.models.baselines import baseline_cnn, matched_cnn, multimnist_cnn, norb_cnn
from torchcaps.models.capsnet import CapsNet, capsnet, capsnet_deep, capsnet_small, capsnet_stacked
from torchcaps.models.constellation_autoencoder import ConstellationAutoencoder, constellation_autoencoder
from torchcaps.models.deepcaps import DeepCaps, deepcaps, deepcaps_small
from torchcaps.models.efficient_capsnet import EfficientCapsNet, efficient_capsnet
from torchcaps.models.heinsen_capsnet import HeinsenCapsNet, heinsen_capsnet
from torchcaps.models.matrix_capsnet import MatrixCapsNet, matrix_capsnet, matrix_capsnet_deep, matrix_capsnet_small
from torchcaps.models.plain_autoencoder import PlainAutoencoder, plain_autoencoder
from torchcaps.models.pretrained import Card, cards, choose_card, fill
from torchcaps.models.scores import Scores
from torchcaps.models.segcaps import SegCaps, segcaps, segcaps_small
from torchcaps.models.self_routing_resnet import SelfRoutingResNet, self_routing_resnet
from torchcaps.models.specs import HiddenCaps, HiddenConv
from torchcaps.models.stacked_capsule_autoencoder import StackedCapsuleAutoencoder, scae, scae_small
from torchcaps.models.template_autoencoder import TemplateAutoencoder, template_autoencoder
from torchcaps.models.transforming_autoencoder import (
    Transforming,
    TransformingAutoencoder,
    affine_autoencoder,
    local_autoencoder,
    parts_autoencoder,
    translation_autoencoder,
)
from torchcaps.models.unet import UNet, matched_unet
from torchcaps.models.variational_bayes_capsnet import VariationalBayesCapsNet, variational_bayes_capsnet
from torchcaps.types import ModelOutput, Reconstruction, SegmentationOutput, StackedOutput

#: Every model, by the name under which ``build`` and the experiments take it.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "affine_autoencoder": affine_autoencoder,
    "attention_capsnet": attention_capsnet,
    "baseline_cnn": baseline_cnn,
    "capsnet": capsnet,
    "capsnet_backbone": capsnet_backbone,
    "capsnet_deep": capsnet_deep,
    "capsnet_small": capsnet_small,
    "capsnet_stacked": capsnet_stacked,
    "deepcaps": deepcaps,
    "deepcaps_small": deepcaps_small,
    "efficient_capsnet": efficient_capsnet,
    "heinsen_capsnet": heinsen_capsnet,
    "local_autoencoder": local_autoencoder,
    "matched_cnn": matched_cnn,
    "matched_unet": matched_unet,
    "matrix_capsnet": matrix_capsnet,
    "matrix_capsnet_deep": matrix_capsnet_deep,
    "matrix_capsnet_small": matrix_capsnet_small,
    "multimnist_cnn": multimnist_cnn,
    "norb_cnn": norb_cnn,
    "parts_autoencoder": parts_autoencoder,
    "plain_autoencoder": plain_autoencoder,
    "scae": scae,
    "scae_small": scae_small,
    "segcaps": segcaps,
    "segcaps_small": segcaps_small,
    "self_routing_resnet": self_routing_resnet,
    "template_autoencoder": template_autoencoder,
    "translation_autoencoder": translation_autoencoder,
    "variational_bayes_capsnet": variational_bayes_capsnet,
}


def build(
    name: str,
    image_shape: tuple[int, int, int],
    n_classes: int | None = None,
    *,
    pretrained: bool | str = False,
    **options: Any,
) -> nn.Module:
    """Make a model by name.

    Args:
        name: one of :data:`MODELS`.
        image_shape: (channels, height, width).
        n_classes: number of classes; auto-encoders know of none, and take no heed of it.
        pretrained: True for the weights that come with this library for the model, or their name, one of
            :func:`~torchcaps.models.cards`. With another number of classes the features are theirs, and
            the rest is new. (``capsnet_backbone`` hands this over to its backbone.)
        options: as the model's own function says. Where it has a routing, the routing's options may stand beside
            them, as in configuration files: ``n_iters=2`` for ``routing=DynamicRouting(n_iters=2)``.

    Raises:
        ValueError: an unknown name or option, no number of classes for a classifier, or images too small for the model;
            no such weights, weights for other images or of other options, or a file of them that is broken.

    Example:
        >>> import torch
        >>> model = build("capsnet_small", image_shape=(1, 28, 28), n_classes=10)
        >>> model(torch.rand(2, 1, 28, 28)).scores.shape
        torch.Size([2, 10])
    """
    check_choice("model", name, MODELS)
    function, given = MODELS[name], options
    if "n_classes" in inspect.signature(function).parameters:
        if n_classes is None:
            raise ValueError(f"n_classes must be given for {name}, got None")
        options = {"n_classes": n_classes, **options}
    own = options_of(function)
    if "pretrained" in own:
        options["pretrained"] = pretrained
    elif pretrained is not False:
        card = choose_card(name, pretrained)
        return _build_pretrained(name, image_shape, n_classes, card, given)
    if "routing" in own:
        options = _with_routing(name, own, options)
    try:
        return function(image_shape=image_shape, **options)
    except TypeError as error:
        if not any(words in str(error) for words in ("unexpected keyword argument", "multiple values for")):
            raise
        raise ValueError(f"model {name}: {error}") from None


def _build_pretrained(
    name: str, image_shape: tuple[int, int, int], n_classes: int | None, card: Card, options: dict[str, Any]
) -> nn.Module:
    if as_image_shape(image_shape) != card.image_shape:
        raise ValueError(f"image_shape must be {card.image_shape} for the weights {card.name}, got {image_shape}")
    for option, value in options.items():
        if card.options.get(option, value) != value:
            theirs = card.options[option]
            raise ValueError(f"{option} must be {theirs!r} for the weights {card.name}, or left alone; got {value!r}")
    model = build(name, card.image_shape, n_classes, **{**options, **card.options})
    fill(model, card, n_classes)
    return model


def _with_routing(name: str, own: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with those of the routing gathered into one object.

    Raises:
        ValueError: An option of neither the model nor its routing.
    """
    routing = as_routing(options.get("routing", own["routing"]))
    known = [field.name for field in fields(routing)] if is_dataclass(routing) else []
    given = {option: value for option, value in options.items() if option not in own}
    for option in given:
        if option not in known:
            mine = ", ".join(each for each in own if each not in ("image_shape", "n_classes"))
            raise ValueError(
                f"options of {name} must be one of {mine}; or of its routing {', '.join(known)}; got {option!r}"
            )
    kept = {option: value for option, value in options.items() if option in own}
    return kept | ({"routing": replace(routing, **given)} if given else {})  # type: ignore[type-var]


def options_of(function: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return the options that a model takes for itself, with their defaults."""
    takers: list[Callable[..., Any]] = [function]
    with suppress(TypeError, KeyError, NameError):  # of one of your own, that need not say what it returns
        takers.append(get_type_hints(function)["return"])
    every = [each for taker in takers for each in inspect.signature(taker).parameters.values()]
    return {each.name: each.default for each in every if each.kind != each.VAR_KEYWORD}


__all__ = [
    "MODELS",
    "AttentionCapsNet",
    "BackboneCapsNet",
    "CapsNet",
    "Card",
    "ConstellationAutoencoder",
    "DeepCaps",
    "EfficientCapsNet",
    "HeinsenCapsNet",
    "HiddenCaps",
    "HiddenConv",
    "MatrixCapsNet",
    "ModelOutput",
    "PlainAutoencoder",
    "Reconstruction",
    "Scores",
    "SegCaps",
    "SegmentationOutput",
    "SelfRoutingResNet",
    "StackedCapsuleAutoencoder",
    "StackedOutput",
    "TemplateAutoencoder",
    "Transforming",
    "TransformingAutoencoder",
    "UNet",
    "VariationalBayesCapsNet",
    "affine_autoencoder",
    "attention_capsnet",
    "baseline_cnn",
    "build",
    "capsnet",
    "capsnet_backbone",
    "capsnet_deep",
    "capsnet_small",
    "capsnet_stacked",
    "cards",
    "constellation_autoencoder",
    "deepcaps",
    "deepcaps_small",
    "efficient_capsnet",
    "heinsen_capsnet",
    "local_autoencoder",
    "matched_cnn",
    "matched_unet",
    "matrix_capsnet",
    "matrix_capsnet_deep",
    "matrix_capsnet_small",
    "multimnist_cnn",
    "norb_cnn",
    "parts_autoencoder",
    "plain_autoencoder",
    "scae",
    "scae_small",
    "segcaps",
    "segcaps_small",
    "self_routing_resnet",
    "template_autoencoder",
    "translation_autoencoder",
    "variational_bayes_capsnet",
]
