"""Robustness of a classifier against attacks of growing strength."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from study.analysis.attacks import Attack, Loss, check_attack, cross_entropy, gradient, predict
from torchcaps.checks import check_at_least, check_classes, check_int64, check_shapes
from torchcaps.explain import eval_mode, scores_of


class UnderAttack(NamedTuple):
    """Results of attacks of E strengths on B images.

    Attributes:
        epsilon: strengths, ``[E]``.
        accuracy: share of the images still given their true class, ``[E]``.
        success: share that was given its target instead, ``[E]``; None of an untargeted attack.
    """

    epsilon: Tensor
    accuracy: Tensor
    success: Tensor | None


def accuracy_under_attack(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilons: Iterable[float],
    attack: Attack | Sequence[Attack],
    *,
    source: nn.Module | None = None,
    targets: Tensor | None = None,
    batch_size: int = 50,
) -> UnderAttack:
    """Measure accuracy, and success of a targeted attack, against ε.

    Args:
        model: any module that returns scores, or an output that has them as ``.scores``.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: ``[B]`` int64.
        epsilons: largest changes of a pixel; a progress bar over them (``tqdm(…)``) shows how far it is.
        attack: such as :func:`study.analysis.bim`, or a ``functools.partial`` of it with another loss; of several
            the one that succeeds counts, for each image.
        source: the model that the images are made against, for an attack by transfer (black box); the model
            itself by default (white box).
        targets: wrong classes that a targeted attack is to bring about, ``[B]`` int64.
        batch_size: images at a time.

    Returns:
        :class:`UnderAttack`.

    Raises:
        ValueError: shapes that do not fit, no images, labels that are no classes, targets that are the true ones, or
            as the attack says.

    Source: Hinton, Sabour, Frosst 2018, section 5.2, figure 3.
    """
    _check(images, labels, batch_size)
    if not isinstance(epsilons, Iterable):
        raise ValueError(f"epsilons must be several, such as [{epsilons!r}], got one")
    if targets is not None:
        check_shapes(labels=(labels, "B"), targets=(targets, "B"))
        if (targets == labels).any():
            raise ValueError("targets must differ from labels, got some that are the same")
    with torch.no_grad(), eval_mode(model):
        check_classes("labels", labels, scores_of(model, images[:batch_size]).shape[1])
    attacks = _several("attack", attack)
    aims, by = (labels, False) if targets is None else (targets, True)
    strengths, accuracy, success = [], [], []
    for epsilon in epsilons:
        stands, hit = torch.ones_like(labels, dtype=torch.bool), torch.zeros_like(labels, dtype=torch.bool)
        for each in attacks:
            made = (
                each(source or model, some, aim, epsilon, targeted=by)
                for some, aim in zip(images.split(batch_size), aims.split(batch_size), strict=True)
            )
            found = torch.cat([predict(model, some) for some in made])
            stands, hit = stands & (found == labels), hit | (found == aims)
        strengths.append(float(epsilon))
        accuracy.append(float(stands.float().mean()))
        success.append(float(hit.float().mean()))
    return UnderAttack(_numbers(strengths), _numbers(accuracy), None if targets is None else _numbers(success))


def robust_accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilons: Iterable[float],
    attacks: Attack | Sequence[Attack],
    *,
    batch_size: int = 50,
) -> UnderAttack:
    """Measure the share of the images that no attack fools, at this ε or at a smaller one.

    The balls are nested, so an image that is fooled once stays fooled, and only the others are attacked again.

    Args:
        model: any module that returns scores ``[B, J]``, or an output with ``.scores``.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: the true classes, ``[B]`` int64.
        epsilons: ascending.
        attacks: one or several, all of which are tried, untargeted.
        batch_size: images that are attacked at once.

    Raises:
        ValueError: as :func:`accuracy_under_attack`; ``epsilons`` that descend.
    """
    _check(images, labels, batch_size)
    tried = _several("attacks", attacks)
    with torch.no_grad(), eval_mode(model):
        scores = torch.cat([scores_of(model, some) for some in images.split(batch_size)])
    check_classes("labels", labels, scores.shape[1])
    left = (scores.argmax(dim=1) == labels).nonzero().squeeze(1)
    strengths, accuracy = [], []
    for epsilon in epsilons:
        if strengths and epsilon < strengths[-1]:
            raise ValueError(f"epsilons must ascend, got {epsilon} after {strengths[-1]}")
        check_attack(images, labels, epsilon)  # which the attacks do only where an image is left
        for attack in tried:
            if not len(left):
                break
            stands = [
                predict(model, attack(model, images[some], labels[some], epsilon)) == labels[some]
                for some in left.split(batch_size)
            ]
            left = left[torch.cat(stands)]
        strengths.append(float(epsilon))
        accuracy.append(len(left) / len(images))
    return UnderAttack(_numbers(strengths), _numbers(accuracy), None)


def zero_gradients(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    loss: Loss | Sequence[Loss] = cross_entropy,
    batch_size: int = 50,
) -> float:
    """Measure the share of the images at which the loss has no gradient: attacks that follow it cannot change them.

    Args:
        model: as of :func:`~study.analysis.fgsm`, like ``images`` and ``labels``.
        images: ``[B, C, H, W]``.
        labels: ``[B]``.
        loss: one, or several of which none has a gradient.
        batch_size: images at a time.

    Raises:
        ValueError: as :func:`accuracy_under_attack`; no loss, or a gradient that is not finite.

    Source: Athalye, Carlini, Wagner 2018 ("Obfuscated Gradients Give a False Sense of Security"), section 3.1.
    """
    _check(images, labels, batch_size)
    losses = [loss] if callable(loss) else list(loss)
    if not losses:
        raise ValueError("loss must be one or several, got none")
    stuck = torch.ones_like(labels, dtype=torch.bool)
    for each in losses:
        parts = zip(images.split(batch_size), labels.split(batch_size), strict=True)
        zero = [(gradient(model, some, true, each).flatten(1) == 0).all(dim=1) for some, true in parts]
        stuck &= torch.cat(zero)
    return float(stuck.float().mean())


def random_targets(labels: Tensor, n_classes: int, seed: int = 0) -> Tensor:
    """Draw one of the other classes for each image, all with equal probability, ``[B]`` int64."""
    check_shapes(labels=(labels, "B"))
    check_at_least("n_classes", n_classes, 2)
    check_classes("labels", labels, n_classes)
    further = torch.randint(1, n_classes, labels.shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return (labels + further.to(labels.device)) % n_classes


def _several(name: str, attacks: Attack | Sequence[Attack]) -> list[Attack]:
    given = [attacks] if callable(attacks) else list(attacks)
    if not given:
        raise ValueError(f"{name} must be one or several, got none")
    return given


def _numbers(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, device="cpu")


def _check(images: Tensor, labels: Tensor, batch_size: int) -> None:
    sizes = check_shapes(images=(images, "B C H W"), labels=(labels, "B"))
    check_int64("labels", labels)
    check_at_least("the number of images", sizes["B"], 1)
    check_at_least("batch_size", batch_size, 1)
