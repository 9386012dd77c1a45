"""Settings of a recipe where it is trained on one's own images, or by another model."""

from __future__ import annotations

from dataclasses import replace

from torchcaps.training.config import NO_FACTORS, Experiment, Model

#: Pixels of the images whose reconstructions recipes weigh.
_PIXELS = 28 * 28


def for_own_images(config: Experiment) -> Experiment:
    """Change what a recipe has for the images of its data set, which one's own need not resemble.

    CapsNets get the factors that their layers have by default: without, bright or large images saturate all primary
    capsules in the first steps, and every image is given one class. Each image is standardized, as its light is not
    known. The reconstruction weighs as much for each pixel of large images as for all of 28×28 divided by them. Shifts
    and warps mirror an image at its edges (``fill``), as black would frame photographs.

    Args:
        config: on ``Data("folder")``, or ``Data("mask-folder")``.

    Returns:
        The same except for ``fill`` where the model is neither a CapsNet, SegCaps, nor a CNN that can standardize.
    """
    name, options = config.model.name, dict(config.model.options)
    if not (config.data.pairs or config.data.transformed):
        config = replace(config, data=replace(config.data, fill="reflection"))
    if name.startswith("segcaps"):
        return replace(config, model=Model(name, {**options, "standardize": True}))
    if not (_is_capsnet(name) or name in ("matched_cnn", "norb_cnn")):
        return config
    options = {key: value for key, value in options.items() if key not in NO_FACTORS}
    height, width = config.data.image_size or (28, 28)
    weight = (
        config.reconstruction * min(1.0, _PIXELS / (height * width)) if _is_capsnet(name) else config.reconstruction
    )
    return replace(config, model=Model(name, {**options, "standardize": True}), reconstruction=weight)


def for_model(config: Experiment, name: str) -> Experiment:
    """Have another model in a recipe: a CapsNet's factors are no options of others."""
    options = config.model.options
    if not _is_capsnet(name):
        options = {key: value for key, value in options.items() if key not in NO_FACTORS}
    return replace(config, model=Model(name, options))


def _is_capsnet(name: str) -> bool:
    return name.startswith("capsnet")
