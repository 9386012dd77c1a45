"""Tables in Markdown, and numbers in them."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table of these cells."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def three_digits(number: float) -> str:
    """Write a number to three digits at least, never as a power of ten."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
