"""Files that are written whole or not at all, and JSON."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of pictures.
DPI = 150


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file under a temporary name, then rename it.

    Whatever stops it, ``path`` holds either what it held or all of what is new.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.partial")  # threads and containers may share a number
    try:
        write(temporary)
        with temporary.open("r+b") as file:  # Windows syncs no file that is open for reading alone
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def link(path: Path, to: Path) -> None:
    """Give a file a second name, without a copy where the file system can."""
    try:
        to.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, to)


def write_tensors(path: Path, content: object) -> None:
    """:func:`torch.save`, which tells a full disk in words about itself.

    Raises:
        OSError: the file cannot be written.
    """
    import torch

    try:
        torch.save(content, path)
    except RuntimeError as error:
        raise OSError(f"{path.parent} took no further file; is the disk full? ({error})") from error


def require_place(name: str, path: Path) -> None:
    """See, before any work, that a folder is there or can be made, and makes none.

    Raises:
        ValueError: it cannot, naming the argument ``name``.
    """
    above = next((each for each in (path, *path.absolute().parents) if each.exists()), path)
    if not (above.is_dir() and os.access(above, os.W_OK)):
        wrong = "is none" if above.exists() and not above.is_dir() else "cannot be"
        raise ValueError(f"{name} must be a folder that can be written to, got {path}: {above} {wrong}")


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON, whole or not at all.

    Raises:
        ValueError: NaN or infinity, which JSON lacks.
    """
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def as_png(figure: Figure) -> bytes:
    """Draw a figure as PNG; the same figure gives the same bytes. Names in it are no formulas, whatever they hold."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def write_picture(path: Path, figure: Figure) -> None:
    """Write a picture, whole or not at all."""
    png = as_png(figure)
    write_atomically(path, lambda temporary: temporary.write_bytes(png))


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Read what a JSON file holds.

    Args:
        path: the file.
        keys: what it must have, where it must have anything.

    Raises:
        ValueError: it is missing or broken, or lacks one of these.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # of JSON, or of bytes that are no text
        raise ValueError(f"{path} cannot be read: {error}") from error
    if keys and not (isinstance(found, dict) and set(keys) <= found.keys()):
        got = ", ".join(found) if isinstance(found, dict) else f"a {type(found).__name__}"
        raise ValueError(f"{path} must hold {', '.join(keys)}; got {got or 'nothing'}")
    return found
