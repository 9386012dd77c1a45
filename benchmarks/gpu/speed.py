"""Stage ``speed``: routing alone, by the reference, torch.compile of it, what others write, and the kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.compiled import nothing_compiled
from benchmarks.contenders import why_triton_fails
from benchmarks.gpu.bounds import cost
from benchmarks.gpu.ceilings import median, rates
from benchmarks.gpu.graphs import captured
from benchmarks.gpu.problems import SMOKE, SPEED, Problem, routing
from benchmarks.gpu.session import Session

#: "einsum" is what readable_capsnet writes, the quickest public implementation of dynamic routing; "batched" and
#: "stored_votes" are no slower than their ideas allow.
CONTENDERS = {
    "dynamic": ("reference", "triton", "einsum", "batched"),
    "em": ("reference", "triton", "stored_votes"),
    "variational_bayes": ("reference", "triton"),
}
#: Through torch.compile too, which takes half a minute each.
COMPILED = ("dynamic B=128", "EM conv1 small B=64", "EM conv1 B=64", "dynamic 100 classes", "dynamic tiny")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: A problem in bfloat16 too, by the reference and the kernels.
IN_BFLOAT16 = ("dynamic B=128", "EM conv1 B=64", "dynamic tiny")


def speed(session: Session) -> None:
    """Time every problem by every contender, forward and with the backward pass."""
    record = session.record("speed")
    problems = SMOKE if session.smoke else SPEED
    for name, problem in problems.items():
        record.row(f"{name}, bound", lambda problem=problem: _bounds(session, problem))
        for contender in CONTENDERS[routing(problem)]:
            work = replace(problem, contender=contender)
            record.row(f"{name}, {contender}", lambda work=work: timed(session, work), 8)
        for contender in ("reference", "triton") if name in IN_BFLOAT16 else ():
            work = replace(problem, contender=contender)
            record.row(f"{name}, {contender}, bf16", lambda work=work: timed(session, work, "bf16"), 8)
    for name in (name for name in COMPILED if name in problems):
        work = replace(problems[name], contender="compiled", backend="aot_eager" if session.smoke else "inductor")
        record.row(f"{name}, compiled", lambda work=work: timed(session, work), 40)


def timed(session: Session, problem: Problem, dtype: str = "fp32") -> dict[str, Any]:
    """Milliseconds of one contender by wall clock and by replaying a graph, and megabytes at the peak.

    Where the kernels cannot be had the reason is returned instead.
    """
    reason = why_triton_fails(routing(problem), session.device)
    if problem.contender == "triton" and reason is not None:
        return {"left out": reason}
    row: dict[str, Any] = {}
    for way, backward in (("forward", False), ("both", True)):
        call = replace(problem, backward=backward).prepare(session.device, DTYPES[dtype])
        call()  # what is compiled and made once is not the call's
        row |= _peak(session, way, call)
        with nothing_compiled():
            seconds = median(session, call)
            row[f"{way}, ms"] = 1e3 * seconds
            if session.cuda:
                row |= _replayed(session, way, call, seconds)
    return row


def _peak(session: Session, way: str, call: Any) -> dict[str, float]:
    if not session.cuda:
        return {}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(session.device)
    before = torch.cuda.memory_allocated(session.device)
    call()
    return {f"{way}, MB": (torch.cuda.max_memory_allocated(session.device) - before) / 1e6}


def _replayed(session: Session, way: str, call: Any, seconds: float) -> dict[str, Any]:
    """By a graph; where none can be captured, why."""
    try:
        replay, n = captured(call, seconds)
    except RuntimeError as error:
        torch.cuda.synchronize()
        return {f"{way}, no graph": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
    return {f"{way}, graph ms": 1e3 * median(session, replay) / n}


def _bounds(session: Session, problem: Problem) -> dict[str, float]:
    """Milliseconds that no implementation can go below, as far as is known."""
    found = rates(session)
    row = {}
    for way, backward in (("forward", False), ("both", True)):
        least = cost(replace(problem, backward=backward))
        row[f"{way}, MB moved"] = least.bytes / 1e6
        row[f"{way}, GFLOP"] = least.operations / 1e9
        for products in ("float32", "tf32", "bfloat16"):
            row[f"{way}, ms, products in {products}"] = 1e3 * least.seconds(found, products)
    return row
