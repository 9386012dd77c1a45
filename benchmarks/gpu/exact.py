"""Stage ``exact``: the kernels against float64, many times over, on another stream, in a graph and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.check import relative_errors
from benchmarks.compiled import compiled
from benchmarks.contenders import why_triton_fails
from benchmarks.gpu.graphs import captured
from benchmarks.gpu.problems import EXACT, SMOKE, Problem, routing
from benchmarks.gpu.session import Session
from benchmarks.tf32 import without_tf32

#: Calls whose bits must be the same.
TIMES = 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
#: Errors that are let pass beside four times the reference's: a few roundings of sums.
ALLOWED = {"float32": 1e-5, "bfloat16": 1e-5, "float64": 1e-10}


def exact(session: Session) -> None:
    """Compare results and gradients of every problem, in every dtype."""
    record = session.record("exact")
    for dtype in ("float32",) if session.smoke else DTYPES:
        for name, problem in (SMOKE if session.smoke else EXACT).items():
            record.row(f"{name}, {dtype}", lambda problem=problem, dtype=dtype: compared(session, problem, dtype), 10)


def compared(session: Session, problem: Problem, dtype: str) -> dict[str, Any]:
    """Largest relative errors of the reference and of the kernels, and whether the same comes again."""
    triton = replace(problem, contender="triton")
    reason = why_triton_fails(routing(problem), session.device)
    kind = DTYPES[dtype]
    with without_tf32():
        simple = replace(problem, contender="reference")
        truth = simple.prepare(session.device, torch.float64, rounded=kind)()
        plain = relative_errors(simple.prepare(session.device, kind)(), truth)
        row: dict[str, Any] = {"reference": max(plain.values())}
        if reason is not None:
            return row | {"left out": reason}
        call = triton.prepare(session.device, kind)
        first = call()
        errors = relative_errors(first, truth)
        row |= {"triton": max(errors.values()), "worst": max(errors, key=lambda name: errors[name])}
        row["right"] = all(errors[name] <= max(4 * plain[name], ALLOWED[dtype]) for name in errors)
        row["bits stay"] = all(same(first, call()) for _ in range(1 if session.smoke else TIMES))
        if session.cuda and dtype == "float32":
            row |= _elsewhere(call, first)
            row["compiled"] = _compiled(triton, session, first)
    return row


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether all bits are."""
    return all(torch.equal(first[name], second[name]) for name in first)


def _elsewhere(call: Any, first: Mapping[str, Tensor]) -> dict[str, object]:
    """The same on another stream, and from a replayed graph: True, False, or why not."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other = call()
    torch.cuda.synchronize()
    row: dict[str, object] = {"another stream": same(first, other)}
    found: dict[str, Tensor] = {}
    try:
        replay, _ = captured(lambda: found.update(call()), 1.0)
        replay()
        torch.cuda.synchronize()
        row["graph"] = same(first, found)
    except RuntimeError as error:
        row["graph"] = str(error)[:200]
    return row


def _compiled(problem: Problem, session: Session, first: Mapping[str, Tensor]) -> object:
    """The largest difference of the forward pass within torch.compile, or why there is none."""
    call = replace(problem, backward=False).prepare(session.device)
    try:
        errors = relative_errors(compiled(call)(), first)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
    return max(value for name, value in errors.items() if not name.startswith("gradient"))
