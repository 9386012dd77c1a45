"""Clock, memory, checks and tables."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from importlib import import_module

import pytest
import torch

from benchmarks import clock
from benchmarks.check import TOLERANCE, Disagreement, relative_errors, require_agreement
from benchmarks.clock import Measured, interleaved, stopwatch, summary
from benchmarks.conditions import Conditions
from benchmarks.draw import draw
from benchmarks.in_use import InUse
from benchmarks.peak import measure, peak
from benchmarks.report import _goal, as_json, as_markdown
from benchmarks.result import Found, Point, Row
from benchmarks.suites import memory as memory_suite
from benchmarks.suites.growth import growth
from benchmarks.work import Maps, Net, Vectors, Work, described, from_description

CPU = torch.device("cpu")


def test_turns_and_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = 0.0, []
    #: Seconds of each call: of the first, of the one that is timed to count calls, and of three that count, each of
    #: which follows one that does not.
    takes = {"a": [9.0, 1.0, 9.0, 1.0, 9.0, 5.0, 9.0, 3.0], "b": [9.0, 2.0, 9.0, 4.0, 9.0, 4.0, 9.0, 8.0]}
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now)

    def work(name: str) -> None:
        nonlocal now
        now += takes[name][sum(done == name for done in order)]
        order.append(name)

    found = interleaved({name: lambda name=name: work(name) for name in "ab"}, 3, stopwatch(CPU))
    drawn = random.Random(0)
    assert "".join(order) == "aabb" + "".join(2 * name for _ in range(3) for name in drawn.sample("ab", 2))
    assert found == {"a": Measured(3.0, 2.0, 4.0, 3), "b": Measured(4.0, 4.0, 6.0, 3)}


def test_quick_functions_are_called_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = 0.0, 0
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now)

    def quick() -> None:
        nonlocal now, calls
        now, calls = now + 0.03, calls + 1

    found = interleaved({"quick": quick}, 2, stopwatch(CPU))
    assert calls == 2 + 2 * (1 + 4)  # 4 · 0.03 ≥ 0.1
    assert found["quick"].median == pytest.approx(0.03)


def test_one_value_is_its_own_median() -> None:
    assert summary([2.0]) == Measured(2.0, 2.0, 2.0, 1)


def test_what_disagrees_is_refused() -> None:
    exact = {"pose": torch.ones(4).double()}
    errors = relative_errors({"pose": torch.full((4,), 1.01)}, exact)
    assert errors == {"pose": pytest.approx(0.01)} and errors["pose"] > TOLERANCE
    with pytest.raises(Disagreement, match=r"fast: pose must be within 0.001 of the reference .* got 0.01; nothing is"):
        require_agreement("fast", errors)
    assert require_agreement("fast", errors, plain={"pose": 0.006}) == errors["pose"]
    for wrong in ({"pose": torch.full((4,), math.nan)}, {}, exact | {"more": torch.ones(1)}):
        with pytest.raises(Disagreement):
            require_agreement("fast", relative_errors(wrong, exact))


@pytest.mark.parametrize(
    "work",
    [
        Vectors(batch=2, n_in=6),
        Maps(batch=1, n_types=2, n_out=2, size=5),
        Net(batch=2, small=True),
        InUse("plain PyTorch", "capsnet_small"),
    ],
)
def test_work_is_the_same_in_another_process(work: Work) -> None:
    again = from_description(described(work))
    assert again == work and type(again) is type(work)
    first, second = work.prepare(CPU)(), again.prepare(CPU)()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_peak_of_another_process() -> None:
    work = Vectors(contender="batched", batch=8, n_in=2000)
    votes = 4 * work.batch * work.n_in * work.n_out * work.d_out
    taken = peak(work, CPU)
    assert votes < taken["step"] < 20 * votes and taken["step"] < taken["process"]


def test_peak_says_why_it_failed() -> None:
    with pytest.raises(ValueError, match=r"could not be measured: ValueError: contender must be one of .*'fastest'"):
        peak(Vectors(contender="fastest"), CPU)


def test_who_measures_a_peak_ends_with_who_asked() -> None:
    """Left alone, it would take memory and a core from whatever is measured next."""
    endless = Vectors(contender="batched", batch=1, n_in=6, n_iters=10**9)
    order = json.dumps({"work": described(endless), "device": "cpu", "threads": 1})
    command = [sys.executable, "-m", "benchmarks.peak", order]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=300, check=False).returncode == 3


def test_memory_and_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def here(work: Vectors | Net, device: torch.device, threads: int) -> dict[str, int]:
        asked.append(work)
        return {"step": 100 * (work.contender == "ours") + 200, "process": 10**9}

    for name in ("conditions", "suites.growth"):
        monkeypatch.setattr(import_module(f"benchmarks.{name}"), "peak", here)
    few = Conditions(repeats=2, smoke=True)
    found = memory_suite(few)
    assert [row.value for row in found.rows[::2]] == [1.5] * 3 and not any(row.holds() for row in found.rows[::2])
    assert len(asked) == 2 * (3 * 3 + 1) and sum(not getattr(work, "frequencies", True) for work in asked) == 2
    grown = growth(few)
    assert {name: [point.x for point in points] for name, points in grown.curves.items()}["I"] == [8, 16]
    assert grown.rows[-1].value == 1.0 and grown.rows[-1].holds()


def test_measured_here() -> None:
    taken = measure(Vectors(batch=2, n_in=6), CPU)
    assert 0 <= taken["step"] < taken["process"]


def found() -> dict[str, Found]:
    return {
        "a": Found(
            "Some title",
            seconds={"ours": Measured(0.002, 0.001, 0.003, 3), "floor": Measured(0.001, 0.001, 0.001, 3)},
            bytes={"ours": Measured(2e6, 1e6, 3e6, 3)},
            curves={"I": [Point(10, 0.1, 10**6), Point(1000, 1.0, None)]},
            rows=[Row("ours over the floor", 2.0, 1.06, 1.02), Row("faster", 9.0, 8, at_least=True), Row("x", 1, None)],
            errors={"ours": 1e-7},
            notes=["A note."],
        )
    }


def test_table() -> None:
    text = as_markdown(found(), "one core")
    assert "| ours over the floor | 2× | ≤ 1.06× | ≤ 1.02× | **no** |" in text
    assert "| ours over the floor | 2× | ≤ 1.06× | ≤ 1.02× | smoke |" in as_markdown(found(), "one core", smoke=True)
    assert "| faster | 9× | ≥ 8× | – | yes |\n| x | 1× | – | – | – |" in text
    assert "| ours | 2 | 1 … 3 | 3 |" in text and "| 1,000 | 1e+03 |  |" in text and "A note." in text
    content = as_json(found())["a"]
    assert content["seconds"]["ours"] == {"median": 0.002, "lower": 0.001, "upper": 0.003, "n": 3}
    assert [row["holds"] for row in content["rows"]] == [False, True, None]


def test_picture() -> None:
    figure = draw(found())
    assert len(figure.subfigs) == 3
    with pytest.raises(ValueError, match="found must hold measurements, got none"):
        draw({"a": Found("nothing")})


@pytest.mark.parametrize("seconds", [(0.1, 1.0), (0.0031, 0.0047), (0.1, 0.1), (2e-7, 2.5e-7), (0.001, 100.0)])
def test_every_axis_of_growth_has_numbers(seconds: tuple[float, float]) -> None:
    """A curve that hardly grows lies between the powers of ten."""
    points = [Point(x, y, None) for x, y in zip((10, 1000), seconds, strict=True)]
    figure = draw({"a": Found("Some title", curves={"I": points})})
    (axes,) = figure.subfigs[0].axes
    low, high = axes.get_ylim()
    assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) >= 2
    assert list(axes.get_xticks()) == [10, 1000]


def test_what_cannot_be_true_holds_nothing() -> None:
    """A network is not faster than itself without routing."""
    for value, holds, said in ((0.7, None, "measured wrongly"), (1.0, True, "yes"), (1.2, False, "**no**")):
        row = Row("over the floor", value, 1.06, least=0.99)
        assert row.holds() is holds and _goal(row)[-1] == said


def test_errors_of_bfloat16_stand_by_themselves() -> None:
    errors = {"ours": 3e-6, "floor": 1e-6, "ours, step in bf16": 0.12}
    text = as_markdown({"one": Found("Title", errors=errors)}, "here")
    assert "against the reference in float64: 3e-06, 0.1 in bfloat16." in text
