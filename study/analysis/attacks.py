"""Adversarial attacks: small changes of images that make a classifier err."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_classes, check_int64, check_number, check_shapes
from torchcaps.explain import eval_mode, full_gradient, inspects_model, scores_of

#: Maps scores ``[B, J]`` and classes ``[B]`` to one number for the batch, a sum or mean over its images. Only the sign
#: of its gradient is used, so its scale does not matter. (The gradient of a mean over many images may vanish in half
#: precision.)
Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Sum the cross-entropy of the softmax over the scores over the batch."""
    return F.cross_entropy(scores, labels, reduction="sum")


def margin_gap(scores: Tensor, labels: Tensor) -> Tensor:
    """Sum the largest other score minus the class's own over the batch: positive for a misclassified image.

    Cross-entropy is flat where all scores but one are far away; this loss is not.

    Source: Carlini, Wagner 2017 ("Towards Evaluating the Robustness of Neural Networks"), section V.A, f₆ (there for
    logits).
    """
    own = scores.gather(1, labels[:, None]).squeeze(1)
    others = scores.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    return (others - own).sum()


class Attack(Protocol):
    """:func:`fgsm`, :func:`bim`, :func:`pgd`, or another of this form."""

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, *, targeted: bool = False
    ) -> Tensor:
        """Change images by at most ``epsilon`` a pixel."""
        ...


def fgsm(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    targeted: bool = False,
    loss: Loss = cross_entropy,
) -> Tensor:
    """Take one step of ε along the sign of the gradient: the fast gradient sign method.

    Args:
        model: any module that returns scores ``[B, J]``, or an output with ``.scores``.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: the true classes, whose loss is raised; with ``targeted`` the wrong classes whose loss is lowered;
            ``[B]`` int64.
        epsilon: largest change of a pixel, on the scale of 0 … 1.
        targeted: whether ``labels`` are targets.
        loss: cross-entropy over the scores by default, even for lengths: the margin loss of capsules is flat where
            the margin is kept, so its gradient would lead an attack nowhere.

    Returns:
        Images within ``epsilon`` of the given ones, up to rounding, and within 0 … 1.

    Raises:
        ValueError: the shapes do not fit, a pixel is outside 0 … 1, or ``epsilon`` is negative.

    Source: Goodfellow, Shlens, Szegedy 2015 ("Explaining and Harnessing Adversarial Examples"), section 4.
    """
    check_attack(images, labels, epsilon)
    return _climb(model, images, images, labels, epsilon, 1, epsilon, targeted, loss)


