"""What can be measured: each suite measures under given conditions and returns what it found."""

from __future__ import annotations

from torchcaps.benchmarks.suites.capsnet import capsnet
from torchcaps.benchmarks.suites.dynamic import dynamic
from torchcaps.benchmarks.suites.em import em
from torchcaps.benchmarks.suites.growth import growth
from torchcaps.benchmarks.suites.memory import memory
from torchcaps.benchmarks.suites.threads import threads

#: Every suite, by the name under which ``torchcaps bench`` takes it.
SUITES = {
    "dynamic": dynamic,
    "capsnet": capsnet,
    "em": em,
    "memory": memory,
    "growth": growth,
    "threads": threads,
}

__all__ = ["SUITES"]
