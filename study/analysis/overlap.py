"""Segmentation quality of overlapping images, and the case of two images of the same class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_classes, check_positive, check_shapes
from torchcaps.explain import class_capsules, decoder_of, inspects_model


def intersection_over_union(first: Tensor, second: Tensor, threshold: float = 0.5) -> Tensor:
    """Compute the intersection over union of the bright pixels of two images.

    Args:
        first: ``[..., C, H, W]``, values 0 … 1; bright where the mean of the channels is at least ``threshold``.
        second: images of the same shape.
        threshold: brightness above 0.

    Returns:
        ``[...]``, 0 … 1; 1 where neither has a bright pixel.

    Raises:
        ValueError: the shapes differ, or ``threshold`` is not above 0.
    """
    if first.shape != second.shape or first.dim() < 3:
        raise ValueError(
            f"first and second must be [..., C, H, W] of one shape, got {list(first.shape)} and {list(second.shape)}"
        )
    check_positive("threshold", threshold)
    one, two = first.mean(dim=-3) >= threshold, second.mean(dim=-3) >= threshold
    both, either = (one & two).sum(dim=(-2, -1)), (one | two).sum(dim=(-2, -1))
    return torch.where(either > 0, both / either.clamp_min(1), 1.0)


class SameClassOverlap(NamedTuple):
    """One class capsule for B pairs of images of its class, and for each image alone.

    Attributes:
        length_pair: length of the class's capsule, ``[B]``.
        length_single: length of the same capsule when one of the two is shown alone, ``[B, 2]``.
        strongest_other: length of the longest capsule of another class, ``[B]``.
        overlap: IoU of the class's reconstruction with each of the two, ``[B, 2]``.
        overlap_single: IoU of each one's reconstruction with itself, when it is shown alone, ``[B, 2]``.
    """

    length_pair: Tensor
    length_single: Tensor
    strongest_other: Tensor
    overlap: Tensor
    overlap_single: Tensor

    @property
    def told_apart(self) -> float:
        """Compute the probability that a random pair has a longer capsule than a random single image.

        This is the area under the ROC curve: ½ where the length does not reveal that there are two objects.
        """
        pair, single = self.length_pair[:, None], self.length_single.flatten()[None]
        return float(((pair > single).double() + 0.5 * (pair == single)).mean())


@inspects_model
def same_class_overlap(
    model: nn.Module, images: Tensor, labels: Tensor, parts: Tensor, threshold: float = 0.5, batch_size: int = 100
) -> SameClassOverlap:
    """Run a network on two objects of the same class, for which it has one capsule.

    Args:
        model: network with a decoder.
        images: the pairs, ``[B, C, H, W]``, values 0 … 1; see ``Pairs(…, same=True)``.
        labels: classes of the pairs, ``[B]`` int64.
        parts: the two images alone, ``[B, 2, C, H, W]``.
        threshold: threshold of :func:`intersection_over_union`.
        batch_size: number of pairs at a time.

    Returns:
        :class:`SameClassOverlap`.

    Raises:
        ValueError: the model has no decoder or only one class, or the shapes do not fit.

    Source: Sabour et al. 2017, section 8: capsules assume that a place holds one object of a type at most.
    """
    sizes = check_shapes(images=(images, "B C H W"), labels=(labels, "B"), parts=(parts, "B K C H W"))
    if sizes["K"] != 2:
        raise ValueError(f"parts must be [B, 2, C, H, W], got shape {list(parts.shape)}")
    check_at_least("the number of pairs", sizes["B"], 1)
    check_at_least("batch_size", batch_size, 1)
    n_classes = decoder_of(model).n_classes
    check_at_least("n_classes of the model", n_classes, 2)
    check_classes("labels", labels, n_classes)
    every = zip(images.split(batch_size), labels.split(batch_size), parts.split(batch_size), strict=True)
    found = [_same_class_overlap(model, x, classes, each, threshold) for x, classes, each in every]
    return SameClassOverlap(*(torch.cat(column) for column in zip(*found, strict=True)))


def _same_class_overlap(
    model: nn.Module, images: Tensor, labels: Tensor, parts: Tensor, threshold: float
) -> SameClassOverlap:
    decoder = decoder_of(model)
    both, pair_pose = class_capsules(model, images)
    alone, single_pose = class_capsules(model, parts.flatten(0, 1))
    twice = labels.repeat_interleave(2)
    together = decoder(pair_pose, labels)[:, None].expand_as(parts)
    single = decoder(single_pose, twice).view_as(parts)
    return SameClassOverlap(
        both.gather(1, labels[:, None]).squeeze(1),
        alone.gather(1, twice[:, None]).view(-1, 2),
        both.scatter(1, labels[:, None], -torch.inf).amax(dim=1),
        intersection_over_union(together, parts, threshold),
        intersection_over_union(single, parts, threshold),
    )