def bim(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    targeted: bool = False,
    loss: Loss = cross_entropy,
    n_steps: int = 10,
    step: float | None = None,
) -> Tensor:
    """Take several small steps of :func:`fgsm`, each clipped to the ball of ε: the basic iterative method.

    Args:
        model: as :func:`fgsm`, like the next five.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: the true classes, or with ``targeted`` the wrong ones that are aimed at; ``[B]`` int64.
        epsilon: largest change of a pixel.
        targeted: whether ``labels`` are targets.
        loss: what is climbed.
        n_steps: number of steps.
        step: size of a step; by default all steps add up to 1.25 ε, as the authors have it up to ε = 16/255. (Beyond,
            theirs add up to ε + 4/255, here still to 1.25 ε.)

    Raises:
        ValueError: as :func:`fgsm`; there are no steps, or ``step`` is negative.

    Source: Kurakin, Goodfellow, Bengio 2017 ("Adversarial examples in the physical world"), section 2.2.
    """
    step = check_attack(images, labels, epsilon, n_steps, step)
    return _climb(model, images, images, labels, epsilon, n_steps, step, targeted, loss)


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    targeted: bool = False,
    loss: Loss = cross_entropy,
    n_steps: int = 40,
    step: float | None = None,
    n_restarts: int = 2,
    seed: int = 0,
) -> Tensor:
    """Run :func:`bim` from random points of the ball, repeatedly for images that withstand: projected gradient descent.

    A network that only hides its gradient, near the images or in one loss, withstands :func:`bim` and not this.

    Args:
        model: as :func:`fgsm`, like the next five.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: the true classes, or with ``targeted`` the wrong ones that are aimed at; ``[B]`` int64.
        epsilon: largest change of a pixel.
        targeted: whether ``labels`` are targets.
        loss: what is climbed.
        n_steps: number of steps from each start.
        step: size of a step; by default all steps add up to 2.5 ε.
        n_restarts: largest number of starts for each image.
        seed: seed of the starts. They are drawn for a whole batch: in another batch an image starts elsewhere.

    Returns:
        The first success for each image, else the last attempt.

    Raises:
        ValueError: as :func:`bim`; ``n_restarts`` is below 1.

    Source: Madry et al. 2018 ("Towards Deep Learning Models Resistant to Adversarial Attacks"), section 2.
    """
    check_at_least("n_restarts", n_restarts, 1)
    step = check_attack(images, labels, epsilon, n_steps, step, budget=2.5)
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device draws the same
    images = images.detach()
    found, left = images.clone(), torch.arange(len(images), device=images.device)
    for _ in range(n_restarts):
        noise = epsilon * (2 * torch.rand(images.shape, generator=generator, device="cpu") - 1).to(images)
        start = (images + noise).clamp(0, 1)[left]
        found[left] = _climb(model, images[left], start, labels[left], epsilon, n_steps, step, targeted, loss)
        hit = predict(model, found[left]) == labels[left]
        left = left[~hit if targeted else hit]
        if not len(left):
            break
    return found


def gradient(model: nn.Module, images: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """Compute the gradient of the loss with respect to the images, ``[B, C, H, W]``, without dropout.

    It goes through all iterations of every routing, even where training uses ``backprop="last"``. The weights gather no
    gradient.

    Raises:
        ValueError: a label is no class of the model, or the gradient is not finite: no attack could follow it, so the
            model would seem to withstand all.
    """
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model), full_gradient(model):
        x, labels = images.detach().clone().requires_grad_(), labels.clone()  # of inference mode none is derivable
        scores = scores_of(model, x)
        check_classes("labels", labels, scores.shape[1])
        (found,) = torch.autograd.grad(loss(scores, labels), x)
    if not found.isfinite().all():
        raise ValueError(f"model must have a finite gradient with respect to the images, got {found.abs().max()}")
    return found


@inspects_model
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Predict the class with the largest score, ``[B]``, without dropout."""
    return scores_of(model, images).argmax(dim=1)


def _climb(
    model: nn.Module,
    images: Tensor,
    start: Tensor,
    labels: Tensor,
    epsilon: float,
    n_steps: int,
    step: float,
    targeted: bool,
    loss: Loss,
) -> Tensor:
    images, start = images.detach(), start.detach()
    lowest, highest = (images - epsilon).clamp_min(0), (images + epsilon).clamp_max(1)
    x, direction = start, -1 if targeted else 1
    for _ in range(n_steps):
        x = x + direction * step * gradient(model, x, labels, loss).sign()
        x = x.clamp(lowest, highest)
    return x


def check_attack(
    images: Tensor, labels: Tensor, epsilon: float, n_steps: int = 1, step: float | None = None, budget: float = 1.25
) -> float:
    """Check the arguments of every attack, and choose the step: by default all steps add up to ``budget`` · ε."""
    check_shapes(images=(images, "B C H W"), labels=(labels, "B"))
    check_int64("labels", labels)
    check_at_least("n_steps", n_steps, 1)
    if images.numel():
        least, most = (float(end) for end in images.detach().aminmax())
        if not 0 <= least <= most <= 1:
            raise ValueError(f"images must be within 0 … 1, got {least} … {most}")
    for name, value in (("epsilon", epsilon), ("step", 0.0 if step is None else step)):
        check_number(name, value, 0)
    return budget * epsilon / n_steps if step is None else step
