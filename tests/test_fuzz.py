"""A short slice of ``tools/fuzz.py``, and what its long runs found."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from torchcaps.data.arrays import load_arrays
from torchcaps.data.tables import read_table
from torchcaps.training.files import read_json

ROOT = Path(__file__).parents[1]
DEEP = "[" * 100_000


@pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as Linux counts it")
def test_readers_end_in_a_result_or_an_error_that_names_the_file(tmp_path: Path) -> None:
    out = tmp_path / "found.json"  # a process of its own, which forks no threads of other tests
    command = [sys.executable, "-m", "tools.fuzz", "--cases", "200", "--seed", "1", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(out.read_text())
    assert found["faults"] == {}
    assert sum(counts.get("ValueError", 0) for counts in found["outcomes"].values()) > 100


def test_an_array_that_claims_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, np.zeros((4, 4, 4), np.uint8))
    old = b"'shape': (4, 4, 4), }"
    new = b"'shape': (4, 9999999999), }"
    assert old in whole.getvalue()
    lie = whole.getvalue().replace(old + b" " * (len(new) - len(old)), new)
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        archive.writestr("images.npy", lie)
    with pytest.raises(ValueError, match=r"mine.npz must be a .npz file .*images must hold 39999999996 bytes"):
        load_arrays(tmp_path / "mine.npz")


def test_an_archive_of_an_unknown_compression_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, images=np.zeros((4, 4, 4), np.uint8))
    raw = path.read_bytes()
    at, central = raw.index(b"PK\x03\x04") + 8, raw.index(b"PK\x01\x02") + 10
    path.write_bytes(raw[:at] + b"\x63" + raw[at + 1 : central] + b"\x63" + raw[central + 1 :])
    with pytest.raises(ValueError, match=r"mine.npz must be a .npz file"):
        load_arrays(path)


def test_endless_numbers_and_depths_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"file": ' + "9" * 5000 + "}\n")
    (tmp_path / "b.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"a.jsonl cannot be read as a table"):
        read_table(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"b.json cannot be read"):
        read_json(tmp_path / "b.json")
