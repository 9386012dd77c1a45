"""Stages that train: an epoch of MNIST, all of it, small NORB and MultiMNIST, runs side by side on one card.

A run that is not done when time is over goes on in the next call, from its folder.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.session import ROOT, OutOfTime, Session
from torchcaps.training.files import read_json

#: Seconds before the end at which runs save themselves: evaluation and writing take their time.
SAVING_SECONDS = 15.0


@dataclass(frozen=True)
class Training:
    """One run.

    Attributes:
        recipe: its name.
        seed: of the run.
        epochs: instead of the recipe's.
        smoke: two steps, to see that it runs.
    """

    recipe: str
    seed: int = 0
    epochs: int | None = None
    smoke: bool = False

    @property
    def name(self) -> str:
        """Of its row and folder."""
        return f"{self.recipe}-{self.seed}{f'-{self.epochs}-epochs' if self.epochs else ''}{'-smoke' * self.smoke}"


#: What each stage trains, side by side.
PLANS = {
    "epoch": (Training("mnist", epochs=3),),
    "mnist": tuple(Training("mnist", seed) for seed in range(3)),
    "smallnorb": (*(Training("smallnorb-em-light", seed) for seed in range(3)), Training("smallnorb")),
    "multimnist": (Training("multimnist-deep"),),
}


def train(session: Session, stage: str) -> None:
    """Let all runs of a plan train until they or the time are over, and keep what they have come to.

    Raises:
        OutOfTime: some are not done.
    """
    plan = (Training("digits", smoke=True),) if session.smoke else PLANS[stage]
    record = session.record(stage)
    todo = [one for one in plan if not record.rows.get(one.name, {}).get("done")]
    if not todo:
        return
    if session.left() < 2 * SAVING_SECONDS:
        raise OutOfTime
    started = time.monotonic()
    processes = {one: _start(session, one, len(todo)) for one in todo}
    try:
        for one, process in processes.items():
            process.wait(timeout=max(1.0, session.left()))
            record.keep(one.name, _outcome(session, one, process.returncode, time.monotonic() - started))
    except subprocess.TimeoutExpired:
        pass  # below
    finally:
        for one, process in processes.items():
            if process.poll() is None:
                process.kill()
                process.wait()
                record.keep(one.name, _outcome(session, one, None, time.monotonic() - started))
    if any("error" not in record.rows[one.name] and not record.rows[one.name]["done"] for one in todo):
        raise OutOfTime


def folder(session: Session, one: Training) -> Path:
    """Of a run."""
    return session.runs / one.name


def _start(session: Session, one: Training, beside: int) -> subprocess.Popen[bytes]:
    place = folder(session, one).resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.train_one", one.recipe, str(one.seed), str(place)]
    command += ["--seconds", str(max(1.0, min(session.left() - SAVING_SECONDS, 1e9)))]
    command += ["--device", session.device.type]
    command += ["--epochs", str(one.epochs)] if one.epochs else []
    command += ["--data", str(session.data.resolve())] if session.data else []
    command += ["--smoke"] if one.smoke else []
    threads = max(1, (os.cpu_count() or 1) // beside)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "OMP_NUM_THREADS": str(threads),
    }
    with _log(session, one).open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def _log(session: Session, one: Training) -> Path:
    return session.runs / f"{one.name}.log"


def _outcome(session: Session, one: Training, status: int | None, seconds: float) -> dict[str, Any]:
    """How far a run has come; its files are copied beside the record."""
    place = folder(session, one)
    kept = session.out / "runs" / one.name
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("result.json", "metrics.csv", "config.json"):
        if (place / name).is_file():
            shutil.copy(place / name, kept / name)
    rows = _rows(place / "metrics.csv")
    found: dict[str, Any] = {"done": (place / "result.json").is_file(), "seconds in this call": round(seconds, 1)}
    found |= {name: float(value) for name, value in (rows[-1] if rows else {}).items() if _is_number(value)}
    if len(rows) > 1:  # the first epoch compiles and warms up
        found["seconds an epoch"] = (float(rows[-1]["seconds"]) - float(rows[0]["seconds"])) / (len(rows) - 1)
    if found["done"]:
        result = read_json(place / "result.json")
        found |= {name: result[name] for name in ("test_error", "val_error", "seconds", "device") if name in result}
    elif status:
        said = _log(session, one).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found["error"] = f"exit status {status}: {' '.join(said[-3:])}"[-600:]
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True
