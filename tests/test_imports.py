"""A package imports only from the packages above it in this list; and importing is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchcaps

SOURCE = Path(torchcaps.__file__).parent
ORDER = (
    "checks",
    "typed",
    "types",
    "memory",
    "progress",
    "ops",
    "testing",
    "doctor",
    "layers",
    "optim",
    "models",
    "data",
    "training",
    "hub",
    "explain",
    "report",
    "playground",
    "cli",
    "__main__",
)
#: data stands beside the models, not on them.
FORBIDDEN = {("data", "layers"), ("data", "models")}


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(source: str) -> set[str]:
    """The packages that a file imports from, or public names of the whole one, which stand for theirs."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole path"
            whole = node.module == "torchcaps"
            names = [f"torchcaps.{alias.name}" for alias in node.names] if whole else [node.module or ""]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("torchcaps.")}
    return {torchcaps._HOME.get(name, name).split(".")[0] for name in found} - {"__version__"}


def test_every_way_to_import_is_seen() -> None:
    assert imports("from torchcaps import models, squash\nimport torchcaps.data.mnist") == {"models", "ops", "data"}
    with pytest.raises(AssertionError, match="whole path"):
        imports("from . import models")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_data_flow_one_way(path: Path) -> None:
    here = package(path)
    if here == "__init__":
        return
    for other in imports(path.read_text(encoding="utf-8")):
        assert ORDER.index(other) <= ORDER.index(here), f"{here} must not import {other}"
        assert (here, other) not in FORBIDDEN, f"{here} must not import {other}"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import torchcaps; torchcaps.DenseCaps; torchcaps.load",
            ("lightning", "sklearn", "matplotlib", "PIL", "torch._dynamo"),
        ),
        ("from torchcaps.cli import main; main(['--version'])", ("torch", "numpy")),
        ("import torchcaps.explain", ("matplotlib", "lightning", "sklearn", "PIL")),
        ("import torchcaps.training.train", ("torchcaps.explain", "torchcaps.report")),
        ("from torchcaps.training.recipes import recipe; recipe('digits')", ("torch", "lightning")),
    ],
)
def test_what_importing_does_not_bring(statement: str, absent: tuple[str, ...]) -> None:
    code = f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\n"
    code += f"print([m for m in {absent} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_public_name_is_there() -> None:
    for name in torchcaps.__all__:
        assert getattr(torchcaps, name).__name__ == name
    code = "import torchcaps; print([getattr(torchcaps, name).__name__ for name in torchcaps._MODULES])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) == {f"torchcaps.{p}" for p in ORDER} - {
        f"torchcaps.{name}" for name in ("checks", "typed", "types", "progress", "hub", "__main__")
    }
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        torchcaps.nonsense  # noqa: B018


def test_what_type_checkers_and_the_docstring_name_is_what_there_is() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (alias.name, alias.asname, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {(name, name, f"torchcaps.{home}") for name, home in torchcaps._HOME.items()}
    assert set(re.findall(r"`(\w+)`", torchcaps.__doc__ or "")) == set(torchcaps.__all__)


@pytest.mark.parametrize("folder", ["study", "benchmarks", "examples"])
def test_what_stands_beside_takes_public_names_alone(folder: str) -> None:
    """Of modules and of their names: none that begins with an underscore."""
    private = []
    for path in (SOURCE.parents[1] / folder).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps"):
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                private += [(path.name, part) for part in parts if part.startswith("_") and part != "__version__"]
    assert not private


def test_the_library_knows_nothing_that_stands_beside_it() -> None:
    """It is in a clone alone."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) (benchmarks|study|examples|tests)\b", text, re.M), path
