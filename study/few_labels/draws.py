"""Which examples are labelled."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_labelled(labels: Tensor, n: int, n_classes: int, seed: int) -> Tensor:
    """n examples at random, as many of each class as of every other, or one more of some.

    (Were they drawn without regard to class, the 25 of MNIST would lack 0.7 of its classes on average: an error of
    7 % that no method could avoid.)

    Args:
        labels: of all examples, ``[N]``.
        n: how many to draw.
        n_classes: K.
        seed: of the draw.

    Returns:
        places ``[n]``, class by class.

    Raises:
        ValueError: n is below K, or a class has too few examples.
    """
    if n < n_classes:
        raise ValueError(f"labels must be at least one of each of the {n_classes} classes, got {n}")
    generator = torch.Generator().manual_seed(seed)
    more = torch.randperm(n_classes, generator=generator)[: n % n_classes].tolist()
    drawn = []
    for k in range(n_classes):
        there, wanted = (labels == k).nonzero().flatten(), n // n_classes + (k in more)
        if len(there) < wanted:
            raise ValueError(f"class {k} must have {wanted} examples for {n} labels, got {len(there)}")
        drawn.append(there[torch.randperm(len(there), generator=generator)[:wanted]])
    return torch.cat(drawn)
