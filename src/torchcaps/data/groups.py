"""Whose image it is: groups of images by their file names, or by a table."""

from __future__ import annotations

import csv
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_COLUMNS = ("file", "group")
_NAME = "data.options.groups"


def find_groups(groups: str, root: Path, files: Sequence[tuple[Path, Path]]) -> list[str]:
    """The name of each image's group.

    Args:
        groups: a regular expression, or the path of a table: a text that ends with ".csv". The expression is searched
            in the file's path below its class's folder ("p07_left.png", or "p07/left.png" where there are sub-folders);
            what its one pair of brackets matches is the group, without brackets all that it matches. The table lies in
            ``root`` or where the path says, and has the columns ``file`` and ``group``, and perhaps others. ``file``
            is the path below ``root``, or the name alone where one image has it.
        root: the folder of the images.
        files: for each image its path and the folder of its class.

    Raises:
        ValueError: no text, no expression, or an image that it does not match; a table that is missing, broken, or
            lacks an image or its group, or that names two for one.
    """
    if not isinstance(groups, str) or not groups:
        raise ValueError(f"{_NAME} must be a regular expression or a .csv file, got {groups!r}")
    found = _by_table(groups, root, files) if groups.lower().endswith(".csv") else _by_name(groups, files)
    if len(set(found)) < 3:
        raise ValueError(
            f"{_NAME} must name at least three groups, for one cannot be in two splits; got {len(set(found))}: "
            f"{', '.join(sorted(set(found)))} by {groups}"
        )
    return found


def _by_name(groups: str, files: Sequence[tuple[Path, Path]]) -> list[str]:
    try:
        expression = re.compile(groups)
    except re.error as error:
        raise ValueError(f"{_NAME} must be a regular expression or a .csv file, got {groups!r}: {error}") from error
    if expression.groups > 1:
        raise ValueError(
            f"{_NAME} must have one pair of brackets that capture, or none ('(?:…)' captures nothing); "
            f"got {expression.groups} in {groups!r}"
        )
    names = [_plain(path.relative_to(folder).as_posix()) for path, folder in files]
    matches = [expression.search(name) for name in names]
    found = ["" if match is None else match[expression.groups] or "" for match in matches]
    without = [str(path) for (path, _), group in zip(files, found, strict=True) if not group]
    if without:
        raise ValueError(
            f"{_NAME} must match in the name of every image, got {groups!r}, which finds no group for "
            f"{_some(without, len(files))}"
        )
    return found


def _by_table(groups: str, root: Path, files: Sequence[tuple[Path, Path]]) -> list[str]:
    table = next((path for path in (root / groups, Path(groups).expanduser()) if path.is_file()), None)
    if table is None:
        raise ValueError(f"{_NAME} must be a table in {root}, or the path of one; got {groups}, which is not there")
    rows = _read(table)
    paths = [_plain(path.relative_to(root).as_posix()) for path, _ in files]
    names = Counter(path.rpartition("/")[2] for path in paths)
    groups_of: dict[str, str] = {}
    for path in paths:
        name = path.rpartition("/")[2]
        if path in rows and rows.get(name, rows[path]) != rows[path]:
            raise ValueError(f"{table} must name one group for {path}, got {rows[path]}, and {rows[name]} for {name}")
        if path in rows:
            groups_of[path] = rows[path]
        elif name in rows and names[name] > 1:
            raise ValueError(f"{table} must name {name} by its folder too, as in {path}: {names[name]} images have it")
        elif name in rows:
            groups_of[path] = rows[name]
    without = [path for path in paths if path not in groups_of]
    if without:
        raise ValueError(
            f"{table} must have a row for every image of {root}, got none for {_some(without, len(paths))}"
        )
    known = {*paths, *names}
    others = [file for file in rows if file not in known]
    if others:
        logging.getLogger("torchcaps").warning(
            "%s has rows for %s that %s does not hold", table, _some(others, len(rows)), root
        )
    return [groups_of[path] for path in paths]


def _read(table: Path) -> dict[str, str]:
    """The group of each file that a table names."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            file.seek(0)
            marks = [mark for mark in ",;\t" if mark in head]
            reader = csv.reader(file, delimiter=marks[0] if marks else ",", strict=True)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{table} cannot be read as a table: {error}") from error
    columns = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    if any(columns.count(name) != 1 for name in _COLUMNS):
        raise ValueError(f"{table} must begin with the names of its columns, file and group, got {', '.join(columns)}")
    where = [columns.index(name) for name in _COLUMNS]
    found: dict[str, str] = {}
    for line, row in rows[1:]:
        cells = [row[k].strip() for k in where] if len(row) == len(columns) else []
        if not all(cells) or not cells:
            raise ValueError(
                f"{table}, line {line}, must have {len(columns)} cells, with a file and a group; got {row}"
            )
        file, group = _plain(cells[0].replace("\\", "/").removeprefix("./")), _plain(cells[1])
        if found.setdefault(file, group) != group:
            raise ValueError(f"{table} must name one group for {file}, got {found[file]} and {group}")
    return found


def _plain(name: str) -> str:
    """Accents as one character, as a Mac's file names do not have them."""
    return unicodedata.normalize("NFC", name)


def _some(names: Sequence[str], of: int) -> str:
    return f"{len(names)} of {of}, such as {names[0]}"


def check_apart(groups: Sequence[str], splits: Sequence[str]) -> None:
    """See that folders of splits that were given hold no group twice.

    Raises:
        ValueError: one is in two of them.
    """
    homes: dict[str, str] = {}
    for group, split in zip(groups, splits, strict=True):
        if homes.setdefault(group, split) != split:
            raise ValueError(
                f"{_NAME} must have each group in one split, got {group} in {homes[group]} and {split}: move its images"
            )


__all__ = ["check_apart", "find_groups"]
