"""What a network that segments says of an image: masks, how sure it is of each, and its capsules' lengths."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from torchcaps.data.images import to_float
from torchcaps.data.mask_file import colour_of
from torchcaps.playground.drawing import transform_image
from torchcaps.playground.messages import as_text, read_image, read_index, read_moves
from torchcaps.playground.segmenter import Segmenter

#: A class is where its score is above this.
THRESHOLD = 0.5


def describe(segmenter: Segmenter) -> dict[str, Any]:
    """Say what the page has to know of a network that segments."""
    return {
        "segments": True,
        "capsules": segmenter.has_capsules,
        "shape": list(segmenter.image_shape),
        "colours": [list(colour_of(k)) for k in range(len(segmenter.classes))],
        "samples": 0 if segmenter.samples is None else len(segmenter.samples),
    }


def see(segmenter: Segmenter, beside: Segmenter | None, message: dict[str, Any]) -> dict[str, Any]:
    """Say which classes are where, and how sure the network is of each."""
    image = _read(segmenter, message)
    scores = segmenter.see(image)
    return {
        "image": as_text(image),
        "scores": as_text(_parted(scores)),
        "classes": [_sure(each) for each in scores],
        "beside": None if beside is None else as_text(_parted(beside.see(image))),
    }


def explain(segmenter: Segmenter, message: dict[str, Any]) -> dict[str, Any]:
    """Say how long the capsules of each layer are at each of their places."""
    layers = segmenter.lengths(_read(segmenter, message))
    return {"layers": [{"shape": list(each.shape), "lengths": as_text(each)} for each in layers]}


def sample(segmenter: Segmenter, message: dict[str, Any]) -> dict[str, Any]:
    """Give a test image with its true masks: number ``seed`` of a fixed random order."""
    samples = segmenter.samples
    if samples is None or samples.masks is None:
        raise ValueError("samples must be at hand for a test image, got none: draw, or load an image file")
    index = Random(read_index(message, "seed", 2**31)).randrange(len(samples))
    return {
        "image": as_text(to_float(samples.images[index])),
        "masks": as_text(samples.masks[index].float()),
        "index": index,
    }


def _read(segmenter: Segmenter, message: dict[str, Any]) -> Tensor:
    return transform_image(read_image(message, segmenter.image_shape), **read_moves(message)._asdict())


def _parted(scores: Tensor) -> Tensor:
    """Move scores near ½ so far that as bytes they stay on their side of it: 128 and more are inside."""
    return torch.where(scores > THRESHOLD, scores.clamp_min(128 / 255), scores.clamp_max(127 / 255))


def _sure(scores: Tensor) -> dict[str, float]:
    """Return the share of pixels that a class has, and its mean score there; where it has none, its highest score."""
    inside = scores > THRESHOLD
    sure = scores[inside].mean() if inside.any() else scores.max()
    return {"area": round(float(inside.float().mean()), 5), "sure": round(float(sure), 5)}
