"""Sparsity of object capsules: few explain one image, and all explain some."""

from __future__ import annotations

import torch
from torch import Tensor

from torchcaps.models.object_capsules import Predictions


def prior_sparsity(presence: Tensor, n_present: float, n_classes: int) -> tuple[Tensor, Tensor]:
    """Ask for so many objects in each image, and for each object in one of so many images.

    Args:
        presence: a, ``[B, K]``.
        n_present: c, objects of an image.
        n_classes: an object is wanted in B / this images of the batch.

    Returns:
        mean_b (Σ_k a_bk − c)², and mean_k (Σ_b a_bk − B / n_classes)².
    """
    within = (presence.sum(dim=1) - n_present).square()
    return batch_mean(within), (presence.sum(dim=0) - presence.shape[0] / n_classes).square().mean()


def explained_parts(presence: Tensor, coupling: Tensor) -> Tensor:
    """Count the parts that each object explains ``[B, K]``: presences ``[B, M]`` times shares ``[B, M, K]``."""
    return torch.einsum("bm,bmk->bk", presence, coupling)


def posterior_sparsity(explained: Tensor) -> tuple[Tensor, Tensor]:
    """Measure entropies of how many parts each object explains: in an image, and in the whole batch.

    Args:
        explained: parts that each object explains, ``[B, K]``.

    Returns:
        The mean entropy of an image, which is to be small, and the batch's, which is to be large; in nats.
    """
    share = explained / explained.sum(dim=1, keepdim=True).clamp_min(1e-6)
    mean = share.sum(dim=0) / torch.sym_max(share.shape[0], 1)
    return batch_mean(entropy(share)), entropy(mean)


def mutual_information(first: Tensor, second: Tensor) -> Tensor:
    """Return the mutual information of the objects in two views of the same images.

    Presences are normalized to a distribution over objects. The mutual information is at most ln K. It is ln K if each
    image has one object, the same in both views, and all objects are equally frequent.

    Args:
        first: presences of objects, or the parts they explain, ``[B, K]``.
        second: those of other views of the same images, ``[B, K]``.

    Returns:
        A scalar in nats, 0 for an empty batch.

    Source: Ji, Henriques, Vedaldi 2019, Invariant Information Clustering, arXiv 1807.06653, section 3.1, whose classes
    are objects here.
    """
    first, second = (x / x.sum(dim=1, keepdim=True).clamp_min(1e-6) for x in (first, second))
    both = first.mT @ second / torch.sym_max(first.shape[0], 1)  # [K, K]
    both = (both + both.mT) / 2
    return 2 * entropy(both.sum(dim=0)) - entropy(both.flatten())


def batch_mean(x: Tensor) -> Tensor:
    """Sum what each image has, and average over images ``[B, ...]``: a scalar, 0 for an empty batch."""
    return x.sum() / torch.sym_max(x.shape[0], 1)


def entropy(share: Tensor) -> Tensor:
    """Return −Σ p ln p over the last axis; an absent one adds 0, and has a finite gradient."""
    return -(share * share.clamp_min(1e-12).log()).sum(dim=-1)


def object_losses(
    predictions: Predictions,
    explained: Tensor,
    *,
    weights: dict[str, float],
    n_present: float,
    n_classes: int,
) -> dict[str, Tensor]:
    """Name the terms that keep objects sparse and rigid, each with its weight; those of weight 0 are left out.

    Args:
        predictions: of the objects.
        explained: parts that each object explains, ``[B, K]``.
        weights: of the terms "dynamic", "prior_within", "prior_between", "posterior_within" and "posterior_between".
        n_present: objects that an image is expected to have.
        n_classes: kinds of image.
    """
    prior = prior_sparsity(predictions.presence, n_present, n_classes)
    posterior = posterior_sparsity(explained)
    terms = {
        "dynamic": 0.5 * batch_mean(predictions.dynamic.square()),
        "prior_within": prior[0],
        "prior_between": prior[1],
        "posterior_within": posterior[0],
        "posterior_between": -posterior[1],
    }
    return {name: weights[name] * term for name, term in terms.items() if weights.get(name)}
