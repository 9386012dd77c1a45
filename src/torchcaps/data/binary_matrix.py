"""The binary-matrix files of NORB: what type, what sizes, then the numbers."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import numpy as np

#: The type of the numbers, by the magic number that a file begins with.
DTYPES = {
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
    0x1E3D4C56: np.dtype("<i2"),
}


def read_matrix(path: Path, sha256: str | None = None) -> np.ndarray:
    """Read a binary matrix, gzipped if its name ends in ``.gz``.

    All is little-endian: the magic number, how many dimensions, their sizes (at least three are
    written, so a vector's are followed by two that do not count), the numbers.

    Args:
        path: the file.
        sha256: checksum of its content, not gzipped; None where none is known.

    Returns:
        The numbers, read-only, of the type and shape that the file states.

    Raises:
        ValueError: not gzip, another checksum, no binary matrix, or longer or shorter than it says.

    Source: LeCun, Huang, Bottou 2004, the README of small NORB.
    """
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} must be a whole gzip file: {error}") from error
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise ValueError(
            f"{path} must have a content of the sha256 {sha256}, got {hashlib.sha256(raw).hexdigest()}: "
            f"it is damaged or another file"
        )
    if len(raw) < 8:
        raise ValueError(f"{path} must have a header of at least 20 bytes, got {len(raw)}")
    magic, n_dims = struct.unpack("<Ii", raw[:8])
    if magic not in DTYPES:
        known = ", ".join(f"0x{number:08X} ({dtype.name})" for number, dtype in DTYPES.items())
        raise ValueError(f"{path} must begin with one of the magic numbers {known}; got 0x{magic:08X}")
    if n_dims < 1:
        raise ValueError(f"{path} must have at least one dimension, got {n_dims}")
    header = 8 + 4 * max(3, n_dims)
    if len(raw) < header:
        raise ValueError(f"{path} must have a header of {header} bytes for {n_dims} dimensions, got {len(raw)}")
    shape = struct.unpack(f"<{n_dims}i", raw[8 : 8 + 4 * n_dims])
    if min(shape) < 0:
        raise ValueError(f"{path} must have sizes of at least 0, got {list(shape)}")
    dtype = DTYPES[magic]
    wanted = math.prod(shape) * dtype.itemsize
    if len(raw) - header != wanted:
        raise ValueError(
            f"{path} must hold {wanted} bytes for {dtype.name} of shape {list(shape)}, got {len(raw) - header}"
        )
    return np.frombuffer(raw, dtype, offset=header).reshape(shape)
