"""What all measures share: which networks, which test images, and numbers as JSON takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor

from torchcaps.data.images import fixed_order
from torchcaps.progress import with_time_left
from torchcaps.report import EvaluatedRun

T = TypeVar("T")


def networks(tested: EvaluatedRun, beside: EvaluatedRun | None) -> dict[str, EvaluatedRun]:
    """The runs by the part they play: "run", and "beside" where there is one.

    Raises:
        ValueError: they were not tested on the same images.
    """
    if beside is None:
        return {"run": tested}
    # Not their labels alone, which folds of one data set may share.
    if not torch.equal(tested.images, beside.images) or not torch.equal(tested.labels, beside.labels):
        raise ValueError(
            f"beside must be a run with the same test images as {tested.run.path}, of shape "
            f"{list(tested.images.shape)}; got {beside.run.path}, of shape {list(beside.images.shape)}"
        )
    return {"run": tested, "beside": beside}


def name_of(tested: EvaluatedRun) -> str:
    """The folder's name."""
    return tested.run.path.resolve().name


def sample(tested: EvaluatedRun, n: int | None, default: int) -> tuple[Tensor, Tensor]:
    """Test images ``[n, C, H, W]`` and classes ``[n]``, as :func:`choose` has them.

    Raises:
        ValueError: a run on pairs, or n that is not among 1 … the number of test images.
    """
    chosen = choose(tested, n, default)
    return tested.images[chosen], tested.labels[chosen, 0]


def choose(tested: EvaluatedRun, n: int | None, default: int) -> Tensor:
    """The places of n test images, evenly spaced in the files (MNIST's second half is harder).

    Where objects and viewpoints are known (small NORB), files have them in a regular order, with which even steps fall
    in step: 100 of its images would show 20 of 972 views, each category 4 of its own. There they are drawn (seed 0).

    Raises:
        ValueError: a run on pairs, or n that is not among 1 … the number of test images.
    """
    if tested.config.data.pairs:
        raise ValueError(f"run must be of single images for this measure, got one of pairs: {tested.run.path}")
    places = spaced(len(tested.images), n, default)
    if not tested.data.test.factors:
        return places
    return fixed_order(len(tested.images), 0)[: len(places)].sort().values


def spaced(length: int, n: int | None, default: int) -> Tensor:
    """n places in 0 … length − 1, evenly spaced; where n is None as many as the default, or all if these are fewer.

    Raises:
        ValueError: n is not among 1 … length.
    """
    n = min(default, length) if n is None else n
    if not 1 <= n <= length:
        raise ValueError(f"n must be among 1 … {length}, the images that there are; got {n}")
    return torch.arange(n) * length // n


def bar(values: Iterable[T], what: str) -> Iterable[T]:
    """Say how far it is, and how long it will take."""
    return with_time_left(values, what)


def number(value: Tensor | float) -> float | None:
    """Keep six digits behind the point, as JSON knows it; None for NaN. With five a table, rounding again, errs."""
    value = float(value)
    return None if math.isnan(value) else round(value, 6)


def numbers(values: Tensor) -> list[float | None]:
    """A vector as JSON knows it."""
    return [number(value) for value in values.tolist()]
