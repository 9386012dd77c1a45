"""Code of one's own in commands: a Python file that enters networks, data sets, routings or recipes by name.

A run keeps a copy of the file, to be looked at and to be named again. It is never run unasked.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from torchcaps.training.files import write_text

#: The files that were imported in this process, by the names of their modules.
_IMPORTED: dict[str, Path] = {}
#: Where in a run's folder their copies lie.
FOLDER = "code"


def import_file(path: str | Path) -> None:
    """Run a Python file, which enters what is its own: ``MODELS["mine"] = …``, ``register("mine", …)``.

    Files beside it can be imported by it, as if it were run by ``python``.

    Raises:
        ValueError: there is no such Python file, or a module of its name is there already.
    """
    file = Path(path).expanduser().resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"--import must name a Python file, got {path}")
    name = file.stem
    if _IMPORTED.get(name) == file:
        return
    if name in sys.modules:
        raise ValueError(f"--import must name a file whose name no module has, got {path}: {name} is {_place(name)}")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        sys.path.remove(str(file.parent))
        raise
    _IMPORTED[name] = file


def files() -> list[Path]:
    """Return the files that were imported, for another process to import them."""
    return list(_IMPORTED.values())


def keep_in(folder: Path) -> None:
    """Copy the imported files into a run's folder; what lies there stays, and another version gets another name."""
    for name, file in _IMPORTED.items():
        text = file.read_text(encoding="utf-8")
        kept = folder / FOLDER / f"{name}.py"
        number = 2
        while kept.is_file() and kept.read_text(encoding="utf-8") != text:
            kept = folder / FOLDER / f"{name}-{number}.py"
            number += 1
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text(kept, text)


def advice(folder: Path) -> str:
    """Say what is to be done about a name that is not known, where a run's folder has the code that entered it."""
    kept = sorted((folder / FOLDER).glob("*.py")) if folder.is_dir() else []
    return "".join(f". Its code is kept: look at it, then add --import {file}" for file in kept[-1:])


def _place(name: str) -> str:
    return str(getattr(sys.modules[name], "__file__", None) or "built in")
