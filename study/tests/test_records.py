"""Records are read and written whole, by several processes at once, and nothing is lost or passed over."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import as_json, from_json
from study import records
from study.cli import KINDS, main
from study.recipes import recipe
from study.recorded import record
from study.tests.test_tables import result
from torchcaps.training.files import write_json


def test_one_line_a_record_sorted_by_key(tmp_path: Path) -> None:
    for name, value in (("b", 1), ("a", 0.1), ("é\u2028/c", None)):
        assert records.write("checks", name, {"ü": value, "of": (1, 2)}, tmp_path) == f"{tmp_path}/checks.jsonl: {name}"
    text = (tmp_path / "checks.jsonl").read_bytes().decode()
    assert text.startswith('{"key": "a", "ü": 0.1, "of": [1, 2]}\n{"key": "b", ') and text.count("\n") == 3
    assert records.names("checks", tmp_path) == ["a", "b", "é\u2028/c"]
    assert records.read("checks", "é\u2028/c", tmp_path) == {"ü": None, "of": [1, 2]}
    assert records.every("runs", tmp_path) == {} and KINDS == records.KINDS


def test_a_record_is_replaced_only_where_that_is_said(tmp_path: Path) -> None:
    records.write("checks", "a", {"of": (1,)}, tmp_path)
    before = (tmp_path / "checks.jsonl").read_bytes()
    records.write("checks", "a", {"of": [1]}, tmp_path)
    with pytest.raises(ValueError, match=r"checks\.jsonl: a is another record: remove that line to keep this one"):
        records.write("checks", "a", {"of": [2]}, tmp_path)
    assert (tmp_path / "checks.jsonl").read_bytes() == before
    records.write("checks", "a", {"of": [2]}, tmp_path, replace=True)
    assert records.read("checks", "a", tmp_path) == {"of": [2]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2, must be a record in JSON, got '\{'"),
        ("", "line 2, must be a record in JSON, got ''"),
        ('{"key": "b", "x": NaN}', "line 2, must be a record in JSON, got .*: NaN is no JSON"),
        ("[1]", r"line 2, must be a record with its name as key, got '\[1\]'"),
        ('{"x": 1}', "line 2, must be a record with its name as key, got"),
        ('{"key": "a"}', "line 2, must have a name of its own, got a again"),
    ],
)
def test_a_broken_line_is_named_and_stops_all(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"key": "a"}\n' + line + '\n{"key": "c"}\n')
    before = path.read_bytes()
    for call in (
        lambda: records.every("runs", tmp_path),
        lambda: records.read("runs", "a", tmp_path),
        lambda: records.write("runs", "d", {}, tmp_path),
    ):
        with pytest.raises(ValueError, match=rf"runs\.jsonl, {message}"):
            call()
    assert path.read_bytes() == before


def test_a_last_line_without_its_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"key": "a"}\n{"key": "b"}')
    assert records.names("runs", tmp_path) == ["a", "b"]
    (tmp_path / "runs.jsonl").write_text('{"key": "a"}\n{"key": "b", "x": ')  # cut off
    with pytest.raises(ValueError, match="line 2, must be a record in JSON"):
        records.names("runs", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("taste", "a", {}), r"kind must be one of runs, .*; got 'taste'"),
        (("runs", "", {}), "record must have a name and no field key, got ''"),
        (("runs", "a", {"key": 1}), "record must have a name and no field key, got 'a' with key"),
        (("runs", "a", {"x": float("nan")}), "not JSON compliant"),
    ],
)
def test_what_is_no_record_is_refused(arguments: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        records.write(*arguments, tmp_path)
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_name_that_is_not_there_is_said(tmp_path: Path) -> None:
    records.write("runs", "b", {}, tmp_path)
    with pytest.raises(ValueError, match=r"runs\.jsonl must have a record a, got 1 others"):
        records.read("runs", "a", tmp_path)


def _write_ten(folder: Path, who: int) -> None:
    for k in range(10):
        records.write("runs", f"{who}-{k}", {"who": who, "k": k}, folder)


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each reads all, adds one and writes all: without the lock some would be gone."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_ten, args=(tmp_path, who)) for who in range(3)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(120)
    assert [each.exitcode for each in writers] == [0, 0, 0]
    assert records.every("runs", tmp_path) == {
        f"{who}-{k}": {"who": who, "k": k} for who in range(3) for k in range(10)
    }


def test_a_write_that_is_stopped_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.write("runs", "a", {}, tmp_path)
    before = (tmp_path / "runs.jsonl").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            records.write("runs", "b", {}, tmp_path)
    assert (tmp_path / "runs.jsonl").read_bytes() == before
    records.write("runs", "b", {}, tmp_path)  # the lock is free
    assert records.names("runs", tmp_path) == ["a", "b"] and not list(tmp_path.glob("*.partial"))


def test_what_other_commands_wrote_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, kept = recipe("digits").to_dict(), tmp_path / "kept"
    files = {
        "tuning": {"recipe": "digits", "trials": [], "best": {}, "config": config},
        "few-labels": {"recipe": "digits", "rows": [], "trained": [], "config": config},
        "bench": {"device": "abacus", "smoke": False, "suites": {}},
    }
    for kind, content in files.items():
        write_json(tmp_path / f"{kind}.json", content)
        given = ["--as", "steps"] if kind == "bench" else []
        assert main(["record", str(tmp_path / f"{kind}.json"), "--to", str(kept), *given]) == 0
        name = "steps" if kind == "bench" else "digits"
        assert f"{kind}.jsonl: {name}" in capsys.readouterr().out
        assert records.read(kind, name, kept) == json.loads(json.dumps(content))
    records.write("gpu", "speed", {"rows": {}, "smoke": False}, tmp_path)
    assert record(tmp_path / "gpu.jsonl", kept) == [f"{kept}/gpu.jsonl: speed"]
    assert main(["show", "gpu", "--from", str(kept)]) == 0 and capsys.readouterr().out == "speed\n"
    assert main(["show", "gpu", "speed", "--from", str(kept)]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": {}, "smoke": False}


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ({"mine": 1}, None, "must be a run's folder or what tune, few-labels or a benchmark wrote, got neither"),
        ([1], None, "got neither"),
        ({"suites": {}}, None, "is a benchmark, which wants a name: give one by --as"),
        ({"suites": {}, "smoke": True}, "steps", "steps must be no smoke run, which is no result"),
        ({"recipe": "digits", "trials": [], "best": {}, "config": {}}, None, "keep wants a recipe as it is"),
        (
            {"recipe": "digits", "trials": [], "best": {}, "config": result()["config"]},
            "mine",
            "--as must be left out except for a benchmark, got mine",
        ),
    ],
)
def test_what_is_not_to_be_recorded(content: Any, name: str | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "it.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        record(tmp_path / "it.json", tmp_path / "kept", name)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(("kind", "name"), [("few-labels", "mnist-templates"), ("bench", "steps"), ("bench", "growth")])
def test_pictures_are_drawn_again(kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.png"
    assert main(["show", kind, name, "--picture", str(file)]) == 0 and file.stat().st_size > 50_000
    before = file.read_bytes()
    assert main(["show", kind, name, "--picture", str(file)]) == 2 and file.read_bytes() == before
    assert "--picture must be a file that is free" in capsys.readouterr().err
    assert main(["show", "runs", "mnist-0", "--picture", str(tmp_path / "b.png")]) == 2
    assert "kind must be one of few-labels, bench; got 'runs'" in capsys.readouterr().err


@pytest.mark.parametrize("name", records.names("bench"))
def test_a_benchmark_is_read_as_it_was_written(name: str) -> None:
    suites = records.read("bench", name)["suites"]
    for row in (row for suite in suites.values() for row in suite["rows"]):
        row.setdefault("least", None)  # which the older one of growth does not name
    assert json.loads(json.dumps(as_json(from_json(suites)))) == suites
