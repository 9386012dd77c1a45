"""The rows that training wrote down, epoch by epoch."""

from __future__ import annotations

import csv
from pathlib import Path


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """Read a run's ``metrics.csv``.

    Args:
        path: the file.

    Returns:
        One dict an epoch: epoch, step, lr, train_loss, val_loss, of classifiers val_error (a fraction of 1), seconds.

    Raises:
        ValueError: the file is missing, or something in it is no number.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as metrics: {error}") from error
