"""Pictures as parts of the report's page, and as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcaps.experiments.files import as_png, write_atomically
from torchcaps.experiments.run import Run
from torchcaps.report import page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Album:
    """Makes a figure a part of the page, and keeps it as ``pictures/<name>.png``."""

    def __init__(self, run: Run) -> None:
        self.folder = run.path / "pictures"

    def add(self, name: str, figure: Figure, text: str) -> str:
        """The text and under it the figure, as HTML."""
        png = as_png(figure)
        write_atomically(self.folder / f"{name}.png", lambda path: path.write_bytes(png))
        width, height = figure.get_size_inches()
        return page.paragraph(text) + page.picture(png, text, width, height)
