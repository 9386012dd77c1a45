"""``python -m benchmarks``, as a stranger would type it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.__main__ import main, make_parser
from benchmarks.suites import SUITES

ROOT = Path(__file__).resolve().parents[2]


def test_bench_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dynamic", "capsnet", "em", "--smoke", "--repeats=2", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "bench.json").read_text())
    assert list(content["suites"]) == ["dynamic", "capsnet", "em"] and content["smoke"]
    assert {"device", "threads", "repeats", "versions", "commit", "backend"} <= set(content)
    rows = [row for suite in content["suites"].values() for row in suite["rows"]]
    assert len([row for row in rows if row["must"] is not None]) == 10 and all(row["value"] > 0 for row in rows)
    table = (tmp_path / "bench.md").read_text()
    assert all(f"| {row['what']} |" in table for row in rows) and table in capsys.readouterr().out
    with Image.open(tmp_path / "bench.png") as picture:
        assert picture.size[0] > 1000
    assert f"ours: backend={content['backend']['dynamic']!r} (dynamic)" in table
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    for out in (tmp_path, tmp_path / "bench.md"):
        assert main(["em", "--smoke", "--repeats=1", "--out", str(out)]) == 2
        assert "out must be a new folder or an empty one, got " in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_was_measured_is_kept_where_a_later_suite_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the commit of the code that began."""
    from benchmarks import bench, result

    commits = iter(("first", "second"))
    monkeypatch.setattr(bench, "commit", lambda *_: next(commits))

    def fail(_: Any) -> Any:
        raise ValueError("the memory could not be measured")

    one = result.Found("Quick")
    monkeypatch.setattr(bench, "SUITES", {"quick": lambda conditions: one, "broken": fail})
    assert main(["quick", "broken", "--out", str(tmp_path)]) == 2
    content = json.loads((tmp_path / "bench.json").read_text())
    assert list(content["suites"]) == ["quick"] and content["commit"] == "first"
    assert main(["quick", "--out", str(tmp_path / "none")]) == 0  # with nothing to draw
    assert sorted(path.name for path in (tmp_path / "none").iterdir()) == ["bench.json", "bench.md"]


def test_bench_does_not_time_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import contenders

    right = contenders.DYNAMIC["tiled"]
    monkeypatch.setitem(contenders.DYNAMIC, "tiled", lambda u, weight, bias, n_iters: right(u, weight, bias, 2))
    assert main(["dynamic", "--smoke", "--out", str(tmp_path / "a")]) == 2
    assert "tiled: pose must be within 0.001 of the reference in float64" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["speed"],
            "suite must be one of dynamic, capsnet, em, memory, growth, threads, routings, peers, bounds; got 'speed'",
        ),
        (["dynamic", "--repeats=0"], "repeats must be an integer of at least 1, got 0"),
        (["dynamic", "--out="], "out must name a folder, got an empty text"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("benchmarks: ") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_names_every_suite() -> None:
    assert ", ".join(SUITES) in " ".join(make_parser().format_help().split())


def test_as_a_module() -> None:
    """From the root of a clone, without an installed package beside torchcaps."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "speed"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("benchmarks: suite must be one of dynamic, ")
