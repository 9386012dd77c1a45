"""A measure that was taken, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from study.markdown import markdown_table
from study.measures import MEASURES
from study.measures.said import Said, in_words


def headlines(content: Mapping[str, Any]) -> dict[str, dict[str, Said]]:
    """What to read first, of each network.

    Args:
        content: what :func:`study.measures.record.record` wrote.
    """
    headline = MEASURES[content["measure"]].headline
    return {part: headline(content["values"], part) for part in ("run", "beside") if content[part] is not None}


def as_markdown(content: Mapping[str, Any]) -> list[str]:
    """The lines of a table of what to read first: one row for each number, one column for each network."""
    found = {
        f"`{content[part]['folder']}`": {label: in_words([said]) for label, said in lines.items()}
        for part, lines in headlines(content).items()
    }
    return table(content["measure"], found)


def table(measure: str, columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The lines of a table, from the cells of each column by the label of the row."""
    labels = dict.fromkeys(label for column in columns.values() for label in column)
    rows = [[label, *(column.get(label, "–") for column in columns.values())] for label in labels]
    return markdown_table([measure, *columns], rows)
