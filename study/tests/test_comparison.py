"""Routings side by side: the same trunk for all, three trials, and what is recorded is not done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from study import comparison, records
from study.comparison import Place, compare
from study.measures.profile import entropy
from study.recipes import RECIPES, recipe
from study.recipes import comparison as rows
from study.routings_page import verdict
from study.tables import TABLES
from torchcaps.layers.routings import ROUTINGS
from torchcaps.training.tasks import Classification


def test_every_routing_of_the_library_is_compared() -> None:
    assert set(rows.ROUTINGS) == set(ROUTINGS) and set(rows.UNBOUNDED) < set(ROUTINGS)
    for data in rows.DATA:
        table = TABLES[f"routings-{data}"]
        assert [row.recipe for row in table.rows] == [rows.name_of(data, routing) for routing in rows.ROUTINGS]
        assert {row.recipe for row in table.rows} <= set(RECIPES)


def test_they_differ_in_routing_and_loss_alone() -> None:
    for data in rows.DATA:
        every = [rows.compared(data, routing) for routing in rows.ROUTINGS]
        for config in every:
            options = {**config.model.options, "routing": "dynamic"}
            same = replace(config, recipe="same", loss="margin", model=replace(config.model, options=options))
            assert same == replace(every[3], recipe="same")
        assert all(isinstance(config.data.task, Classification) for config in every)


def test_what_the_trials_chose_is_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    name = rows.name_of("mnist", "em")
    monkeypatch.setattr(records, "every", lambda kind: {name: {"best": {"optim.lr": 3e-4}}} if kind == "tuning" else {})
    assert recipe(name).optim.lr == 3e-4 and recipe(name) != rows.compared("mnist", "em")
    monkeypatch.setattr(records, "every", lambda kind: {})
    assert recipe(name) == rows.compared("mnist", "em") and recipe(name).optim.lr == 1e-3


class Recorded:
    """Stands for the records, the trials and the trainings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: dict[str, dict[str, Any]] = {"tuning": {}, "runs": {}, "measures": {}}
        self.done: list[str] = []
        monkeypatch.setattr(records, "every", lambda kind: self.kept[kind])
        monkeypatch.setattr(records, "write", lambda kind, name, content: self.kept[kind].update({name: content}))
        monkeypatch.setattr(comparison, "sweep", self.sweep)
        monkeypatch.setattr(comparison, "train", self.train)
        monkeypatch.setattr(
            comparison, "keep", lambda result, folder: self.kept["runs"].update({result["key"]: result})
        )
        monkeypatch.setattr(comparison, "measure", self.measure)

    def sweep(self, config: Any, grid: Any, **_: Any) -> Any:
        self.done.append(f"trials {config.recipe}, {config.epochs} epochs")
        from torchcaps.training.sweep import Combination

        return None, [Combination({"optim.lr": lr}, (abs(lr - 3e-3),)) for lr in grid["optim.lr"]]

    def train(self, config: Any, folder: Path, **_: Any) -> Any:
        self.done.append(f"{config.recipe}, seed {config.seed}, rate {config.optim.lr}")
        folder.mkdir(parents=True)
        (folder / "result.json").write_text("{}")
        return {"key": f"{config.recipe}-{config.seed}"}

    def measure(self, name: str, folder: Path, **_: Any) -> None:
        self.kept["measures"][f"{folder.name.removesuffix('-0')}/{name}"] = {}


def test_it_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded = Recorded(monkeypatch)
    names = ["mnist"], ["em", "degree"]
    compare(*names, seeds=1, place=Place(runs=tmp_path), say=lambda _: None)
    first = [
        "trials routings-mnist-em, 1 epochs",
        "routings-mnist-em, seed 0, rate 0.003",
        "trials routings-mnist-degree, 1 epochs",
        "routings-mnist-degree, seed 0, rate 0.003",
    ]
    assert recorded.done == first and set(recorded.kept["runs"]) == {"routings-mnist-em-0", "routings-mnist-degree-0"}
    compare(*names, seeds=2, place=Place(runs=tmp_path), say=lambda _: None)
    assert recorded.done[4:] == [f"routings-mnist-{name}, seed 1, rate 0.003" for name in names[1]]
    compare(*names, seeds=2, place=Place(runs=tmp_path / "elsewhere"), say=lambda _: None)
    assert len(recorded.done) == 6


def test_time_that_is_over_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded, said = Recorded(monkeypatch), list[object]()
    compare(["mnist"], ["em"], budget=1e-9, place=Place(runs=tmp_path), say=said.append)
    assert recorded.done == [] and said == ["the budget is used up; the same command goes on"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": ["norb"]}, "data must be one of mnist, .*; got 'norb'"),
        ({"routings": ["em_vectors"]}, "routing must be one of .*; got 'em_vectors'"),
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"budget": 0}, "budget must be .*positive.*got 0"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(**arguments)


def test_entropy_of_couplings() -> None:
    even = torch.full((2, 6, 4), 0.25)
    decided = torch.eye(4)[None, :, :].expand(2, 4, 4)
    half = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(1, 3, 4)
    assert entropy(even).tolist() == pytest.approx([1.0, 1.0])  # type: ignore[union-attr]
    assert entropy(decided).tolist() == [0.0, 0.0]  # type: ignore[union-attr]
    assert entropy(half).tolist() == pytest.approx([0.5])  # type: ignore[union-attr]  # log 2 over log 4
    assert entropy(half.transpose(1, 2)).tolist() == pytest.approx([0.5])  # type: ignore[union-attr]  # over children
    assert entropy(torch.ones(1, 3, 4)) is None


def test_verdicts_are_by_both_deviations_together() -> None:
    """The means of b and c lie 1.21 apart, and their deviations are 1 together; then 0.71 and 1.71."""
    found = {"control": [2.0, 2.0], "a": [5.0, 5.0], "b": [1.0, 1.0 + 2**0.5], "c": [0.5, 0.5]}
    assert verdict(found, "control") == ("c, 0.50 %", "none", "c", "a")
    found["c"] = [0.5, 1.5]
    assert verdict(found, "control") == ("c, 1.00 %", "b", "c", "a")
