"""The study's commands, and those of the library with the study's names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from study import records
from study.cli import MEASURES, _add, main
from study.measures import MEASURES as KNOWN
from study.recipes import RECIPES
from tests.test_cli import examples_of
from torchcaps.cli.parser import make_parser
from torchcaps.data import DATASETS

SHORT = ["--epochs=1", "--threads=1", "--device=cpu"]


def test_the_library_knows_the_studys_names_here() -> None:
    done = subprocess.run([sys.executable, "-m", "study", "list"], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in done.stdout for name in (*RECIPES, *DATASETS))
    assert {"expanded-mnist", "faces"} < set(DATASETS) and tuple(KNOWN) == MEASURES


def test_the_help_of_every_command_has_an_example() -> None:
    parser = make_parser("python -m study", _add)
    assert {"reproduce", "measure", "train"} <= {words[0] for words in examples_of(parser)}


def test_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", said, re.M) for name in RECIPES) and "Table mnist:" in said


def test_results_replace_nothing_but_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        records.write("runs", f"digits-{seed}", records.read("runs", f"digits-{seed}"), tmp_path / "results")
    mine = tmp_path / "results.md"
    arguments = ["results", "--from", str(tmp_path / "results"), "--to", str(mine)]
    mine.write_text("# My thesis' results\n")
    assert main(arguments) == 2 and mine.read_text() == "# My thesis' results\n"
    assert "which is something else" in capsys.readouterr().err
    mine.unlink()
    assert main(arguments) == 0 and "`digits`" in mine.read_text(encoding="utf-8")
    mine.write_text(mine.read_text(encoding="utf-8") + "more", encoding="utf-8")
    assert main(arguments) == 0 and not mine.read_text(encoding="utf-8").endswith("more")


def test_a_result_is_recorded_where_none_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", *SHORT]) == 0
    for _ in range(2):  # the same result twice is no conflict
        assert main(["record", "runs/digits", "--to=kept"]) == 0
        assert "kept as kept/runs.jsonl: digits-0" in capsys.readouterr().out
    result = records.read("runs", "digits-0", tmp_path / "kept")
    assert result == json.loads((tmp_path / "runs" / "digits" / "result.json").read_text())
    another = "keep wants a recipe as it is except for seed and epochs, got another experiment of digits"
    assert main(["train", "digits", "--smoke"]) == 0
    records.write("runs", "digits-0", {**result, "seconds": 0.0}, tmp_path / "kept", replace=True)
    for run, why in (
        ("runs/digits", "kept/runs.jsonl: digits-0 is another record: remove that line to keep this one"),
        ("runs/digits-smoke", f"{another}-smoke"),
        ("nowhere", "nowhere must hold a finished run"),
    ):
        assert main(["record", run, "--to=kept"]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["results", "--from", "nowhere"], "--from must be a folder of kept results, but nowhere has none"),
        (["measure", "charm", "nowhere"], "measure must be one of robustness, equivariance, .*; got 'charm'"),
        (["measure", "pairs", "nowhere"], "nowhere must hold a finished run, but it is no folder"),
        (["measure", "pairs", "nowhere", "--n=0"], "n must be an integer of at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


@pytest.mark.parametrize(
    "arguments",
    [
        ["reproduce", "digits", "--keep="],
        ["few-labels", "runs/mnist-templates", "--out="],
        ["results", "--to="],
        ["measure", "pairs", "runs/a", "--data.root="],
    ],
)
def test_an_empty_name_is_not_the_folder_one_stands_in(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"{arguments[-1][:-1]}: wants a name, got an empty text" in capsys.readouterr().err


def test_a_misspelt_option_is_not_another_ones_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "digits", "--seed", "2"])
    assert "unrecognized arguments: --seed 2" in capsys.readouterr().err
