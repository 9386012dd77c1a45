"""Images changed by little such that a classifier errs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_classes, check_int64, check_number, check_shapes
from torchcaps.explain.models import eval_mode, full_gradient, inspects_model, scores_of

#: Of scores ``[B, J]`` and classes ``[B]``: one number for the batch, a sum or mean over its images. Its
#: gradient's sign is all that is used, so that its scale does not matter. (That of a mean over many images may vanish
#: in half precision.)
Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the softmax over the scores, sum over the batch."""
    return F.cross_entropy(scores, labels, reduction="sum")


def margin_gap(scores: Tensor, labels: Tensor) -> Tensor:
    """The largest other score minus that of the class, sum over the batch: positive of an image where the class has
    lost.

    Where cross-entropy is flat because all scores but one are far away, this is not.

    Source: Carlini, Wagner 2017 ("Towards Evaluating the Robustness of Neural Networks"), section V.A, f₆ (there of
    logits).
    """
    own = scores.gather(1, labels[:, None]).squeeze(1)
    others = scores.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    return (others - own).sum()


class Attack(Protocol):
    """:func:`fgsm`, :func:`bim`, :func:`pgd`, or another of this form."""

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, *, targeted: bool = False
    ) -> Tensor: ...


def fgsm(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    targeted: bool = False,
    loss: Loss = cross_entropy,
) -> Tensor:
    """One step of ε along the sign of the gradient: the fast gradient sign method.

    Args:
        model: any module that returns scores ``[B, J]``, or an output that has them as ``.scores``.
        images: ``[B, C, H, W]``, values 0 … 1.
        labels: the true classes, whose loss is raised; with ``targeted`` wrong ones, whose loss is lowered;
            ``[B]`` int64.
        epsilon: largest change of a pixel, on the scale of 0 … 1.
        targeted: what ``labels`` are.
        loss: cross-entropy over the scores by default, for lengths too: capsules' own margin loss is flat
            where the margin is kept, and so would tell an attacker nothing.

    Returns:
        Images within ``epsilon`` of these, but for rounding, and within 0 … 1.

    Raises:
        ValueError: shapes that do not fit, pixels outside 0 … 1, or a negative ``epsilon``.

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
    """Several small steps of :func:`fgsm`, cut back to the ball of ε after each: the basic iterative method.

    Args:
        n_steps: how many.
        step: of what size; by default 1.25 ε in all, as its authors have it up to ε = 16/255. (Beyond, theirs is
            ε + 4/255, here 1.25 ε still.) The others as :func:`fgsm`.

    Raises:
        ValueError: as :func:`fgsm`; no steps, or a negative one.

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
    """:func:`bim` from random points of the ball, over again for the images that withstood: projected gradient descent.

    A network that only hides its gradient, near the images or in one loss, withstands :func:`bim` and not this.

    Args:
        n_restarts: starts at most of each image.
        seed: of the starts, which are drawn for a whole batch: in another batch an image starts elsewhere. The others
            as :func:`bim`; 2.5 ε in all by default.

    Returns:
        The first that succeeded of each image, else the last that was tried.

    Raises:
        ValueError: as :func:`bim`; no start.

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
    """Of the loss with respect to the images, ``[B, C, H, W]``, without dropout. The weights gather none.

    Through all iterations of every routing, whatever the layers do in training (``gradient="last"``).

    Raises:
        ValueError: labels that are no classes of the model, or a gradient that is not finite: no attack could follow
            it, so that the model would seem to withstand all.
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
    """The class with the largest score, ``[B]``, without dropout."""
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
    """See that what every attack is given fits, and choose the step: by default so many ε for all steps together."""
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
