"""The reader of NORB's binary matrices, on bytes written by hand."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from torchcaps.data.binary_matrix import read_matrix

#: int32, two dimensions: 2×2 and the third size that is written all the same; −1, 2, 256, 4.
WHOLE = bytes.fromhex(
    "544c3d1e 02000000 02000000 02000000 01000000"  # 0x1E3D4C54, little-endian
    "ffffffff 02000000 00010000 04000000"
)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.mat", "a.mat.gz"])
def test_reads_what_the_bytes_say(tmp_path: Path, name: str) -> None:
    got = read_matrix(write(tmp_path / name, WHOLE), hashlib.sha256(WHOLE).hexdigest())
    assert got.dtype == np.int32 and got.tolist() == [[-1, 2], [256, 4]]


@pytest.mark.parametrize(
    ("magic", "dtype", "body"),
    [
        (0x1E3D4C51, "float32", struct.pack("<2f", 1, -2)),
        (0x1E3D4C53, "float64", struct.pack("<2d", 1, -2)),
        (0x1E3D4C56, "int16", struct.pack("<2h", 1, -2)),
        (0x1E3D4C55, "uint8", b"\x01\xfe"),
    ],
)
def test_every_type(tmp_path: Path, magic: int, dtype: str, body: bytes) -> None:
    got = read_matrix(write(tmp_path / "a.mat", struct.pack("<I4i", magic, 1, 2, 1, 1) + body))
    assert got.dtype == dtype and got.tolist() == ([1, 254] if dtype == "uint8" else [1, -2])


def test_four_dimensions_have_no_filling(tmp_path: Path) -> None:
    content = struct.pack("<I5i", 0x1E3D4C55, 4, 1, 2, 1, 3) + bytes(range(6))
    assert read_matrix(write(tmp_path / "a.mat", content)).tolist() == [[[[0, 1, 2]], [[3, 4, 5]]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must have a header of at least 20 bytes, got 0"),
        (WHOLE[:12], "must have a header of 20 bytes for 2 dimensions, got 12"),
        (WHOLE[:-1], r"must hold 16 bytes for int32 of shape \[2, 2\], got 15"),
        (WHOLE + b"\0", r"must hold 16 bytes for int32 of shape \[2, 2\], got 17"),
        (b"MATL" + WHOLE[4:], r"must begin with one of the magic numbers 0x1E3D4C51 \(float32\), .*; got 0x4C54414D"),
        (WHOLE[:4][::-1] + WHOLE[4:], "must begin with one of the magic numbers .*; got 0x544C3D1E"),  # big-endian
        (WHOLE[:4] + struct.pack("<i", -1) + WHOLE[8:], "must have at least one dimension, got -1"),
        (WHOLE[:8] + struct.pack("<i", -2) + WHOLE[12:], r"must have sizes of at least 0, got \[-2, 2\]"),
    ],
)
@pytest.mark.parametrize("name", ["bad.mat", "bad.mat.gz"])
def test_refuses_broken_content(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name} {message}"):
        read_matrix(write(tmp_path / name, content))


def test_refuses_broken_gzip_and_other_content(tmp_path: Path) -> None:
    whole = gzip.compress(WHOLE)
    for content in (whole[:-9], WHOLE):
        (tmp_path / "bad.mat.gz").write_bytes(content)
        with pytest.raises(ValueError, match="bad.mat.gz must be a whole gzip file"):
            read_matrix(tmp_path / "bad.mat.gz")
    right = hashlib.sha256(WHOLE).hexdigest()
    with pytest.raises(ValueError, match=f"b.mat must have a content of the sha256 {'0' * 64}, got {right}"):
        read_matrix(write(tmp_path / "b.mat", WHOLE), "0" * 64)
