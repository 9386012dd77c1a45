"""The papers' tables: which recipe each row is, what the paper claims, and how much training a number needs."""

from __future__ import annotations

from study.tables import dynamic_routing, matrix_capsules
from study.tables.table import Row, Table

#: Every table, by name.
TABLES: dict[str, Table] = {
    "digits": dynamic_routing.DIGITS,
    "mnist": dynamic_routing.MNIST,
    "mnist-iterations": dynamic_routing.MNIST_ITERATIONS,
    "mnist-less-data": dynamic_routing.LESS_DATA,
    "faces": dynamic_routing.FACES,
    "fashion-mnist": dynamic_routing.FASHION_MNIST,
    "multimnist": dynamic_routing.MULTIMNIST,
    "affine": dynamic_routing.AFFINE,
    "smallnorb": matrix_capsules.SMALLNORB,
    "viewpoints": matrix_capsules.VIEWPOINTS,
    "viewpoints-folds": matrix_capsules.VIEWPOINTS_FOLDS,
    "cifar10": dynamic_routing.CIFAR10,
    "svhn": dynamic_routing.SVHN,
}

__all__ = ["TABLES", "Row", "Table"]
