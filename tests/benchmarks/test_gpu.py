"""The GPU hour, tried on a CPU: every stage runs, what was killed goes on, and time is kept."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.gpu import checks, speed, training
from benchmarks.gpu.__main__ import SMOKED, STAGES, main, stages
from benchmarks.gpu.bounds import cost
from benchmarks.gpu.picture import draw_speeds
from benchmarks.gpu.problems import EXACT, SMOKE, SPEED
from benchmarks.gpu.session import ROOT, OutOfTime, Session
from benchmarks.gpu.speed import timed
from benchmarks.gpu.table import speeds, stages_of, table
from study import records
from torchcaps.training.files import write_json
from torchcaps.training.recipes import RECIPES


@pytest.fixture
def session(tmp_path: Path) -> Session:
    said: list[str] = []
    return Session(tmp_path / "out", torch.device("cpu"), smoke=True, runs=tmp_path / "runs", say=said.append)


def test_every_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU, with the kernels where their interpreter is at hand, and a second call has nothing left to do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    out = tmp_path / "out"
    arguments = ["--smoke", "--out", str(out), "--runs", str(tmp_path / "runs")]
    assert main(arguments) == 0, capsys.readouterr().out
    found = stages_of(out)
    assert set(found) == set(SMOKED) and set(stages()) == set(STAGES)
    rows = [row for record in found.values() for row in record["rows"].values()]
    assert rows and not [row for row in rows if "error" in row]
    for record in found.values():
        assert {"device", "tf32", "versions", "commit", "smoke"} <= set(record) and record["smoke"]
    assert found["tests"]["rows"]["tests/ops"]["passed"] > 5
    assert all(row["right"] and row["bits stay"] for row in found["exact"]["rows"].values() if "triton" in row)
    assert found["epoch"]["rows"]["digits-0-smoke"]["done"]
    assert (out / "runs" / "digits-0-smoke" / "result.json").is_file()
    text = (out / "table.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out and "a smoke run: the numbers say nothing" in text
    assert all(f"| {name} |" in text for name in SMOKE)
    with Image.open(out / "speed.png") as picture:
        assert picture.size[0] > 1000
    before = {path: path.read_bytes() for path in out.rglob("*.json*") if path.is_file()}
    assert out / "gpu.jsonl" in before
    monkeypatch.setattr(training, "_start", None)  # nothing is done again
    monkeypatch.setattr(checks, "_run", None)
    monkeypatch.setattr(speed, "timed", None)
    assert main(arguments) == 0
    assert {path: path.read_bytes() for path in before} == before


def test_what_was_killed_goes_on(session: Session) -> None:
    made: list[str] = []

    def make(name: str) -> dict[str, Any]:
        made.append(name)
        if made == ["a", "b"]:
            raise KeyboardInterrupt
        if made == ["a", "b", "b", "c"]:
            raise RuntimeError("of a bug\nin two lines")
        return {"value": len(made)}

    for stopped in (True, False, False):
        record = session.record("some")
        try:
            for name in ("a", "b", "c"):
                record.row(name, lambda name=name: make(name))
            assert not stopped
        except KeyboardInterrupt:
            assert stopped and list(records.read("gpu", "some", session.out)["rows"]) == ["a"]
    assert made == ["a", "b", "b", "c", "c"]  # what failed is tried again
    rows = records.read("gpu", "some", session.out)["rows"]
    assert {name: row["value"] for name, row in rows.items()} == {"a": 1, "b": 3, "c": 5}


def test_the_doctors_report_is_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Session, command: list[str], seconds: float) -> dict[str, Any]:
        write_json(Path(command[-1]), {"verdict": "fine"})
        return {"output": "all is well", "errors": "", "status": 0}

    monkeypatch.setattr(checks, "_run", run)
    checks.doctor(session)
    row = session.record("doctor").rows["doctor"]
    assert row["report"] == {"verdict": "fine"} and row["output"] == "all is well" and row["status"] == 0
    assert session.origin()["device"] in table(session.out)  # the report beside is no record


def test_what_goes_wrong_is_in_its_row(session: Session) -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("of a bug\nin two lines")

    assert session.record("some").row("a", fail)["error"] == "RuntimeError: of a bug in two lines"


def test_records_of_another_machine_are_left_alone(session: Session) -> None:
    session.record("some").row("a", lambda: {"value": 1})
    content = records.read("gpu", "some", session.out)
    records.write("gpu", "some", content | {"device": "NVIDIA H100"}, session.out, replace=True)
    with pytest.raises(ValueError, match=r"out must hold no record of another device, but .* is of NVIDIA H100, not"):
        session.record("some")


def test_no_row_is_begun_without_time(session: Session) -> None:
    short = replace(session, smoke=False, until=time.monotonic() + 8)
    assert short.record("some").row("a", lambda: {"value": 1}, least=5)["value"] == 1
    with pytest.raises(OutOfTime):
        short.record("some").row("b", lambda: {"value": 1}, least=30)
    assert list(short.record("some").rows) == ["a"]


def test_time_that_is_over_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    out = ["--smoke", "--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
    assert main(["ceilings", "speed", "epoch", "--seconds", "1e-9", *out]) == 0
    said = capsys.readouterr().out
    assert "time is over; not done: ceilings, speed, epoch; the same command goes on" in said
    assert said.rstrip().endswith("Nothing was recorded.")
    assert not list(tmp_path.iterdir())


def test_a_training_that_does_not_end_is_ended(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[-1]

    monkeypatch.setattr(training, "SAVING_SECONDS", 0.1)
    monkeypatch.setattr(training, "_start", start)
    (session.runs / "digits-0-smoke").mkdir(parents=True)
    (session.runs / "digits-0-smoke" / "metrics.csv").write_text("epoch,val_error,seconds\n1,0.5,9\n2,,14\n3,0.25,19\n")
    (session.runs / "digits-0-smoke.log").write_text("killed\n")
    with pytest.raises(OutOfTime):
        training.train(replace(session, until=time.monotonic() + 1), "mnist")
    assert [process.poll() is not None for process in started] == [True]
    row = session.record("mnist").rows["digits-0-smoke"]
    assert not row["done"] and row["epoch"] == 3 and row["seconds an epoch"] == 5.0 and row["val_error"] == 0.25


def test_a_training_that_fails_says_why(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> subprocess.Popen[bytes]:
        session.runs.mkdir(parents=True)
        with (session.runs / "digits-0-smoke.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-c", "raise SystemExit('no such data')"], stderr=log)

    monkeypatch.setattr(training, "_start", start)
    training.train(session, "mnist")
    assert session.record("mnist").rows["digits-0-smoke"]["error"] == "exit status 1: no such data"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--smoke", "exactly"], "stage must be one of doctor, tests, ceilings, .*; got 'exactly'"),
        (["--smoke", "--seconds=0"], "seconds must be positive, got 0"),
        (["--smoke", "--data=/nowhere"], "data must be a folder, got /nowhere"),
        (["ceilings"], "there must be a GPU, got none: --smoke tries the stages on a CPU"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.startswith("benchmarks.gpu: ") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "megabytes", "gflop"),
    [
        ("dynamic B=64", 25, 2.1),
        ("dynamic B=128", 32, 4.2),
        ("dynamic B=512", 75, 16.6),
        ("dynamic 100 classes", 185, 20.8),
    ],
)
def test_least_bytes_and_operations_of_dynamic_routing(name: str, megabytes: float, gflop: float) -> None:
    """Counted by hand, for an analysis of the kernels, before this code was."""
    least = cost(SPEED[name])
    assert least.bytes / 1e6 == pytest.approx(megabytes, rel=0.02)
    assert least.operations / 1e9 == pytest.approx(gflop, rel=0.02)


@pytest.mark.parametrize(
    ("name", "megabytes", "ms"),
    [("EM conv1 B=64", 99, 1.21), ("EM conv2 B=64", 23, 0.54), ("EM conv1 small B=64", 28, 0.09)],
)
def test_least_bytes_and_time_of_em_routing(name: str, megabytes: float, ms: float) -> None:
    """Likewise; 132 multiprocessors of 128 lanes at 1.755 GHz, a fused multiply-add being two operations."""
    least = cost(SPEED[name])
    assert least.bytes / 1e6 == pytest.approx(megabytes, rel=0.05)
    rates = {"copy": 3.35e12, "float32": 2 * 132 * 128 * 1.755e9, "tf32": 1e30}
    assert 1e3 * least.seconds(rates, "tf32") == pytest.approx(ms, rel=0.05)


def test_forward_takes_less() -> None:
    for problem in (SPEED | EXACT).values():
        both, forward = cost(problem), cost(replace(problem, backward=False))
        assert 0 < 3 * forward.bytes == both.bytes and 0 < 2 * forward.operations < both.operations
        assert cost(problem, item=2).bytes * 2 == both.bytes


def test_a_problem_is_routed_by_name_once_it_is_there(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "why_triton_fails", lambda *_: "no such card")
    assert timed(session, replace(SMOKE["EM tiny"], contender="triton")) == {"left out": "no such card"}
    assert set(timed(session, replace(SMOKE["EM tiny"], contender="reference"))) == {"forward, ms", "both, ms"}


def example(out: Path) -> None:
    """Records as a card would leave them."""
    origin = {
        "device": "NVIDIA H100",
        "tf32": ["convolutions"],
        "versions": {"torch": "2.11"},
        "commit": "abc",
        "smoke": False,
    }
    rows = {
        "dynamic B=128, bound": {"both, ms, products in tf32": 0.03, "forward, ms, products in tf32": 0.01},
        "dynamic B=128, reference": {"both, ms": 6.7, "both, graph ms": 1.7, "forward, ms": 2.0},
        "dynamic B=128, triton": {"both, ms": 0.5, "both, graph ms": 0.3, "forward, ms": 0.2},
        "dynamic B=128, triton, bf16": {"both, ms": 0.4},
        "dynamic B=128, compiled": {"error": "Unsupported: a graph that breaks"},
        "EM conv1 B=64, reference": {"both, ms": 115.0, "forward, ms": 26.0},
    }
    records.write("gpu", "speed", origin | {"rows": rows}, out)
    nets = {
        "capsnet B=128, fp32, floor": {"ms": 4.0, "MB": 100.0},
        "capsnet B=128, fp32, ours": {"ms": 5.0, "MB": 110.0},
    }
    records.write("gpu", "steps", origin | {"rows": nets}, out)


def test_the_recipes_that_are_trained_are_known(tmp_path: Path) -> None:
    """Those of the study too: a process of its own has to enter them."""
    command = [sys.executable, "-m", "benchmarks.gpu.train_one", "smallnorb", "0", str(tmp_path / "run")]
    command += ["--seconds", "60", "--device", "cpu", "--data", str(tmp_path)]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "smallnorb" in done.stderr and "recipe must be" not in done.stderr
    importlib.import_module("study.recipes")
    assert {one.recipe for plan in training.PLANS.values() for one in plan} <= set(RECIPES)


def test_tables_name_the_card_and_compare(tmp_path: Path) -> None:
    example(tmp_path)
    text = table(tmp_path)
    assert text.startswith("# NVIDIA H100\n\ntorch 2.11; commit abc; in TF32: convolutions.\n")
    assert "| dynamic B=128 | 1.7 | 0.3 | 0.03 | 10.0 | 5.67 |" in text
    assert "| EM conv1 B=64 | 115 | – | – | – | – |" in text
    assert "| capsnet B=128 | fp32 | ours | – | 5 | 110 | – | 1.25 | 1.10 |" in text


def test_the_picture_shows_what_was_timed(tmp_path: Path) -> None:
    example(tmp_path)
    times = speeds(stages_of(tmp_path), "both")
    figure = draw_speeds(times, "Routing on NVIDIA H100")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["1.7", "0.3", "115"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["dynamic B=128", "EM conv1 B=64"]
    with pytest.raises(ValueError, match="times must hold measurements, got none"):
        draw_speeds({"dynamic B=128": {"bound": 1.0}}, "")
