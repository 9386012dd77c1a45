"""``python -m benchmarks.gpu``, from the root of a clone, with ``PYTHONPATH=src`` where torchcaps is not installed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torchcaps.memory import keep_memory

#: In the order of their worth.
STAGES = ("doctor", "tests", "ceilings", "exact", "speed", "steps", "epoch", "mnist", "smallnorb", "multimnist")

#: Of a smoke run, where all that train are alike.
SMOKED = STAGES[: STAGES.index("epoch") + 1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run stages until they or the time are over, and write the table.

    Returns:
        0; 1 where a row holds an error, 2 for bad input. That time was over is no error.
    """
    keep_memory()
    parsed = make_parser().parse_args(arguments)
    try:
        return _run(parsed)
    except (ValueError, OSError) as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks.gpu: stopped; the same command goes on", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The stages and the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="What the kernels do on this GPU.", allow_abbrev=False
    )
    parser.add_argument("stages", metavar="STAGE", nargs="*", help=f"of {', '.join(STAGES)} (default: all)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        default=Path("runs/gpu-hour"),
        help="of gpu.jsonl and the table (default: runs/gpu-hour)",
    )
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", default=Path("runs/gpu"), help="of the trainings (default: runs/gpu)"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop in time, and write what was done")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with one folder for each data set")
    parser.add_argument("--commit", help="of the source, where there is no checkout")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on the CPU too, to see that it runs")
    return parser


def _run(parsed: argparse.Namespace) -> int:
    started = time.monotonic()
    if parsed.smoke and "TRITON_INTERPRET" not in os.environ:
        _interpret()
    # Only now: what imports triton has to know whether it is to interpret.
    from benchmarks.gpu.session import OutOfTime, Session
    from benchmarks.gpu.table import stages_of
    from torchcaps.checks import check_choice

    for name in parsed.stages:
        check_choice("stage", name, STAGES)
    if not parsed.seconds > 0:
        raise ValueError(f"seconds must be positive, got {parsed.seconds:g}")
    if parsed.data is not None and not parsed.data.is_dir():
        raise ValueError(f"data must be a folder, got {parsed.data}")
    session = Session(
        parsed.out.expanduser(),
        smoke=parsed.smoke,
        until=started + parsed.seconds,
        data=parsed.data,
        runs=parsed.runs.expanduser(),
        commit=parsed.commit,
    )
    if not session.cuda and not parsed.smoke:
        raise ValueError("there must be a GPU, got none: --smoke tries the stages on a CPU")
    todo = list(dict.fromkeys(parsed.stages or (SMOKED if parsed.smoke else STAGES)))
    for name in todo:  # what is of another card or commit is refused before anything is measured
        session.record(name)
    functions = stages()
    while todo:
        before = time.monotonic()
        try:
            functions[todo[0]](session)
        except OutOfTime:
            print(f"time is over; not done: {', '.join(todo)}; the same command goes on", flush=True)
            break
        print(f"-- {todo.pop(0)}: {time.monotonic() - before:.0f} s", flush=True)
    _write(session.out)
    rows = [row for record in stages_of(session.out).values() for row in record["rows"].values()]
    return int(any("error" in row for row in rows))


def stages() -> dict[str, Callable[..., None]]:
    """What runs, by name."""
    from benchmarks.gpu import ceilings, checks, exact, speed, steps, training

    return {
        "doctor": checks.doctor,
        "tests": checks.kernel_tests,
        "ceilings": ceilings.ceilings,
        "exact": exact.exact,
        "speed": speed.speed,
        "steps": steps.steps,
        **{name: partial(training.train, stage=name) for name in training.PLANS},
    }


def _interpret() -> None:
    """Let Triton's kernels run in its interpreter, where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def _write(out: Path) -> None:
    """The table, which is printed too, and the picture of speed."""
    from benchmarks.gpu.picture import draw_speeds
    from benchmarks.gpu.table import speeds, stages_of, table
    from torchcaps.training.files import write_picture, write_text

    content = table(out)
    print(content, flush=True)
    found = stages_of(out)
    if not found:
        return
    write_text(out / "table.md", content)
    times = speeds(found, "both")
    if any(set(row) - {"bound"} for row in times.values()):
        device = next(iter(found.values()))["device"]
        write_picture(out / "speed.png", draw_speeds(times, f"Routing, forward and backward, float32, on {device}"))


if __name__ == "__main__":
    sys.exit(main())
