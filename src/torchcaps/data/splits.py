"""Which images train, validate and test: drawn class by class, with what belongs together in one split.

Whose image it is: groups of images by their file names, or by a table.
"""

from __future__ import annotations

import csv
import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Units that a class must have before a split gets one of them.
_LEAST = {"test": 2, "val": 3}


@dataclass(eq=False)
class _Unit:
    """Images that stay together: those of a group, and copies of each other."""

    members: list[int]
    draw: bytes
    counts: Counter[str]
    split: str | None = None


def stratify(
    labels: Sequence[str], ties: Sequence[Sequence[Hashable]], draws: Sequence[bytes], shares: Mapping[str, float]
) -> list[str]:
    """Assign each image to a split, so that every class is shared out alike.

    Classes come in turn, the rarest first. Of each, units are taken in the order of their draws until a split has its
    share of the class's images, to the nearest unit. A unit with several classes is thus placed for the rarest one. As
    the draws stay what they are, an image that is added changes the shares a little, and moves the units beside their
    ends alone. (scikit-learn's ``StratifiedGroupKFold`` goes by the order of the images, and moves many.)

    Args:
        labels: the class of each image.
        ties: for each image what it has in common with others. Images that share anything become one unit.
        draws: what puts the units in order: random bytes that follow from the image or its group. The least counts.
        shares: of the images that "test" and "val" are to get, or one of them; the rest is "train".

    Returns:
        The split of each image. Of a class of two units one tests, of three or more one at least comes to each split
        (where units have one class); "train" has one of each class.
    """
    units = _units(labels, ties, draws)
    spare = Counter(label for unit in units for label in unit.counts)  # units of each class that may train
    totals = Counter(labels)
    for label in sorted(totals, key=lambda name: (totals[name], name)):
        here = [unit for unit in units if label in unit.counts]
        served = [split for split in shares if len(here) >= _LEAST[split]]
        for k, split in enumerate(served):
            _fill(split, shares[split] * totals[label], label, here, spare, left=len(served) - k)
        for unit in here:
            unit.split = unit.split or "train"
    found = [""] * len(labels)
    for unit in units:
        for k in unit.members:
            found[k] = unit.split or "train"
    return found


def _units(labels: Sequence[str], ties: Sequence[Sequence[Hashable]], draws: Sequence[bytes]) -> list[_Unit]:
    """The units in the order of their draws."""
    roots = list(range(len(labels)))  # of a forest: images lead to the first of their unit

    def root(k: int) -> int:
        while roots[k] != k:
            roots[k] = k = roots[roots[k]]
        return k

    first: dict[Hashable, int] = {}
    for k, names in enumerate(ties):
        for name in names:
            roots[root(k)] = root(first.setdefault(name, k))
    members: dict[int, list[int]] = defaultdict(list)
    for k in range(len(labels)):
        members[root(k)].append(k)
    made = [_Unit(few, min(draws[k] for k in few), Counter(labels[k] for k in few)) for few in members.values()]
    return sorted(made, key=lambda unit: unit.draw)


def _fill(split: str, wanted: float, label: str, here: list[_Unit], spare: Counter[str], left: int) -> None:
    """Put units of one class into a split until it has as many images as wanted, and one unit at least.

    Of the class ``left`` units stay, for the splits to come and to train on.
    """
    got = sum(unit.counts[label] for unit in here if unit.split == split)
    free = [unit for unit in here if unit.split is None]
    for unit in free:
        if unit.counts[label] / 2 < wanted - got and spare[label] > left and _is_spare(unit, spare):
            _put(unit, split, spare)
            got += unit.counts[label]
    if not got:
        able = (unit for unit in free if _is_spare(unit, spare))
        smallest = min(able, key=lambda unit: unit.counts[label], default=None)
        if smallest is not None:
            _put(smallest, split, spare)


def _is_spare(unit: _Unit, spare: Counter[str]) -> bool:
    """Whether each of its classes keeps another unit to train on."""
    return all(spare[label] > 1 for label in unit.counts)


def _put(unit: _Unit, split: str, spare: Counter[str]) -> None:
    unit.split = split
    spare.subtract(unit.counts.keys())


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
