"""Stages ``doctor`` and ``tests``: the library's report of the machine, and the kernels' tests on the card."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from typing import Any

from benchmarks.gpu.session import ROOT, Session
from torchcaps.training.files import read_json

#: Seconds that each may take.
DOCTOR_SECONDS, TESTS_SECONDS = 90.0, 360.0
#: Processes that share the card.
MOST_PROCESSES = 12


def doctor(session: Session) -> None:
    """``torchcaps doctor --json FILE``, where there is such a command."""
    session.record("doctor").row("doctor", lambda: _doctor(session), 10)


def _doctor(session: Session) -> dict[str, Any]:
    report = (session.out / "doctor" / "report.json").resolve()
    report.parent.mkdir(parents=True, exist_ok=True)
    done = _run(session, [sys.executable, "-m", "torchcaps", "doctor", "--json", str(report)], DOCTOR_SECONDS)
    if "invalid choice" in done["errors"]:
        return {"left out": "this version of torchcaps has no doctor"}
    if not report.is_file():
        raise ValueError(f"doctor wrote no report: {_end(done['output'] + done['errors'], 400)}")
    return {"status": done["status"], "output": _end(done["output"], 6000), "report": read_json(report)}


def kernel_tests(session: Session) -> None:
    """Pytest of ``tests/ops``, in several processes; of a smoke run one quick file."""
    session.record("tests").row("tests/ops", lambda: _tests(session), 20)


def _tests(session: Session) -> dict[str, Any]:
    what = "tests/ops/test_squash.py" if session.smoke else "tests/ops"
    options = ["-q", "-W", "default", "-rfE", "--no-header", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, what]
    if importlib.util.find_spec("xdist") and not session.smoke:
        command += ["-n", str(min(MOST_PROCESSES, os.cpu_count() or 1))]
    done = _run(session, command, TESTS_SECONDS)
    found = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", _end(done["output"], 300))
    counts = {name: int(n) for n, name in found}
    if not counts:
        raise ValueError(f"pytest counted nothing: {_end(done['output'] + done['errors'], 400)}")
    failed = [line[:300] for line in done["output"].splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {"status": done["status"], **counts, "which failed": failed, "output": _end(done["output"], 6000)}


def _run(session: Session, command: list[str], seconds: float) -> dict[str, Any]:
    """Output, errors and status of another process.

    Raises:
        TimeoutError: it took longer than it may, or than there is.
    """
    limit = max(1.0, min(seconds, session.left()))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        raise TimeoutError(f"took more than {limit:.0f} s; the last of it: {_end(said, 300)}") from None
    return {"output": done.stdout, "errors": done.stderr, "status": done.returncode}


def _end(text: str, n: int) -> str:
    return text.strip()[-n:]
