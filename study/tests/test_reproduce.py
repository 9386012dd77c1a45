"""A table is trained row by row: what is missing, until the budget is used up, and nothing twice."""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from study import records
from study.cli import main
from study.recipes import RECIPES, recipe
from study.tables import TABLES, Row, Table
from study.tables.reproduce import reproduce
from study.tests.test_tables import result
from tests.endings import SIGNALS, ended_at, in_fork
from torchcaps.data import DATASETS, Dataset, Images
from torchcaps.training.config import Experiment
from torchcaps.training.module import NonFiniteLoss


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A table of two short recipes on made-up images; holds the folders that were asked for data."""
    roots: list[str] = []

    def made_up(root: Path | None = None, **_: object) -> Dataset:
        roots.append("" if root is None else root.name)
        images = Images(
            torch.randint(0, 256, (40, 1, 28, 28), generator=torch.Generator().manual_seed(0)).byte(),
            torch.arange(40) % 10,
        )
        return Dataset("toys", tuple("0123456789"), images, images, images)

    def short(name: str) -> Experiment:
        small = {"channels": 4, "n_types": 2, "decoder": None}
        plain = recipe("digits")
        data, model = replace(plain.data, name="toys"), replace(plain.model, options=small)
        return replace(plain, recipe=name, epochs=2, batch_size=8, data=data, model=model)

    monkeypatch.setitem(DATASETS, "toys", made_up)
    table = Table("Tiny", "Nowhere", (Row("first", "tiny-a", 80), Row("second", "tiny-b", 81)))
    for name in ("tiny-a", "tiny-b"):
        monkeypatch.setitem(RECIPES, name, lambda name=name: short(name))
    monkeypatch.setitem(TABLES, "tiny", table)
    return roots


def test_reproducing_trains_what_is_missing(tiny: list[str], tmp_path: Path) -> None:
    own = tmp_path / "data" / "toys"
    own.mkdir(parents=True)
    said: list[str] = []
    options: Mapping[str, Any] = {"runs": tmp_path / "runs", "progress": "none", "threads": 1, "device": "cpu"}
    reproduce("tiny", ["tiny-b"], root=tmp_path / "data", say=said.append, **options)
    assert tiny == ["toys"]
    assert said[0] == "second: tiny-b, seed 0" and not (tmp_path / "runs" / "tiny-a").exists()
    text = reproduce("tiny", seeds=2, keep_in=tmp_path / "kept", say=said.append, **options)
    assert len(tiny) == 5  # the first run is not trained again, but its data are compared with what is at hand
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "`tiny-" in line]
    assert "±" in cells[0][5] and cells[1][5].endswith("(shortened: 2 seeds)")  # 80 images are shown
    assert records.names("runs", tmp_path / "kept") == ["tiny-a-0", "tiny-a-1", "tiny-b-0", "tiny-b-1"]
    for suffix in ("md", "json", "png"):
        assert (tmp_path / "runs" / "tables" / f"tiny.{suffix}").stat().st_size > 200


def test_a_used_up_budget_is_gone_on_with(tiny: list[str], tmp_path: Path) -> None:
    options: Mapping[str, Any] = {"runs": tmp_path / "runs", "progress": "none", "threads": 1, "device": "cpu"}
    said: list[str] = []
    reproduce("tiny", ["tiny-a"], budget=1e-4, say=said.append, **options)  # six milliseconds
    folder = tmp_path / "runs" / "tiny-a"
    assert not (folder / "result.json").exists() and "budget is used up" in said[1]
    for _ in range(20):
        reproduce("tiny", ["tiny-a"], budget=1e-3, say=said.append, **options)
        if (folder / "result.json").exists():
            break
    finished = json.loads((folder / "result.json").read_text())
    whole = tmp_path / "whole"
    reproduce("tiny", ["tiny-a"], runs=whole, progress="none", threads=1, device="cpu", say=said.append)
    assert finished["steps"] == 10 == json.loads((whole / "tiny-a" / "result.json").read_text())["steps"]
    mine, other = (torch.load(path / "tiny-a" / "model.pt") for path in (tmp_path / "runs", whole))
    for name, value in mine["state_dict"].items():
        torch.testing.assert_close(value, other["state_dict"][name], rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_table_ended_at_any_moment_goes_on(tiny: list[str], tmp_path: Path) -> None:
    whole, runs, steps, draw = tmp_path / "whole", tmp_path / "killed", tmp_path / "steps", random.Random(2)
    options: Mapping[str, Any] = {"progress": "none", "threads": 1, "device": "cpu", "say": lambda _: None}
    reproduce("tiny", runs=whole, keep_in=whole / "kept", **options)
    ends: list[int] = []
    while not ends or ends[-1]:
        moment, by = draw.randint(1, 90), draw.choice(SIGNALS)

        def life(moment: int = moment, by: signal.Signals = by) -> None:
            with ended_at(moment if len(ends) < 8 else 10**9, by, runs, steps):
                reproduce("tiny", runs=runs, keep_in=runs / "kept", **options)

        ends.append(in_fork(life))
        assert ends[-1] in (0, 130, -signal.SIGKILL, -signal.SIGTERM), ends
        records.every("runs", runs / "kept")
        for path in runs.rglob("[!.]*.json"):
            json.loads(path.read_text())
    assert sum(end != 0 for end in ends) >= 5
    for name in ("tiny-a", "tiny-b"):
        mine, other = (torch.load(path / name / "model.pt") for path in (runs, whole))
        assert all(torch.equal(value, other["state_dict"][key]) for key, value in mine["state_dict"].items())
        results = [records.read("runs", f"{name}-0", path / "kept") for path in (runs, whole)]
        assert results[0]["test_error"] == results[1]["test_error"]
    assert not list(runs.rglob("*.partial"))


def test_what_is_kept_is_not_trained_again(tiny: list[str], tmp_path: Path) -> None:
    options: Mapping[str, Any] = {"runs": tmp_path / "runs", "progress": "none", "threads": 1, "device": "cpu"}
    options |= {"recorded": tmp_path / "none"}
    kept, said = tmp_path / "kept", []
    reproduce("tiny", ["tiny-a"], keep_in=kept, say=said.append, **options)
    shutil.rmtree(tmp_path / "runs")
    reproduce("tiny", ["tiny-a"], seeds=2, keep_in=kept, say=said.append, **options)
    epochs = records.read("runs", "tiny-a-0", kept)["config"]["epochs"]
    assert f"first: tiny-a, seed 0, is kept already, of {epochs} epochs" in said and "first: tiny-a, seed 1" in said
    assert not (tmp_path / "runs" / "tiny-a").exists() and "tiny-a-1" in records.names("runs", kept)
    head, row = (next(line for line in said[-1].splitlines() if what in line) for what in ("| row |", "`tiny-a`"))
    assert "| 2 |" in row and "±" in row  # the kept one counts
    assert "recorded" not in head  # there is no such folder here
    before, other = len(tiny), records.read("runs", "tiny-a-0", kept)
    records.write("runs", "tiny-b-0", other | {"config": other["config"] | {"batch_size": 4}}, kept)
    with pytest.raises(ValueError, match=r"runs.jsonl: tiny-b-0 must be a result of tiny-b as it is now"):
        reproduce("tiny", seeds=3, keep_in=kept, say=said.append, **options)
    with pytest.raises(ValueError, match=r"keep_in must be None for a smoke run"):
        reproduce("tiny", keep_in=kept, quick=True, say=said.append, **options)
    assert len(tiny) == before  # before any work


def test_what_has_no_mean_is_refused_before_any_work(tiny: list[str], tmp_path: Path) -> None:
    options: Mapping[str, Any] = {"progress": "none", "threads": 1, "device": "cpu", "say": lambda _: None}
    kept, before = tmp_path / "kept", len(tiny)
    reproduce("tiny", ["tiny-a"], epochs=3, keep_in=kept, runs=tmp_path / "runs", **options)
    assert len(tiny) == before + 1
    with pytest.raises(ValueError, match=r"epochs must be 3, as .*tiny-a-0 has, got 4"):
        reproduce("tiny", ["tiny-a"], seeds=2, epochs=4, keep_in=kept, runs=tmp_path / "other", **options)
    with pytest.raises(ValueError, match=r"holds a run of another experiment .*by runs"):
        reproduce("tiny", ["tiny-b", "tiny-a"], epochs=4, runs=tmp_path / "runs", **options)
    assert len(tiny) == before + 1
    # What else lies there, of other epochs, is no run of this command.
    text = reproduce("tiny", ["tiny-b"], epochs=4, runs=tmp_path / "runs", **options)
    assert [line.split("|")[4].strip() for line in text.splitlines() if "`tiny-a`" in line] == ["–"]


def test_runs_of_other_data_are_refused_before_any_work(tiny: list[str], tmp_path: Path) -> None:
    """They would have no mean in the end, after hours."""
    options: Mapping[str, Any] = {"runs": tmp_path, "progress": "none", "threads": 1, "device": "cpu"}
    said: list[str] = []
    reproduce("tiny", ["tiny-a"], seeds=2, say=said.append, **options)
    path = tmp_path / "tiny-a" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data": "half of them"}))
    said.clear()
    with pytest.raises(ValueError, match="results of tiny-a must be of the same data, got "):
        reproduce("tiny", ["tiny-a"], seeds=2, say=said.append, **options)
    shutil.rmtree(tmp_path / "tiny-a-seed1")
    with pytest.raises(ValueError, match=r"data must be 'half of them', as those of .*tiny-a, got ''; or move"):
        reproduce("tiny", ["tiny-a"], seeds=2, say=said.append, **options)
    assert not said


def test_a_run_that_diverges_leaves_the_others(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = importlib.import_module("study.tables.reproduce").train

    def diverging(config: Experiment, *arguments: Any, **options: Any) -> dict[str, Any]:
        if config.recipe == "tiny-a":
            raise NonFiniteLoss("loss is nan at step 3")
        return once(config, *arguments, **options)

    monkeypatch.setattr("study.tables.reproduce.train", diverging)
    said: list[str] = []
    reproduce("tiny", runs=tmp_path, progress="none", threads=1, device="cpu", say=said.append)
    assert "tiny-a, seed 0, has no result: loss is nan at step 3" in said
    assert (tmp_path / "tiny-b" / "result.json").is_file()


def test_smoke_reads_smoke(tiny: list[str], tmp_path: Path) -> None:
    text = reproduce("tiny", runs=tmp_path, quick=True, progress="none", threads=1, device="cpu", say=lambda _: None)
    assert text.count("| smoke |") == 2 and len(tiny) == 2
    assert 'A "smoke" run saw fewer training images than its row asks for' in text
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        "tiny-smoke.json", "tiny-smoke.md", "tiny-smoke.png",
    ]  # fmt: skip


def test_the_commands(tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, kept, to = (str(tmp_path / name) for name in ("runs", "kept", "results.md"))
    arguments = ["reproduce", "tiny", "--row", "tiny-a", "--runs", runs, "--threads", "1", "--device", "cpu"]
    assert main([*arguments, "--keep", kept, "--epochs", "3"]) == 0
    assert "| first | `tiny-a` `--epochs 3` |" in capsys.readouterr().out and len(tiny) == 1
    assert records.read("runs", "tiny-a-0", tmp_path / "kept")["epochs"] == 3
    assert main(["results", "--from", kept, "--to", to]) == 0
    line = next(line for line in Path(to).read_text().splitlines() if line.startswith("| first "))
    assert "| 120 |" in line  # images seen
    old = result("digits-cnn") | {"config": replace(recipe("digits-cnn"), batch_size=1).to_dict()}
    records.write("runs", "digits-cnn-0", old, Path(kept))
    assert main(["results", "--from", kept, "--to", to]) == 0
    said = capsys.readouterr().out
    assert (
        "digits-cnn-0 is left out: no result, or of a recipe that is gone or has changed" in said
        and "tiny-a-0" not in said
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "nonsense"}, "table must be one of"),
        ({"rows": ["nonsense"]}, "row must be one of digits, "),
        ({"rows": "digits"}, r"rows must be several, such as \['digits'\], got one"),
        ({"seeds": 0}, "seeds must be an integer of at least 1"),
        ({"budget": 0.0}, "budget must be positive"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        reproduce(**({"name": "digits", "runs": tmp_path} | arguments))
    assert not any(tmp_path.iterdir())
