"""The papers' tables: which recipe each row is, what the paper claims, and how much training a number needs."""

from __future__ import annotations

from torchcaps.experiments.tables import dynamic_routing, matrix_capsules
from torchcaps.experiments.tables.table import Row, Table

#: Every table, by name.
TABLES: dict[str, Table] = {
    "digits": dynamic_routing.DIGITS,
    "mnist": dynamic_routing.MNIST,
    "fashion-mnist": dynamic_routing.FASHION_MNIST,
    "smallnorb": matrix_capsules.SMALLNORB,
}

__all__ = ["TABLES", "Row", "Table"]
