"""Labels of image files by a table: one or several of each image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchcaps.data.tables import FILE_COLUMNS, Table, file_in, one_each, plain, read_table
from torchcaps.typed import typed

#: What a column of labels may be called, in lower case.
LABEL_COLUMNS = ("label", "labels", "class", "classes", "category", "diagnosis", "dx", "finding labels", "target")
#: Columns that are no labels.
_OTHERS = ("group", "split")
#: What stands between several labels of an image.
_MARKS = (";", "|")
_YES_OR_NO = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


class Labels(NamedTuple):
    """Hold what a table says of its files.

    Attributes:
        path: of the table.
        classes: their names, in order.
        of: the labels of each file, by its name in the table.
        split: the split of each file, where the table has a column for it; else empty.
        several: whether an image may have none, one or several labels.
    """

    path: Path
    classes: tuple[str, ...]
    of: dict[str, tuple[str, ...]]
    split: dict[str, str]
    several: bool


@typed
def read_labels(path: Path) -> Labels:
    """Read a table of labels.

    It has a column with files (the first of ``FILE_COLUMNS`` that there is) and one of labels (one of
    ``LABEL_COLUMNS``), with ``;`` or ``|`` between several labels of an image. Or it has two or more columns, one a
    label, with 0 or 1 in each; where every row has a single 1, each image has one label. It may have the columns
    ``group`` and ``split`` besides.

    Raises:
        ValueError: it cannot be read, has no such columns, a row without a label that needs one, or two that differ.
    """
    table = read_table(path)
    at = _file_column(table)
    named = [k for k, name in enumerate(table.columns) if name in LABEL_COLUMNS]
    rest = [k for k, name in enumerate(table.columns) if k != at and name not in _OTHERS]
    for line, row in table.rows:
        if len(row) != len(table.titles) or not row[at]:
            raise ValueError(f"{path}, line {line}, must have {len(table.titles)} cells, with a file; got {row}")
    if len(named) == 1:
        classes, labels, several = _by_names(table, named[0])
    elif not named and len(rest) > 1 and table.rows:
        classes, labels, several = _by_columns(table, rest)
    else:
        raise ValueError(
            f"{path} must have one column label, or two or more columns of 0 and 1, one a label; got the columns "
            f"{', '.join(table.titles)}"
        )
    if len(classes) < 2:
        raise ValueError(f"{path} must name at least two labels, got {', '.join(classes) or 'none'}")
    files = [file_in(row[at]) for _, row in table.rows]
    split = {}
    if "split" in table.columns:
        split = one_each(path, files, [row[table.columns.index("split")] for _, row in table.rows], "split")
    return Labels(path, classes, one_each(path, files, labels, "label"), split, several)


def _file_column(table: Table) -> int:
    known = [name for name in FILE_COLUMNS if name in table.columns]
    if not known or table.columns.count(known[0]) > 1:
        raise ValueError(
            f"{table.path} must have one column of files, called {', '.join(FILE_COLUMNS)}; got the columns "
            f"{', '.join(table.titles)}"
        )
    return table.columns.index(known[0])


def _by_names(table: Table, at: int) -> tuple[tuple[str, ...], list[tuple[str, ...]], bool]:
    """Read one column with the names of the labels."""
    cells = [plain(row[at]) for _, row in table.rows]
    mark = next((mark for mark in _MARKS if any(mark in cell for cell in cells)), None)
    if mark is None:
        for (line, row), cell in zip(table.rows, cells, strict=True):
            if not cell:
                raise ValueError(f"{table.path}, line {line}, must have a {table.titles[at]}; got {row}")
        return _in_order(cells), [(cell,) for cell in cells], False
    labels = [tuple(dict.fromkeys(part.strip() for part in cell.split(mark) if part.strip())) for cell in cells]
    return _in_order([name for names in labels for name in names]), labels, True


def _by_columns(table: Table, columns: Sequence[int]) -> tuple[tuple[str, ...], list[tuple[str, ...]], bool]:
    """Read columns of 0 and 1, one a label."""
    titles = [table.titles[k] for k in columns]
    if len(set(titles)) < len(titles):
        raise ValueError(f"{table.path} must have columns of different names, got {', '.join(titles)}")
    labels = []
    for line, row in table.rows:
        for k in columns:
            if row[k].lower() not in _YES_OR_NO:
                raise ValueError(
                    f"{table.path}, line {line}, must have 0 or 1 for {table.titles[k]}, or the table a column label; "
                    f"got {row[k]!r}"
                )
        labels.append(tuple(table.titles[k] for k in columns if _YES_OR_NO[row[k].lower()]))
    return tuple(titles), labels, any(len(names) != 1 for names in labels)


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Sort different names by their numbers, where all are numbers, or by the alphabet."""
    if all(name.isdecimal() for name in names):
        return tuple(sorted(set(names), key=lambda name: (int(name), name)))
    return tuple(sorted(set(names)))
