"""Images and labels from MATLAB's files."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np


def read_mat(file: IO[bytes] | Path, name: str | Path) -> dict[str, Any]:
    """Read all variables of a ``.mat`` file, by name: arrays without axes of size 1, and structs as dicts.

    SciPy's reader can end the process at broken bytes. Give it only a file whose checksum is pinned and was checked.

    Args:
        file: the file.
        name: what errors call it.

    Raises:
        ValueError: it is not a whole ``.mat`` file.
    """
    from scipy.io import loadmat

    try:
        return loadmat(file, simplify_cells=True)
    except MemoryError:
        raise
    except Exception as error:  # scipy raises whatever the broken bytes lead it to
        raise ValueError(f"{name} must be a whole .mat file of version 7 or below: {error!r}") from error


def require_array(content: dict[str, Any], key: str, sizes: tuple[int | None, ...], name: str | Path) -> np.ndarray:
    """Return one of the variables, once it is known to be bytes of the right shape.

    Args:
        content: as :func:`read_mat` gave it.
        key: the variable.
        sizes: of its axes; None where any will do.
        name: what errors call the file.

    Raises:
        ValueError: it is not there, not of bytes, or of another shape.
    """
    found = content.get(key)
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or not _fits(found.shape, sizes):
        wanted = " × ".join("N" if size is None else str(size) for size in sizes)
        got = f"{found.dtype} of {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ValueError(f"{name} must hold {key} as uint8 of {wanted}, got {got}")
    return found


def _fits(shape: tuple[int, ...], sizes: tuple[int | None, ...]) -> bool:
    return len(shape) == len(sizes) and all(want in (None, have) for have, want in zip(shape, sizes, strict=True))
