"""The model of an experiment, made, checked and compiled."""

from __future__ import annotations

import logging
import os
import shutil

import torch
from torch import Tensor, nn

from torchcaps.data import Dataset
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.modes import eval_mode
from torchcaps.models import (
    CapsNet,
    ModelOutput,
    PlainAutoencoder,
    Reconstruction,
    SegmentationOutput,
    Transforming,
    build,
)
from torchcaps.models.baselines import count_parameters
from torchcaps.optim import layouts
from torchcaps.training.batches import image_shape
from torchcaps.training.config import Experiment, Optim
from torchcaps.training.objective import Output
from torchcaps.types import as_output

#: Parameters above which a CapsNet is called large.
_LARGE = 50_000_000


@torch.no_grad()
def make_model(config: Experiment, dataset: Dataset) -> nn.Module:
    """Build the model that the experiment names, for the shape of its images, and show it one image.

    Raises:
        ValueError: unknown name or options, images too small for it, or a loss that does not fit it.
    """
    return check_model(config, dataset, None)


@torch.no_grad()
def check_model(config: Experiment, dataset: Dataset, model: nn.Module | None) -> nn.Module:
    """See that a model fits the experiment and its data, by one image; None makes the one that the experiment names.

    Args:
        config: the experiment.
        dataset: its data.
        model: handed over, or None.

    Raises:
        ValueError: it does not fit.
    """
    shape, name, options = image_shape(config, dataset), config.model.name, config.model.options
    given = model is not None
    try:
        if model is None:
            model = build(name, shape, len(dataset.classes), **options)
        with eval_mode(model):  # a part that was made in evaluation mode, as one that is not trained, stays in it
            weight = next(model.parameters(), torch.empty(0))
            output = as_output(model(torch.zeros(1, *shape, dtype=weight.dtype, device=weight.device)))
    except (ArithmeticError, LookupError, RuntimeError, TypeError) as error:
        if "allocate" in str(error):  # memory is nobody's mistake
            raise
        if given:
            raise ValueError(f"the model {name} must take images [1, {', '.join(map(str, shape))}]: {error}") from error
        if not options:
            raise
        raise ValueError(f"model.options {options} make no {name} for images of {shape}: {error}") from error
    if not isinstance(output, Output):
        raise ValueError(f"the model {name} must return a torchcaps.models.ModelOutput, got a {type(output).__name__}")
    if isinstance(output, Reconstruction) and not isinstance(model, Transforming | PlainAutoencoder):
        raise ValueError(
            f"the model {name} must be a torchcaps.models.Transforming to return a Reconstruction, got a "
            f"{type(model).__name__}"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"the model {name} must have parameters to train, got none")
    _require_kind(config, output)
    if isinstance(output, ModelOutput | SegmentationOutput):
        pixels = shape[1:] if isinstance(output, SegmentationOutput) else ()
        _require_scores(name, output.scores, (len(dataset.classes), *pixels))
    if config.loss != "own":  # which may want anything
        _require_what_the_loss_needs(config, model, output)
    return model


def _require_kind(config: Experiment, output: Output) -> None:
    """Refuse a network that segments where there are no masks, and another where there are."""
    segments, name = isinstance(output, SegmentationOutput), config.model.name
    if config.data.masks and not segments:
        raise ValueError(
            f"model.name must be of a network that segments, such as segcaps_small or matched_unet, with data.masks = "
            f"True; got {name}"
        )
    if segments and not config.data.masks:
        raise ValueError(f"data.masks must be True for the model {name}, which segments; got False")


def _require_what_the_loss_needs(config: Experiment, model: nn.Module, output: Output) -> None:
    """Refuse a model without what the loss compares: capsules, poses, or a decoder that takes one class at a time."""
    if isinstance(output, Reconstruction) != (config.loss == "squared_error"):
        fitting = "squared_error" if isinstance(output, Reconstruction) else "another than squared_error"
        raise ValueError(f"loss must be {fitting} for the model {config.model.name}, got {config.loss}")
    if isinstance(model, PlainAutoencoder):
        for name, value in (("consistency", config.consistency), *_limits(config)):
            if value:
                raise ValueError(f"{name} must be 0 for the model {config.model.name}, which has no poses; got {value}")
    if config.loss in ("margin", "spread") and isinstance(output, ModelOutput) and not output.capsules:
        raise ValueError(
            f"loss must be cross_entropy for the model {config.model.name}, which has logits and no capsules; "
            f"got {config.loss}"
        )
    decoder, name = getattr(model, "decoder", None), config.model.name
    if not config.reconstruction or not isinstance(output, ModelOutput) or decoder is None:
        return
    if not hasattr(decoder, "each"):
        raise ValueError(
            f"reconstruction must be 0 for the model {name}, whose decoder is no torchcaps.Decoder but a "
            f"{type(decoder).__name__}; got {config.reconstruction}"
        )
    if not output.capsules:
        raise ValueError(
            f"reconstruction must be 0 for the model {name}, which returns no capsules to decode; "
            f"got {config.reconstruction}"
        )


