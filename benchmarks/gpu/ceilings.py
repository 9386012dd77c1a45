"""Stage ``ceilings``: what the card moves and multiplies in a second, against which all else is measured."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.clock import interleaved, stopwatch
from benchmarks.gpu.session import Session
from study import records

#: What a card without a record is taken for: an H100 SXM, measured.
H100 = {"copy": 2.98e12, "float32": 51.6e12, "tf32": 411e12, "bfloat16": 789e12}


def ceilings(session: Session) -> None:
    """Copies, and products in float32, TF32 and bfloat16."""
    record = session.record("ceilings")
    if session.cuda:
        record.row("card", lambda: _card(session))
    record.row("copy", lambda: {"per second": _copied(session)})
    for name in ("float32", "tf32", "bfloat16"):
        record.row(name, lambda name=name: {"per second": _multiplied(session, name)})


def rates(session: Session) -> dict[str, float]:
    """What :func:`ceilings` found per second, for the rest an H100's."""
    rows = records.every("gpu", session.out).get("ceilings", {}).get("rows", {})
    return H100 | {name: row["per second"] for name, row in rows.items() if "per second" in row}


def median(session: Session, function: Any) -> float:
    """Seconds of one call; of a smoke run those of the first."""
    if session.smoke:
        return stopwatch(session.device)(function, 1)
    return interleaved({"": function}, 5, stopwatch(session.device), least=0.02)[""].median


def _card(session: Session) -> dict[str, Any]:
    card = torch.cuda.get_device_properties(session.device)
    free, total = torch.cuda.mem_get_info(session.device)
    return {
        "capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "bytes": total,
        "free": free,
    }


def _copied(session: Session) -> float:
    n = 1 << (12 if session.smoke else 28)
    source, target = (torch.empty(n, device=session.device) for _ in range(2))
    source.zero_()
    return 2 * 4 * n / median(session, lambda: target.copy_(source))


def _multiplied(session: Session, name: str) -> float:
    n = 32 if session.smoke else 8192
    dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
    x, y = (torch.randn(n, n, device=session.device, dtype=dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        return 2 * n**3 / median(session, lambda: x @ y)
    finally:
        torch.set_float32_matmul_precision(before)
