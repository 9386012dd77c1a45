"""The code of README and of every page of the documentation runs, and links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

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
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "study").glob("*.md")),
    )
    if "build" not in path.parts
}
README = PAGES[ROOT / "README.md"]
COMMANDS = [
    line
    for page in PAGES.values()
    for language, block in re.findall(r"^```(.*?)\n(.*?)^```", page, re.M | re.S)
    if not language
    for line in re.findall(r"^(?:torchcaps|python -m study) train (.*?)(?: +#.*)?$", block.replace("\\\n", ""), re.M)
]
#: Packages that a page's code needs and the library does not.
FURTHER = {
    "export.md": ("onnx", "onnxruntime", "onnxscript"),
    "pretrained.md": ("huggingface_hub",),
    "segmentation.md": ("nibabel",),
}
#: What the code of a page leaves behind.
FILES = {
    "compile.md": set(),
    "export.md": {"model.pt2", "scores.pt2", "model.onnx", "model.onnx.data"},
    "look-inside.md": {"perturbations.png", "couplings.png", "pairs.png"},
    "own-images.md": {"photos", "runs"},
    "own-network.md": {"net.pt"},
    "pretrained.md": {"for-the-hub"},
    "segmentation.md": {"runs", "scans"},
    "three-minutes.md": {"perturbations.png", "runs"},
    "train.md": {"runs"},
}


def _blocks(page: Path) -> list[str]:
    return [block.split("```")[0] for block in PAGES[page].split("```python\n")[1:]]


def _id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 900
    assert README.splitlines().index("```python") < 20


#: A page whose program starts processes, which import it: see the test of its own.
SEVERAL = ROOT / "docs" / "do" / "several-processes.md"


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page) and page != SEVERAL], ids=_id)
def test_code_runs(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The blocks of a page run one after the other, as in a notebook, and print what stands behind them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "stripes", None)
    for name in ("mine", "tuned"):
        monkeypatch.setitem(MODELS, name, None)
    for package in FURTHER.get(page.name, ()):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed; it is of the extra dev")
    names = {"__name__": "__main__"}
    with patch.dict(os.environ):
        for block in _blocks(page):
            exec(compile(block, page.name, "exec"), names)
    said = capsys.readouterr().out
    for shapes in re.findall(r"^ *print\(.*\)  # (\[[\d, \[\]]+\])$", "\n".join(_blocks(page)), re.M):
        assert shapes in re.sub(r"torch\.Size\((\[[\d, ]+\])\)", r"\1", said)
    assert {path.name for path in tmp_path.iterdir()} == FILES.get(page.name, set())
    for most, error in _errors(page.name, said):
        assert error <= most


def _errors(name: str, said: str) -> list[tuple[float, float]]:
    """Return the largest error that will do, and the error, of each training on a page."""
    errors = [float(error) for error in re.findall(r"(?:test|tuned) error ([\d.]+)%", said)]
    if name == "own-images.md":
        return list(zip([0.0], errors, strict=True))  # stripes are easy
    if name == "train.md":
        untuned = 100 * json.loads(Path("runs/first/1-epochs/result.json").read_text())["test_error"]
        return list(zip([30.0, untuned - 2], errors, strict=True))
    if name in ("own-network.md", "three-minutes.md"):
        return list(zip([30.0], errors, strict=True))
    assert not errors
    return []


def test_two_processes_train_together(tmp_path: Path) -> None:
    (block,) = _blocks(SEVERAL)
    (tmp_path / "together.py").write_text(block, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "together.py"]
    said = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert "2 processes, 39 steps" in said


@pytest.mark.parametrize("line", COMMANDS)
def test_trainings_can_be_asked_for(line: str) -> None:
    name, *arguments = shlex.split(line)
    config, _ = parse_experiment(name, RECIPES[name](), arguments)
    assert config.recipe.removesuffix("-smoke") == name


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_pictures_and_pages_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)(?:\s\"[^\"]+\")?\)", text):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        linked = (page.parent / file) if file else page
        assert linked.is_file(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.M) if heading else []
        assert not heading or heading in {each.lower().replace(" ", "-") for each in headings}, target


def test_commands_are_found() -> None:
    own = "digits --data.name folder --data.root photos --data.image_size '[32, 32]' --keep-best --out runs/photos"
    assert own in COMMANDS
    assert len(COMMANDS) > 10
