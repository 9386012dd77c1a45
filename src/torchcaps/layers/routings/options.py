"""Checks of the options and sizes that several routings share."""

from __future__ import annotations

import math

from torch import Tensor

from torchcaps.checks import check_at_least, check_choice, check_positive
from torchcaps.layers.routing import Sizes
from torchcaps.ops.backends.dispatch import BACKENDS
from torchcaps.ops.dynamic.routing import BACKPROP


def check_iterated(*, n_iters: int, backprop: str, backend: str) -> None:
    """Refuse options of an iterated routing that are out of range."""
    check_at_least("n_iters", n_iters, 1)
    check_choice("backprop", backprop, BACKPROP)
    check_choice("backend", backend, BACKENDS)


def check_weight_std(weight_std: float | None) -> None:
    """Refuse a standard deviation that is not positive; None stands for one that follows from the sizes."""
    if weight_std is not None:
        check_positive("weight_std", weight_std)


def known_sizes(sizes: Sizes) -> tuple[int, int, int, int]:
    """Return the first four sizes, for routings that have a matrix for each lower capsule."""
    if sizes.n_in is None:
        raise ValueError("n_in must be given for a routing with a matrix for each lower capsule, got None")
    return sizes.n_in, sizes.n_out, sizes.d_in, sizes.d_out


def shaped(vectors: Tensor, pose: str) -> Tensor:
    """Return poses ``[..., n²]`` as n×n matrices where ``pose`` is "matrix"."""
    side = math.isqrt(vectors.shape[-1])
    return vectors.unflatten(-1, (side, side)) if pose == "matrix" else vectors
