"""Linear probes: what one matrix can predict from features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_at_least, check_classes, check_positive, check_shapes

#: Penalties to choose from, for features of mean variance 1 and the mean loss over the examples.
PENALTIES = tuple(10.0**k for k in range(-6, 2))


class LinearProbe(NamedTuple):
    """y = x W + b.

    Attributes:
        weight: ``[D, K]``.
        bias: ``[K]``.
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Predict ``[N, K]`` from features ``[N, D]``, in the float64 of the fit."""
        return features.to(self.weight) @ self.weight + self.bias


def ridge(features: Tensor, target: Tensor, penalty: float) -> LinearProbe:
    """Fit numbers by ridge regression: the least mean squared error plus ``penalty`` · ‖W‖², in closed form.

    Features are centred and all divided by one number, so that their mean variance is 1. A frame of their own
    axes is thus given no meaning: a turned pose, or all of its principal components, give the same probe.

    Args:
        features: ``[N, D]``, N ≥ 1.
        target: ``[N, K]``.
        penalty: above 0.

    Raises:
        ValueError: shapes that do not fit, no examples, or a penalty that is not above 0.

    Source: Alain, Bengio 2017 ("Understanding intermediate layers using linear classifier probes").
    """
    x, centre, spread = _scaled(features, penalty)
    check_shapes(features=(features, "N D"), target=(target, "N K"))
    y = target.detach().to(x)
    gram = x.mT @ x / len(x) + penalty * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(gram, x.mT @ (y - y.mean(dim=0)) / len(x))
    return _unscaled(weight, y.mean(dim=0), centre, spread)


def logistic(features: Tensor, labels: Tensor, n_classes: int, penalty: float, n_steps: int = 100) -> LinearProbe:
    """Fit classes: multinomial logistic regression with mean cross-entropy plus ½ ``penalty`` · ‖W‖², by L-BFGS.

    Args:
        features: ``[N, D]``, N ≥ 1; scaled as by :func:`ridge`.
        labels: ``[N]``, integers.
        n_classes: J.
        penalty: above 0. (scikit-learn's C is 1 / (N · penalty).)
        n_steps: of L-BFGS, at most.

    Returns:
        A probe that gives logits ``[N, J]``.

    Raises:
        ValueError: shapes that do not fit, labels that are no classes, no examples, or a penalty that is not above 0.
    """
    check_shapes(features=(features, "N D"), labels=(labels, "N"))
    check_at_least("n_classes", n_classes, 2)
    check_classes("labels", labels, n_classes)
    x, centre, spread = _scaled(features, penalty)
    with torch.inference_mode(False), torch.enable_grad():
        x, labels = x.clone(), labels.clone().long()  # of inference mode none is derivable
        weight = x.new_zeros(x.shape[1], n_classes).requires_grad_()
        bias = x.new_zeros(n_classes).requires_grad_()
        search = torch.optim.LBFGS([weight, bias], max_iter=n_steps, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            found = F.cross_entropy(x @ weight + bias, labels) + 0.5 * penalty * weight.square().sum()
            found.backward()
            return found

        search.step(loss)
    return _unscaled(weight.detach(), bias.detach(), centre, spread)


def choose(fit: Callable[[float], LinearProbe], score: Callable[[LinearProbe], float]) -> LinearProbe:
    """Fit one probe for each of :data:`PENALTIES`, and return the one with the highest score on other examples."""
    return max((fit(penalty) for penalty in reversed(PENALTIES)), key=score)  # of equals the most strongly penalised


def r_squared(predicted: Tensor, target: Tensor) -> Tensor:
    """Compute R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)² per column: 1 is perfect, 0 as good as the mean; it may be negative.

    Args:
        predicted: ``[N, K]``.
        target: ``[N, K]``; a column that never changes gives NaN or −∞.

    Returns:
        ``[K]``.
    """
    check_shapes(predicted=(predicted, "N K"), target=(target, "N K"))
    target = target.to(predicted)
    spread = (target - target.mean(dim=0)).square().sum(dim=0)
    varies = (target != target[:1]).any(dim=0)  # the mean of equal numbers is not always one of them
    return 1 - (target - predicted).square().sum(dim=0) / torch.where(varies, spread, 0)


def divided(n: int, shares: Sequence[float], seed: int = 0) -> list[Tensor]:
    """Split the indices 0 … n − 1 at random into parts of these shares.

    Raises:
        ValueError: shares that are not positive or do not add up to 1, or a part that would be empty.
    """
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares must be positive and add up to 1, got {tuple(shares)}")
    ends = [round(n * sum(shares[: k + 1])) for k in range(len(shares))]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if min(sizes) < 1:
        raise ValueError(f"n must be enough for {len(sizes)} parts that are not empty, got {n}")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed), device="cpu")
    return list(order.split(sizes))


def _scaled(features: Tensor, penalty: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scale features to mean 0 and, over all of them, mean variance 1, in float64; return mean and scale too."""
    check_at_least("the number of examples", len(features), 1)
    check_positive("penalty", penalty)
    x = features.detach().double()
    centre = x.mean(dim=0)
    spread = (x - centre).square().mean().sqrt()
    spread = spread.where(spread > 0, 1)
    return (x - centre) / spread, centre, spread


def _unscaled(weight: Tensor, bias: Tensor, centre: Tensor, spread: Tensor) -> LinearProbe:
    weight = weight / spread
    return LinearProbe(weight, bias - centre @ weight)
