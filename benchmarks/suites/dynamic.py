"""Dynamic routing alone, at the sizes of CapsNet on MNIST."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.clock import Measured
from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.textbook import FORMULATIONS
from benchmarks.work import Vectors


def dynamic(conditions: Conditions) -> Found:
    """Dynamic routing alone: 1152×8 → 10×16, batch 64, 3 iterations."""
    sizes = Vectors(batch=6, n_in=24) if conditions.smoke else Vectors()
    names = ("ours", "floor", *FORMULATIONS, *conditions.others("dynamic"))
    works = {name: replace(sizes, contender=name) for name in names}
    found = Found(
        f"Dynamic routing alone: {sizes.n_in}×{sizes.d_in} → {sizes.n_out}×{sizes.d_out}, batch {sizes.batch}",
        errors=conditions.checked(works, batch=min(6, sizes.batch)),
    )
    found.notes += conditions.left_out("dynamic")
    for way, backward, must, aim in (("forward", False, 4, 8), ("forward + backward", True, 5, 10)):
        times = conditions.seconds({name: replace(work, backward=backward) for name, work in works.items()})
        found.seconds |= {f"{name}, {way}": value for name, value in times.items()}
        best = _best(times)
        what = f"dynamic routing, {way}: the best eager formulation ({best}) over ours"
        found.rows.append(Row(what, times[best].median / times["ours"].median, must, aim, at_least=True))
    return found


def _best(times: dict[str, Measured]) -> str:
    return min(FORMULATIONS, key=lambda name: times[name].median)
