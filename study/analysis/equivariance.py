"""Responses of a class capsule as its object is rotated, shifted, scaled or thickened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from study.analysis.probes import choose, divided, r_squared, ridge
from torchcaps.checks import check_shapes
from torchcaps.explain import extract_features, principal_components

#: Shares of the images of a class that fit a probe, choose its penalty, and test it.
SHARES = (0.5, 0.25, 0.25)

#: Fewest images of a class for a meaningful probe.
LEAST = 6


class Responses(NamedTuple):
    """Confidences and features of a classifier for B images at each of K values of a parameter.

    Attributes:
        values: values of the parameter, ``[K]``.
        labels: the true classes, ``[B]``.
        confidence: confidence in the true class, ``[K, B]`` (see :class:`torchcaps.explain.Features`).
        right: whether the true class has the most confidence, ``[K, B]``.
        features: pose of the true class's capsule, or features of a network without capsules, ``[K, B, D]``.
        origin: the same for the untransformed images, ``[B, D]``.
    """

    values: Tensor
    labels: Tensor
    confidence: Tensor
    right: Tensor
    features: Tensor
    origin: Tensor

    def within(self, least: float, most: float) -> Responses:
        """Return the responses at values between ``least`` and ``most`` alone."""
        kept = (self.values >= least) & (self.values <= most)
        every = (self.values, self.confidence, self.right, self.features)
        values, confidence, right, features = (part[kept.to(part.device)] for part in every)
        return self._replace(values=values, confidence=confidence, right=right, features=features)


def responses(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Callable[[Tensor, float], Tensor],
    values: Iterable[float],
    batch_size: int = 100,
    *,
    neutral: float | None = None,
) -> Responses:
    """Run a classifier on the same images at every value of a parameter.

    Args:
        model: any classifier, see :func:`torchcaps.explain.extract_features`.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: the true classes, ``[B]`` int64.
        transform: transforms images by one value, such as :func:`study.data.transform.rotate`.
        values: values of the parameter; a progress bar may wrap them.
        batch_size: number of images at a time.
        neutral: the value that changes nothing, where the transformation resamples even then (as all of
            :data:`study.data.transform.TRANSFORMATIONS` do): the origin is extracted there. None extracts it from
            the images as they are.

    Returns:
        :class:`Responses`.

    Raises:
        ValueError: as :func:`torchcaps.explain.extract_features`; there are no values.

    Source: Sabour et al. 2017, section 1: a capsule's length is to stay where its pose changes.
    """
    check_shapes(images=(images, "B C H W"), labels=(labels, "B"))
    unmoved = images if neutral is None else transform(images, neutral)
    _, origin = extract_features(model, unmoved, batch_size).of_class(labels)
    seen, confidence, right, features = [], [], [], []
    for value in values:
        reading = extract_features(model, transform(images, value), batch_size)
        mine, pose = reading.of_class(labels)
        seen.append(float(value))
        confidence.append(mine)
        features.append(pose)
        right.append(reading.predicted == labels)
    if not seen:
        raise ValueError("values must hold at least one number, got none")
    return Responses(
        torch.tensor(seen, device="cpu"),
        labels,
        torch.stack(confidence),
        torch.stack(right),
        torch.stack(features),
        origin,
    )


def pose_follows(found: Responses, *, change: bool = False, n_components: int | None = None, seed: int = 0) -> Tensor:
    """Measure how well a ridge probe predicts the parameter from the pose: R², class by class.

    Each class has its own probe, because each class capsule has its own frame. The probe is tested on images of which
    it saw no view, and its penalty is chosen on others again.

    Args:
        found: those of :func:`responses`, at several values.
        change: predict from the difference to the pose of the untransformed image, which the image's own shear,
            position or size does not disturb.
        n_components: number of principal components to reduce the features to, so that networks are compared by as
            many numbers; None keeps all features.
        seed: seed of the split of the images.

    Returns:
        R² of each class, ``[J]`` with J the largest label + 1; NaN where there are fewer than
        :data:`LEAST` images.

    Raises:
        ValueError: there is only one value.
    """
    if len(found.values.unique()) < 2:
        raise ValueError(f"values must be at least two to tell apart, got {found.values.tolist()}")
    features = found.features - found.origin if change else found.features
    n_classes = int(found.labels.max()) + 1
    scores = torch.full((n_classes,), torch.nan, dtype=torch.float64, device="cpu")
    for k in range(n_classes):
        mine = (found.labels == k).nonzero().squeeze(1)
        if len(mine) >= LEAST:
            scores[k] = _r_squared(features[:, mine], found.values, n_components, seed)
    return scores


def _r_squared(features: Tensor, values: Tensor, n_components: int | None, seed: int) -> float:
    """Compute R² on views ``[K, n, D]`` of n images; the probe is fitted, chosen and tested on different images."""
    n = features.shape[1]
    parts = [features[:, part.to(features.device)].flatten(0, 1) for part in divided(n, SHARES, seed)]
    target = [values.to(features).repeat_interleave(len(x) // len(values))[:, None] for x in parts]
    if n_components is not None:
        plane = principal_components(parts[0], k=min(n_components, parts[0].shape[1]))
        parts = [plane.project(x) for x in parts]
    (fit, chosen, test), (y_fit, y_chosen, y_test) = parts, target
    probe = choose(lambda penalty: ridge(fit, y_fit, penalty), lambda probe: float(r_squared(probe(chosen), y_chosen)))
    return float(r_squared(probe(test), y_test))
