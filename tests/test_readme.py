"""The code in README and docs runs, and links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from study.recipes import RECIPES
from torchcaps.cli.train_command import parse_experiment
from torchcaps.data import DATASETS
from torchcaps.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "study").glob("*.md")),
    )
}
README = PAGES[ROOT / "README.md"]
COMMANDS = [
    line
    for page in PAGES.values()
    for block in re.findall(r"^```\n(.*?)^```", page, re.M | re.S)
    for line in re.findall(r"^(?:torchcaps|python -m study) train (.*?)(?: +#.*)?$", block, re.M)
]


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 900


def test_code_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "stripes", None)
    monkeypatch.setitem(MODELS, "tuned", None)
    assert README.splitlines().index("```python") < 20
    for page in PAGES.values():
        for block in page.split("```python\n")[1:]:
            if "import onnxruntime" in block and not all(map(find_spec, ("onnx", "onnxruntime", "onnxscript"))):
                continue  # of the extra dev
            exec(compile(block.split("```")[0], "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert re.findall(r"\[[\d, ]+\]", said) == ["[8, 10, 16]", "[8, 10]", "[8, 10]", "[4, 10, 16]", "[4, 4, 4, 4, 16]"]
    own, stripes, tuned = (float(error) for error in re.findall(r"test error ([\d.]+)%", said))
    assert own < 30 and stripes == 0
    first = json.loads(Path("runs/first/result.json").read_text())["test_error"]
    assert tuned / 100 < first - 0.02
    exported = {"model.pt2", "model.onnx", "model.onnx.data"}
    assert {path.name for path in tmp_path.iterdir()} == {"net.pt", "couplings.png", "photos", "runs"} | exported


@pytest.mark.parametrize("line", COMMANDS)
def test_trainings_can_be_asked_for(line: str) -> None:
    name, *arguments = shlex.split(line)
    config, _ = parse_experiment(name, RECIPES[name](), arguments)
    assert config.recipe.removesuffix("-smoke") == name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pictures_and_pages_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)(?:\s\"[^\"]+\")?\)", PAGES[page]):
        file, _, heading = target.partition("#")
        assert (page.parent / file).is_file(), target
        headings = re.findall(r"^#+ (.+)$", (page.parent / file).read_text(encoding="utf-8"), re.M) if heading else []
        assert not heading or heading in {each.lower().replace(" ", "-") for each in headings}, target
