"""Dynamic routing of votes that a convolution made, as DeepCaps and SegCaps have it, beside no routing."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.clock import summary
from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.suites.memory import REPEATS
from benchmarks.work import Votes

#: As the networks have them: DeepCaps' last cell, and the first layer of SegCaps that routes.
SIZES = {
    "over a map of 4×4, 32 to 32 types of 8 numbers": Votes(),
    "at each place of 64×64, 2 to 4 types of 16 numbers": Votes(
        compete="place", batch=8, n_types=2, n_out=4, d_out=16, size=64
    ),
}


def votes(conditions: Conditions) -> Found:
    """Time and peak memory of routing given votes, three passes: ours, plain PyTorch, and the mean vote squashed."""
    found = Found("Dynamic routing of votes that a convolution made, three passes")
    for size, given in SIZES.items():
        base = replace(given, batch=2, n_types=3, size=4) if conditions.smoke else given
        works = {f"{size}: {name}": replace(base, contender=name) for name in ("ours", "reference", "floor")}
        found.errors |= conditions.checked(works, batch=2)
        works |= {f"{name}, forward": replace(work, backward=False) for name, work in works.items()}
        found.seconds |= conditions.seconds(works)
        for name, work in works.items():
            if work.backward:
                taken = [float(conditions.bytes(work)) for _ in range(min(REPEATS, conditions.repeats))]
                found.bytes[name] = summary(taken)
        for end in ("", ", forward"):
            ours, plain, floor = (
                found.seconds[f"{size}: {name}{end}"].median for name in ("ours", "reference", "floor")
            )
            found.rows += [
                Row(
                    f"{size}{end or ', forward and backward'}: plain PyTorch over ours", plain / ours, 3, at_least=True
                ),
                Row(f"{size}{end or ', forward and backward'}: ours over no routing", ours / floor, 3),
            ]
    return found