def _require_scores(name: str, scores: object, wanted: tuple[int, ...]) -> None:
    shape = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if shape != [1, *wanted]:
        sizes = ", ".join(map(str, wanted))
        raise ValueError(
            f"the model {name} must return scores [B, {sizes}], one for each class; of 1 image got {shape}"
        )


def _limits(config: Experiment) -> list[tuple[str, float]]:
    """Return how far images are transformed, by the names of the fields."""
    return [(f"data.{name}", getattr(config.data, name)) for name in ("shift", "degrees", "scale", "shear")]


def require_compiler() -> None:
    """See that what ``compile`` needs is there.

    Raises:
        ValueError: no C++ compiler is to be found.
    """
    names = (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")
    if not any(shutil.which(name) for name in names):
        raise ValueError("compile needs a C++ compiler and found none: install one, or train with compile=False")


def compile_capsules(model: nn.Module) -> None:
    """Let torch compile the routed layers, in place: weights keep their names.

    Each for its own sizes. Layers share their code, and what two layers of different maps share torch would compile for
    any size: inductor of torch 2.13 fails at that for convolutional capsules without kernels of their own.
    """
    for layer in model.modules():
        if isinstance(layer, RoutedLayer):
            layer.compile(dynamic=False)


def warn_of_size(config: Experiment, dataset: Dataset, model: nn.Module) -> None:
    """Say, in one sentence, that a CapsNet is large because its images are, and what makes it smaller."""
    n = count_parameters(model)
    if n <= _LARGE or not isinstance(model, CapsNet):
        return
    parts = {name: count_parameters(part) for name, part in model.named_children()}
    largest = max(parts, key=lambda name: parts[name])
    _, height, width = image_shape(config, dataset)
    logging.getLogger("torchcaps").warning(
        "%s has %.0f million parameters for images of %d×%d (%.0f million in %s) and model.pt takes %.0f MB: smaller "
        "images (data.image_size) or strides (model.options.stem) make it smaller, and model.options.decoder = null "
        "with reconstruction = 0 leaves out the decoder",
        *(config.model.name, n / 1e6, height, width, parts[largest] / 1e6, largest, 4 * n / 1e6),
    )


def refuse_what_does_nothing(config: Experiment, model: nn.Module) -> None:
    """See that every field that is not as by default has an effect on training this model.

    Not asked of runs that began already: older ones may have such fields, which did nothing then too.

    Raises:
        ValueError: a field that has none.
    """
    data, name, default = config.data, config.model.name, Experiment.reconstruction
    if config.margin != "linear" and config.loss != "spread":
        raise ValueError(
            f"margin must be linear with loss {config.loss}, as it is the spread loss's; got {config.margin}"
        )
    data.task.check_unused(data)
    if config.optim.schedule != "exponential":
        for field in ("decay", "decay_steps"):
            if getattr(config.optim, field) != getattr(Optim(), field):
                raise ValueError(
                    f"optim.{field} must be left alone with the schedule {config.optim.schedule}, got "
                    f"{getattr(config.optim, field)}"
                )
    if config.optim.schedule == "constant" and config.optim.floor != Optim.floor:
        raise ValueError(f"optim.floor must be left alone with the schedule constant, got {config.optim.floor}")
    if config.optim.name == "muon" and not layouts(model):
        raise ValueError(f"optim.name must be adam for {name}, which has neither convolutions nor capsules; got muon")
    task = data.task
    decodes = (task.classifies or task.segments) and config.loss != "own"
    has_decoder = getattr(model, "decoder", None) is not None and decodes
    if config.reconstruction not in (0, default) and not has_decoder:
        raise ValueError(
            f"reconstruction must be 0 (or {default}, which recipes have) for {name} with the loss {config.loss}, "
            f"which reconstructs nothing beside it; got {config.reconstruction}"
        )
    if config.loss == "own" and config.consistency:
        raise ValueError(f"consistency must be 0 with a loss of one's own, got {config.consistency}")
    if config.compile and not any(isinstance(layer, RoutedLayer) for layer in model.modules()):
        raise ValueError(f"compile must be false for {name}, which routes nothing; got {config.compile}")
