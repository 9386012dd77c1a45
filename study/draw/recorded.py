"""The picture of a record, drawn again from its numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from study import records
from study.draw.few_labels import draw_few_labels
from torchcaps.checks import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Pictures of measures show images and want the run: ``python -m study measure`` draws them.
KINDS = ("few-labels", "bench")


def draw_recorded(kind: str, name: str, folder: Path = records.RESULTS) -> Figure:
    """Draw what ``few-labels`` or ``python -m benchmarks`` drew when it was recorded.

    Raises:
        ValueError: a kind without such pictures, or no record of this name.
    """
    check_choice("kind", kind, KINDS)
    content = records.read(kind, name, folder)
    return draw_few_labels(content["rows"]) if kind == "few-labels" else _benchmark(content["suites"])


def _benchmark(suites: dict[str, Any]) -> Figure:
    from benchmarks.draw import draw
    from benchmarks.report import from_json

    return draw(from_json(suites))
