"""A short slice of ``tools/fuzz.py`` and of ``tools/fuzz_calls.py``, and what long runs of the former found."""

from __future__ import annotations

import io
import json
import pydoc
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchcaps
from torchcaps.data.arrays import load_arrays
from torchcaps.data.tables import read_table
from torchcaps.training.files import read_json

ROOT = Path(__file__).parents[1]
DEEP = "[" * 100_000
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as Linux counts it")


def found(fuzzer: str, cases: int, out: Path, *only: str) -> dict[str, Any]:
    """Run a fuzzer in a process of its own, which forks no threads of other tests."""
    command = [sys.executable, "-m", f"tools.{fuzzer}", "--cases", str(cases), "--seed", "1", "--out", str(out)]
    command += ["--only", *only] if only else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(out.read_text())


@LINUX
def test_readers_end_in_a_result_or_an_error_that_names_the_file(tmp_path: Path) -> None:
    counted = found("fuzz", 200, tmp_path / "found.json")
    assert counted["faults"] == {}
    assert sum(counts.get("ValueError", 0) for counts in counted["outcomes"].values()) > 100


@LINUX
def test_calls_and_commands_end_in_a_result_or_an_error_that_names_an_argument(tmp_path: Path) -> None:
    names = ("ops.dynamic_routing", "ops.conv_em_routing", "ops.margin_loss", "ops.mask_capsules", "layers.DenseCaps")
    names += ("models.build", "explain.draw_parts", "data.Images", "training.Data")
    only = *(f"torchcaps.{name}" for name in names), "torchcaps predict"
    counted = found("fuzz_calls", 200, tmp_path / "found.json", *only)
    assert counted["faults"] == {}
    assert set(counted["outcomes"]) == set(only)
    assert sum(counts.get("ValueError", 0) for counts in counted["outcomes"].values()) > 50
    assert sum(counts.get("result", 0) for counts in counted["outcomes"].values()) > 50


def test_every_public_name_is_called_or_left_out_for_a_reason() -> None:
    from tools.calls_of_the_rest import LEFT_OUT
    from tools.commands import COMMANDS
    from tools.fuzz_calls import EVERY
    from torchcaps.cli.parser import make_parser

    called = {name.partition(" ")[0] for name in EVERY}
    called |= {f"torchcaps.{name.rpartition('.')[2]}" for name in called}  # those that users start from
    called |= {name for names in LEFT_OUT.values() for name in names}
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    blocks = re.findall(r"```\{public\} (\S+)\n(.*?)```", pages, re.DOTALL)
    public = {f"{module}.{name}" for module, names in blocks for name in names.split()}
    public = {name for name in public if callable(pydoc.locate(name))}
    assert len(public) > 200
    assert public - called == set()
    assert {f"torchcaps.{name}" for name in torchcaps.__all__} - called - {"torchcaps.Capsules"} == set()
    usage = next(each for each in make_parser()._actions if each.metavar == "COMMAND")
    assert set(usage.choices or ()) - set(COMMANDS) == set()


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
