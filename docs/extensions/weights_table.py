"""The directive ``weights``: a table of the weights that come with the library."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from torchcaps.models import cards


class Weights(SphinxDirective):
    """Show the card of each file of weights as a row."""

    def run(self) -> list[nodes.Node]:
        """Write the table from the cards."""
        lines = ["| weights | network | data | in test | size |", "| --- | --- | --- | --- | --- |"]
        for name, card in cards().items():
            shown = ", ".join(_in_words(what, value) for what, value in card.result.items())
            row = f"`{name}`", f"`{card.model}`", card.data.partition(":")[0], shown, f"{card.size / 1e6:.2f} MB"
            lines.append(f"| {' | '.join(row)} |")
        return self.parse_text_to_nodes(StringList(lines, "weights"))  # type: ignore[arg-type]


def _in_words(what: str, value: float) -> str:
    what = what.removeprefix("test_")
    return f"{what} {value:.2%}" if what == "error" else f"{what} {value:.5f}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Enter the directive."""
    app.add_directive("weights", Weights)
    return {"version": "1", "parallel_read_safe": True}
