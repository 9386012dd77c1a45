"""How time and memory of routing grow with its sizes, and how large an image may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.clock import summary
from benchmarks.conditions import Conditions
from benchmarks.peak import peak
from benchmarks.result import Found, Point, Row
from benchmarks.suites.memory import REPEATS
from benchmarks.work import Net, Vectors, Work

#: Time and memory a unit may be this much more at the largest size than at the smallest and still count as linear.
LINEAR = 1.25


def growth(conditions: Conditions) -> Found:
    """Time and memory of routing as B, I, J, n_iters and the image's size grow."""
    base = Vectors(batch=8)
    smoke = conditions.smoke
    sizes: dict[str, tuple[Sequence[int], Callable[[int], Work]]] = {
        "B": ((1, 2) if smoke else (16, 32, 64, 128, 256), lambda x: replace(base, batch=x)),
        "I": ((8, 16) if smoke else (1_000, 3_000, 10_000, 30_000, 100_000), lambda x: replace(base, n_in=x)),
        "I, the floor": (
            (8, 16) if smoke else (1_000, 3_000, 10_000, 30_000, 100_000),
            lambda x: replace(base, n_in=x, contender="floor"),
        ),
        "J": ((2, 3) if smoke else (5, 10, 20, 40, 80), lambda x: replace(base, n_out=x)),
        "n_iters": ((1, 2) if smoke else (1, 2, 3, 4, 5), lambda x: replace(base, n_iters=x)),
        "image size": (
            (28,) if smoke else (28, 56, 112, 224),
            lambda x: Net(batch=2 if smoke else 8, image_shape=(1, x, x), train=False, small=smoke),
        ),
    }
    found = Found("Growth: routing forward and backward, batch 8; CapsNet's forward pass by the image's size, batch 8")
    for name, (xs, work) in sizes.items():
        found.curves[name] = _curve(conditions, xs, work)
    # glibc gives blocks of 32 MB and more back to the system, so that the gradient of a large W costs page faults at
    # every call: of large pages for our operator (ops/backends/csrc/simd.h), of small ones for the floor's.
    floor = "lower capsules, the floor"
    for name, meaning in (("B", "batch"), ("I", "lower capsules"), ("I, the floor", floor)):
        first, last = found.curves[name][0], found.curves[name][-1]
        units = last.x / first.x
        limits = (None, None) if meaning == floor else (LINEAR, 1.0)
        times = last.seconds / first.seconds / units
        found.rows.append(Row(f"time a unit, {meaning} {first.x:,} → {last.x:,}", times, *limits))
        if first.bytes and last.bytes:
            taken = last.bytes / first.bytes / units
            found.rows.append(Row(f"memory a unit, {meaning} {first.x:,} → {last.x:,}", taken, *limits))
    largest = sizes["image size"][0][-1]
    process = peak(sizes["image size"][1](largest), conditions.device, conditions.threads)["process"]
    what = f"CapsNet forward, {largest}×{largest} images, batch 8: the whole process"
    found.rows.append(Row(what, process / 1e9, 4.0, unit=" GB"))
    return found


def _curve(conditions: Conditions, xs: Sequence[int], work: Callable[[int], Work]) -> list[Point]:
    points = []
    for x in xs:  # one after the other: all of them at once would not fit into memory
        seconds = conditions.seconds({"": work(x)})[""].median
        n = 1 if conditions.smoke else REPEATS  # of a few MB one reading may be twice another
        taken = summary([conditions.bytes(work(x)) for _ in range(n)]).median
        points.append(Point(x, seconds, round(taken)))
    return points
