"""Measures that were taken, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcaps.experiments.files import read_json
from torchcaps.experiments.markdown import markdown_table
from torchcaps.experiments.measures import MEASURES


def as_markdown(content: Mapping[str, Any]) -> list[str]:
    """The lines of a table of what to read first: one row for each number, one column for each network.

    Args:
        content: what :func:`torchcaps.experiments.measures.record.record` wrote.
    """
    parts = [part for part in ("run", "beside") if content[part] is not None]
    found = [MEASURES[content["measure"]].headline(content["values"], part) for part in parts]
    head = [content["measure"], *(f"`{content[part]['folder']}`" for part in parts)]
    labels = dict.fromkeys(label for each in found for label in each)
    return markdown_table(head, [[label, *(each.get(label, "–") for each in found)] for label in labels])


def recorded(folder: Path) -> list[str]:
    """The lines of all measures that are kept in ``<folder>/<run>/<measure>.json``, with their pictures' places.

    Raises:
        ValueError: a file there cannot be read, or is of no known measure.
    """
    lines = []
    for path in sorted(folder.glob("*/*.json")):
        content = read_json(path, "measure", "values", "n", "device", "run", "beside")
        if content["measure"] not in MEASURES:
            raise ValueError(f"{path} must be of one of {', '.join(MEASURES)}, got {content['measure']}")
        where = f"{folder.parent.name}/{path.relative_to(folder.parent).as_posix()}"
        n = content["n"] if isinstance(content["n"], int) else " + ".join(map(str, content["n"]))
        lines += ["", *as_markdown(content), ""]
        lines += [
            f"{n} images, {content['device']}: [file](../{where}), [picture](../{Path(where).with_suffix('.png')})."
        ]
    return lines
