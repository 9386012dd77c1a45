"""Overlapping images: how well each is painted, and what becomes of two of the same class.

A class has one capsule, so that two objects of a class crowd each other out of it: the known limit (Sabour et al. 2017,
section 8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from study.analysis import SameClassOverlap, intersection_over_union, same_class_overlap
from study.draw.charts import Bars, draw_charts
from study.measures.said import Said, per_cent
from study.measures.sample import bar, name_of, networks, number, spaced
from torchcaps import explain
from torchcaps.data import Pairs
from torchcaps.explain import class_capsules, decoder_of
from torchcaps.report import N_PAIRS, EvaluatedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A pixel of this brightness or more belongs to the object.
THRESHOLD = 0.5
#: Of the pairs of the same class, which nothing was chosen on.
SEED = 0


def measure(tested: EvaluatedRun, *, beside: EvaluatedRun | None = None, n: int | None = None) -> dict[str, Any]:
    """Paint each object of a pair from its own capsule, then show two objects of one class.

    Args:
        tested: the run on pairs, of a network with a decoder.
        beside: another such run.
        n: pairs of each kind; the first :data:`N_PAIRS` at most, which are those by default.

    Returns:
        For "run" and "beside": ``error`` (both classes must be right); mean ``iou`` with its object of each
        reconstruction ``true`` (from the true class's capsule), ``predicted`` (from those that were predicted), and
        for comparison of the ``input`` itself. Of two of the ``same_class``: mean ``length`` of its capsule and of
        ``single`` images; share of pairs where it is the ``first`` and where ``only`` it is longer than ½;
        ``told_apart``, the chance that a pair has a longer capsule than a single image; mean ``iou`` of its
        reconstruction with the ``better`` and the ``worse`` painted object, and of the ``single`` ones.

    Raises:
        ValueError: a run that is not on pairs, a model without decoder, runs on different pairs, or more pairs than
            are looked at.
    """
    every = networks(tested, beside)
    for each in every.values():
        if not each.config.data.pairs:
            raise ValueError(f"run must be of pairs for this measure, got one of single images: {each.run.path}")
    if n is not None and n > N_PAIRS:
        raise ValueError(f"n must be at most {N_PAIRS} pairs, got {n}")
    chosen = spaced(len(tested.images), n, N_PAIRS)
    images, labels, parts = tested.images[chosen], tested.labels[chosen], tested.parts[chosen]
    twins = Pairs(tested.data.test, seed=SEED, blend=tested.config.data.blend, same=True).batch(0, len(chosen))
    shown, classes, alone = (x.to(images.device) for x in (twins.images, twins.labels[:, 0], twins.parts))
    values: dict[str, Any] = {"n": len(chosen), "threshold": THRESHOLD}
    for part, each in every.items():
        values[part] = _different(each, images, labels, parts)
        values[part]["same_class"] = _same(same_class_overlap(each.model, shown, classes, alone, THRESHOLD))
    return values


@torch.no_grad()
def _different(tested: EvaluatedRun, images: Tensor, labels: Tensor, parts: Tensor) -> dict[str, Any]:
    true, predicted, right = [], [], []
    pieces = list(zip(images.split(100), labels.split(100), parts.split(100), strict=True))
    for shown, classes, alone in bar(pieces, f"{name_of(tested)}: segmentation"):
        found = explain.segment(tested.model, shown, classes, alone)
        _, pose = class_capsules(tested.model, shown)
        painted = decoder_of(tested.model).each(pose, classes)
        true.append(intersection_over_union(painted, alone, THRESHOLD))
        predicted.append(intersection_over_union(found.reconstructions, alone, THRESHOLD))
        right.append(found.right)
    whole = intersection_over_union(images[:, None].expand_as(parts), parts, THRESHOLD)
    return {
        "error": number(1 - torch.cat(right).float().mean()),
        "iou": {
            "true": number(torch.cat(true).mean()),
            "predicted": number(torch.cat(predicted).mean()),
            "input": number(whole.mean()),
        },
    }


def _same(found: SameClassOverlap) -> dict[str, Any]:
    only = (found.length_pair > 0.5) & (found.strongest_other <= 0.5)
    return {
        "length": number(found.length_pair.mean()),
        "single": number(found.length_single.mean()),
        "first": number((found.length_pair > found.strongest_other).float().mean()),
        "only": number(only.float().mean()),
        "told_apart": number(found.told_apart),
        "iou": {
            "better": number(found.overlap.amax(dim=1).mean()),
            "worse": number(found.overlap.amin(dim=1).mean()),
            "single": number(found.overlap_single.mean()),
        },
    }


def headline(values: dict[str, Any], part: str) -> dict[str, Said]:
    """What to read first."""
    found = values[part]
    twins = found["same_class"]
    return {
        "both right": per_cent(1 - found["error"]),
        "IoU of reconstruction and object": Said("{:.2f}", (found["iou"]["true"],)),
        "IoU of the input and object": Said("{:.2f}", (found["iou"]["input"],)),
        "two of one class: told from a single one": per_cent(twins["told_apart"]),
        "two of one class: IoU with the better and the worse painted": Said(
            "{:.2f} and {:.2f}", (twins["iou"]["better"], twins["iou"]["worse"])
        ),
    }


def draw(values: dict[str, Any], tested: EvaluatedRun, beside: EvaluatedRun | None = None) -> Figure:
    """Bars: overlap of reconstructions, lengths and overlap for two of one class."""
    every = networks(tested, beside)

    def bars(*path: str, keys: tuple[str, ...]) -> dict[str, Any]:
        found = {}
        for part, each in every.items():
            inner = values[part]
            for key in path:
                inner = inner[key]
            found[name_of(each)] = [inner[key] for key in keys]
        return found

    iou, lengths = ("true", "predicted", "input"), ("length", "single", "only", "told_apart")
    twins = ("better", "worse", "single")
    return draw_charts(
        [
            Bars("IoU with the object, by capsule", ("true class", "predicted", "the input"), bars("iou", keys=iou)),
            Bars(
                "Two of one class",
                ("length", "length,\nsingle", "only it\nnamed", "told from\nsingle"),
                bars("same_class", keys=lengths),
            ),
            Bars("IoU, two of one class", ("better", "worse", "single"), bars("same_class", "iou", keys=twins)),
        ]
    )
