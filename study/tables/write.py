"""A table as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from study.markdown import markdown_table
from study.tables.summary import Summary, summarise
from study.tables.table import Results, Row, Table

#: The place of what was trained on this machine.
HERE = "here"


def as_markdown(table: Table, places: Mapping[str, Results], name: str, *, level: int = 1) -> str:
    """The table with the paper's numbers and those of each place side by side.

    Args:
        table: what to write.
        places: results, by what the place is called in the heads of the columns, such as "recorded".
        name: of the table, for its command.
        level: of the heading.
    """
    several = len(table.columns) > 1
    head = ["row", "recipe"]
    for title in table.columns.values():
        head += [f"paper: {title}" if several else "paper"]
        head += [f"{place}: {title}" if len(places) > 1 else title for place in places]
    head += ["seeds", "images seen", "parameters", "minutes a run", "on"]
    # Only whoever trains here is shown a number of shortened trainings: it is no result.
    mine = list(places).index(HERE) if HERE in places else None
    found = [[summarise(table, row, results) for results in places.values()] for row in table.rows]
    rows = [_cells(table, row, each, mine) for row, each in zip(table.rows, found, strict=True)]
    lines = [f"{'#' * level} {table.title}", "", f"{table.source}. `python -m study reproduce {name}`.", ""]
    lines += markdown_table(head, rows)
    if len(places) > 1:
        lines += ["", f"Seeds and what follows them are those of the number {' or else '.join([*places][::-1])}."]
    cells = [cell for row in rows for cell in row]
    if "smoke" in cells:
        lines += ["", 'A "smoke" run saw fewer training images than its row asks for, so its number is not shown.']
    if any("(shortened: " in cell for cell in cells):
        lines += [
            "",
            'A "shortened" training saw fewer images than its row asks for. Its number is no result of the row.',
        ]
    if table.note:
        lines += ["", table.note]
    if table.tried:
        lines += ["", "To come nearer to the paper's number:", *(f"- {each}" for each in table.tried)]
    for data, recipes in _data(table, places).items():
        lines += ["", f"Data of {', '.join(f'`{recipe}`' for recipe in recipes)}: {data}."]
    return "\n".join(lines) + "\n"


def _cells(table: Table, row: Row, found: Sequence[Summary | None], mine: int | None) -> list[str]:
    runs = [one for one in found if one is not None]
    # Of several places, the last that has a number: what was trained here is looked at by who trained it.
    shown = next((one for one in runs[::-1] if not one.smoke), runs[-1] if runs else None)
    options = {one.options for one in runs if not one.smoke}
    asked = options.pop() if len(options) == 1 else ""  # where places differ, each number says its own
    cells = [row.label, f"`{row.recipe}`" + f" `{asked}`" * bool(asked)]
    for column in table.columns:
        numbers = [_cell(one, column, asked) for one in found]
        here = None if mine is None else found[mine]
        if here is not None and mine is not None:
            numbers[mine] = here.shortened_cell(column, len(row.recipes)) or numbers[mine]
        cells += [row.paper.get(column, "–"), *numbers]
    if shown is None:
        return [*cells, "–", f"at least {row.minimum:,}", "–", "–", "–"]
    size = f"{shown.images:,}", f"{shown.n_parameters:,}"
    return [*cells, shown.runs_in_words(len(row.recipes)), *size, f"{shown.minutes:.0f}", "; ".join(shown.devices)]


def _cell(one: Summary | None, column: str, asked: str) -> str:
    """A number of one place, and what it was asked for with, where the row does not say so already."""
    if one is None:
        return "–"
    own = one.options and not one.smoke and column in one.values and one.options != asked
    return one.cell(column) + f" (`{one.options}`)" * bool(own)


def _data(table: Table, places: Mapping[str, Results]) -> dict[str, list[str]]:
    """What the data of the rows say of themselves, and the recipes that ran on them."""
    said: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each recipe once
    for row in table.rows:
        for results in places.values():
            for recipe, runs in row.among(results).items():
                for run in runs:
                    if run.get("data"):
                        said.setdefault(run["data"], {})[recipe] = None
    return {data: list(recipes) for data, recipes in said.items()}


def as_json(table: Table, places: Mapping[str, Results]) -> dict[str, Any]:
    """The same as plain dicts."""
    rows = []
    for row in table.rows:
        found = {place: summarise(table, row, results) for place, results in places.items()}
        rows.append(
            {"label": row.label, "recipe": row.recipe, "minimum": row.minimum, "paper": dict(row.paper)}
            | {place: one.as_json() for place, one in found.items() if one is not None}
        )
    return {"title": table.title, "source": table.source, "columns": dict(table.columns), "rows": rows}
