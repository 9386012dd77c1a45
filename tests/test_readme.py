"""README and results hold to each other and to the recipes; the README's code runs."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from torchcaps.experiments.recipes import RECIPES
from torchcaps.experiments.tables.kept import is_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = sorted((ROOT / "results").glob("*.json"))
#: | `recipe` | what | error | seeds | …
ROWS = re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([\d.]+)(?: ± ([\d.]+))? \| (\d+) \|", README, flags=re.MULTILINE)


def results(recipe: str) -> list[dict[str, Any]]:
    every = [json.loads(path.read_text()) for path in RESULTS]
    return [result for result in every if result["recipe"] == recipe]


def test_every_result_is_in_the_table_and_nothing_else() -> None:
    assert {"digits", "digits-cnn", "digits-pairs", "digits-stacked"} <= {row[0] for row in ROWS}
    assert sorted(row[0] for row in ROWS) == sorted({json.loads(path.read_text())["recipe"] for path in RESULTS})


@pytest.mark.parametrize(("recipe", "mean", "spread", "n"), ROWS)
def test_a_number_is_that_of_its_files(recipe: str, mean: str, spread: str, n: str) -> None:
    errors = [100 * result["test_error"] for result in results(recipe)]
    assert int(n) == len(errors)
    assert mean == f"{statistics.mean(errors):.2f}"
    assert spread == (f"{statistics.stdev(errors):.2f}" if len(errors) > 1 else "")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_recipe_is_still_what_was_run(path: Path) -> None:
    result = json.loads(path.read_text())
    assert path.name == f"{result['recipe']}-{result['seed']}.json"
    assert is_of(result, RECIPES[result["recipe"]]())
    assert result["commit"] and not result["commit"].endswith("-dirty")


def test_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = README.splitlines()
    assert lines.index("```python") < 15
    block = README.split("```python\n")[1].split("```")[0]
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("torch.Size([8, 10") == 3


def test_pictures_and_pages_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target
