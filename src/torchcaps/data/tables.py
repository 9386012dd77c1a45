"""Tables that say something of image files: a column with their names, others with labels, groups or splits."""

from __future__ import annotations

import csv
import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

_Value = TypeVar("_Value")

#: What the column with the names of the files may be called, in lower case.
FILE_COLUMNS = (
    *("file", "file_name", "filename", "image", "image_path", "image_name", "image_id", "image index", "path", "id"),
)


class Table(NamedTuple):
    """Hold a table: its columns' titles as they are written, and its rows of texts with their lines."""

    path: Path
    titles: list[str]
    rows: list[tuple[int, list[str]]]

    @property
    def columns(self) -> list[str]:
        """Return the columns' names in lower case."""
        return [title.lower() for title in self.titles]


def find_table(option: str, name: str, root: Path) -> Path:
    """Find a table that lies in the folder of the images, or where its name says.

    Raises:
        ValueError: naming the option; there is none.
    """
    if not isinstance(name, str | Path) or "\0" in str(name):
        raise ValueError(f"{option} must be a table in {root}, or the path of one; got {name!r}")
    table = next((path for path in (root / name, Path(name).expanduser()) if path.is_file()), None)
    if table is None:
        raise ValueError(f"{option} must be a table in {root}, or the path of one; got {name}, which is not there")
    return table


def read_table(path: Path) -> Table:
    """Read a ``.csv`` table with commas, semicolons or tabs, or a ``.jsonl`` file with one object a line.

    Lists in a ``.jsonl`` file become texts with ``;`` between their parts.

    Raises:
        ValueError: it cannot be read, or a row has more or fewer cells than there are columns.
    """
    return _read_jsonl(path) if path.suffix.lower() == ".jsonl" else _read_csv(path)


def _read_csv(path: Path) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            file.seek(0)
            marks = [mark for mark in ",;\t" if mark in head]
            reader = csv.reader(file, delimiter=marks[0] if marks else ",", strict=True)
            rows = [
                (reader.line_num, [cell.strip() for cell in row]) for row in reader if any(cell.strip() for cell in row)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    return Table(path, rows[0][1] if rows else [], rows[1:])


def _read_jsonl(path: Path) -> Table:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        found = [(k, json.loads(line)) for k, line in enumerate(lines, 1) if line.strip()]
    except (OSError, ValueError, RecursionError) as error:  # of JSON, of bytes that are no text, of endless numbers
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    titles = list(found[0][1]) if found and isinstance(found[0][1], dict) else []
    rows = []
    for line, row in found:
        if not isinstance(row, dict) or set(row) != set(titles):
            raise ValueError(f"{path}, line {line}, must be an object with {', '.join(titles)}; got {row}")
        rows.append((line, [_as_text(path, line, row[title]) for title in titles]))
    return Table(path, titles, rows)


def _as_text(path: Path, line: int, value: object) -> str:
    if isinstance(value, list):
        parts = [_as_text(path, line, part) for part in value]
        if any(";" in part for part in parts):
            raise ValueError(f"{path}, line {line}, must have no ';' within the parts of a list, got {value}")
        return ";".join(parts)
    return "" if value is None else str(value).strip()


def read_column(path: Path, column: str) -> dict[str, str]:
    """Read what a table with the columns ``file`` and ``column`` says of each file.

    Raises:
        ValueError: it cannot be read, lacks a column, or has a row without one of the two, or two rows that differ.
    """
    table = read_table(path)
    if any(table.columns.count(name) != 1 for name in ("file", column)):
        raise ValueError(
            f"{path} must begin with the names of its columns, file and {column}, got {', '.join(table.columns)}"
        )
    where = [table.columns.index(name) for name in ("file", column)]
    files, values = list[str](), list[str]()
    for line, row in table.rows:
        cells = [row[k] for k in where] if len(row) == len(table.titles) else []
        if not all(cells) or not cells:
            raise ValueError(
                f"{path}, line {line}, must have {len(table.titles)} cells, with a file and a {column}; got {row}"
            )
        files.append(file_in(cells[0]))
        values.append(plain(cells[1]))
    return one_each(path, files, values, column)


def one_each(path: Path, files: Sequence[str], values: Sequence[_Value], what: str) -> dict[str, _Value]:
    """Return what a table says of each file, which may stand in several rows that agree.

    Raises:
        ValueError: two rows differ.
    """
    found: dict[str, _Value] = {}
    for file, value in zip(files, values, strict=True):
        if found.setdefault(file, value) != value:
            raise ValueError(f"{path} must name one {what} for {file}, got {found[file]} and {value}")
    return found


def match_files(table: Path, root: Path, files: Sequence[Path], rows: Mapping[str, _Value], what: str) -> list[_Value]:
    """Find a table's row for each file: by its path below ``root`` or its name, with or without the ending.

    Args:
        table: its path, for messages.
        root: the folder of the images.
        files: the images.
        rows: by the files' names as the table has them.
        what: the column, for messages.

    Raises:
        ValueError: a file has no row, or a name that several have.
    """
    paths = [plain(path.relative_to(root).as_posix()) for path in files]
    n_of = Counter(key for path in paths for key in _keys(path))
    found: dict[str, _Value] = {}
    for path in paths:
        known = [key for key in _keys(path) if key in rows]
        if not known:
            continue
        first = known[0]
        for key in known[1:]:
            if rows[key] != rows[first]:
                raise ValueError(
                    f"{table} must name one {what} for {path}, got {rows[first]}, and {rows[key]} for {key}"
                )
        if n_of[first] > 1:
            raise ValueError(f"{table} must name {first} by its folder too, as in {path}: {n_of[first]} images have it")
        found[path] = rows[first]
    without = [path for path in paths if path not in found]
    if without:
        raise ValueError(f"{table} must have a row for every image of {root}, got none for {some(without, len(paths))}")
    known = set(n_of)
    others = [file for file in rows if file not in known]
    if others:
        logging.getLogger("torchcaps").warning(
            "%s has rows for %s that %s does not hold", table, some(others, len(rows)), root
        )
    return [found[path] for path in paths]


def _keys(path: str) -> list[str]:
    """List what a table may call a file: its path or its name, and both without the ending."""
    name = path.rpartition("/")[2]
    return list(dict.fromkeys([path, name, path.rpartition(".")[0], name.rpartition(".")[0]]))


def file_in(cell: str) -> str:
    """Write a file's name as paths here are written, with their slashes and accents."""
    return plain(cell.replace("\\", "/").removeprefix("./"))


def plain(name: str) -> str:
    """Write accents as one character, as a Mac's file names do not."""
    return unicodedata.normalize("NFC", name)


def some(names: Sequence[str], of: int) -> str:
    """Say how many there are, and name one of them."""
    return f"{len(names)} of {of}, such as {names[0]}"
