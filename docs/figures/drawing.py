"""How the pictures of these pages are written: SVG on a white card, the same bytes every time.

`python docs/figures/all.py` makes all pictures again; each script alone makes its own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent


def recorded(kind: str, name: str) -> dict[str, Any]:
    """Read one of the study's records, wherever this runs."""
    root = str(HERE.parents[1])
    if root not in sys.path:
        sys.path.append(root)
    return import_module("study.records").read(kind, name)


def save(figure: Figure, name: str, folder: Path = HERE) -> Path:
    """Write a figure as SVG and return its path. No date and no random name is in it."""
    path = folder / f"{name}.svg"
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of lines.
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
    return path
