"""Routings after 2018 beside what their authors' code computes, each in a layer of its paper."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.clock import summary
from benchmarks.conditions import Conditions
from benchmarks.result import Found, Row
from benchmarks.routed import Routed
from benchmarks.suites.memory import REPEATS

#: By title. Where a map is routed place by place, the batch is images times places.
LAYERS = {
    "elementwise votes (HVC): 256 of 112 numbers to 10, batch 120": Routed(
        "elementwise", batch=120, n_in=256, n_out=10, d_in=112, d_out=112
    ),
    "self-attention (Efficient-CapsNet): 16 to 10, batch 64": Routed("self_attention", n_in=16, n_out=10, d_in=8),
    "self-routing (SR-CapsNet): 288 to 32 at 16 places, batch 8": Routed("self_routing", batch=128),
    "inverted attention: 800 matrices to 10, two passes, batch 64": Routed("inverted_attention", n_in=800, n_out=10),
    "Heinsen 2019: 5,184 matrices to 64, batch 4": Routed("heinsen_matrix", batch=4, n_in=5184, n_out=64, shared=True),
    "Heinsen 2022: 1,024 vectors of 64 to 64, batch 16": Routed(
        "heinsen_vector", batch=16, n_in=1024, n_out=64, d_in=64, d_out=64
    ),
    "degree (SOVNET): 32 to 32 at 16 places, batch 64": Routed("degree", batch=1024, n_in=32),
    "attention (AR-CapsNet): 72 to 32, batch 64": Routed("attention", n_in=72),
}


def later(conditions: Conditions) -> Found:
    """Time and peak memory of each, forward and backward: ours, and as its authors compute it."""
    found = Found("Routings after 2018 beside what their authors' code computes")
    for title, given in LAYERS.items():
        base = replace(given, batch=2, n_in=min(given.n_in, 8), n_out=4) if conditions.smoke else given
        works = {f"{title}: {name}": replace(base, contender=name) for name in ("ours", "authors")}
        found.errors |= conditions.checked(works, batch=2)
        found.seconds |= conditions.seconds(works)
        for name, work in works.items():
            taken = [float(conditions.bytes(work)) for _ in range(min(REPEATS, conditions.repeats))]
            found.bytes[name] = summary(taken)
        ours, authors = works
        faster = found.seconds[authors].median / found.seconds[ours].median
        memory = found.bytes[ours].median / found.bytes[authors].median
        found.rows += [
            Row(f"{title}: the authors' way over ours", faster, 3, at_least=True),
            Row(f"{title}: our peak memory over theirs", memory, 0.5),
        ]
    return found
