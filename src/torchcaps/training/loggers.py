"""Loggers of Lightning that a run hands its metrics to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.loggers import Logger, TensorBoardLogger

TENSORBOARD = "tensorboard"


def as_loggers(logger: Logger | Sequence[Logger] | str | None, folder: Path) -> tuple[Logger, ...]:
    """Return the loggers that are meant: none, one, several, or "tensorboard" for one that writes into the folder.

    Raises:
        ValueError: something else, or TensorBoard is not installed.
    """
    if logger is None:
        return ()
    if isinstance(logger, str) and logger == TENSORBOARD:
        try:
            return (TensorBoardLogger(folder, name=None, version=TENSORBOARD),)
        except ModuleNotFoundError as error:
            raise ValueError("logger tensorboard is not there: pip install tensorboard") from error
    if isinstance(logger, Logger):
        return (logger,)
    given: Sequence[object] = logger if isinstance(logger, Sequence) and not isinstance(logger, str) else ()
    several = tuple(each for each in given if isinstance(each, Logger))
    if not several or len(several) < len(given):
        raise ValueError(f"logger must be a Lightning logger, several, or {TENSORBOARD!r}; got {logger!r}")
    return several
