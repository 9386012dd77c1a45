"""What can be measured: each suite measures under given conditions and returns what it found."""

from __future__ import annotations

from benchmarks.suites.bounds import bounds
from benchmarks.suites.capsnet import capsnet
from benchmarks.suites.dynamic import dynamic
from benchmarks.suites.em import em
from benchmarks.suites.growth import growth
from benchmarks.suites.later import later
from benchmarks.suites.memory import memory
from benchmarks.suites.peers import peers
from benchmarks.suites.routings import routings
from benchmarks.suites.threads import threads
from benchmarks.suites.votes import votes

#: Every suite, by the name under which ``python -m benchmarks`` takes it.
SUITES = {
    "dynamic": dynamic,
    "capsnet": capsnet,
    "em": em,
    "memory": memory,
    "growth": growth,
    "threads": threads,
    "routings": routings,
    "votes": votes,
    "later": later,
    "peers": peers,
    "bounds": bounds,
}

__all__ = ["SUITES"]
