"""Which images train, validate and test: drawn class by class, with what belongs together in one split.

Whose image it is: groups of images by their file names, or by a table.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchcaps.data.tables import find_table, match_files, plain, read_column, some

SPLITS = ("train", "val", "test")
#: Shares of the images that are kept for validation and for test, where nothing says which.
VALIDATION, TEST = 0.1, 0.2
#: What the folders of splits, and splits in tables, are called.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
#: Units that a class must have before a split gets one of them.
_LEAST = {"test": 2, "val": 3}


@dataclass(eq=False)
class _Unit:
    """Hold images that stay together: those of a group, and copies of each other."""

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
    """Make the units, in the order of their draws."""
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
    """Return whether each of its classes keeps another unit to train on."""
    return all(spare[label] > 1 for label in unit.counts)


def _put(unit: _Unit, split: str, spare: Counter[str]) -> None:
    unit.split = split
    spare.subtract(unit.counts.keys())


_NAME = "data.options.groups"


def find_groups(groups: str, root: Path, files: Sequence[tuple[Path, Path]]) -> list[str]:
    """Find the name of each image's group.

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
    pairs = isinstance(files, Sequence) and all(isinstance(each, tuple) and len(each) == 2 for each in files)
    if not pairs or not all(isinstance(path, Path) and path.is_relative_to(of) for path, of in files):
        raise ValueError(f"files must be, for each image, its path and the folder of its class, got {files!r:.80}")
    if groups.lower().endswith(".csv"):
        table = find_table(_NAME, groups, root)
        found = match_files(table, root, [path for path, _ in files], read_column(table, "group"), "group")
    else:
        found = _by_name(groups, files)
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
    names = [plain(path.relative_to(folder).as_posix()) for path, folder in files]
    matches = [expression.search(name) for name in names]
    found = ["" if match is None else match[expression.groups] or "" for match in matches]
    without = [str(path) for (path, _), group in zip(files, found, strict=True) if not group]
    if without:
        raise ValueError(
            f"{_NAME} must match in the name of every image, got {groups!r}, which finds no group for "
            f"{some(without, len(files))}"
        )
    return found


def find_splits(table: str, root: Path, files: Sequence[Path]) -> list[str]:
    """Find the split of each image in a table with the columns ``file`` and ``split``.

    Args:
        table: its path, as :func:`find_groups` takes it.
        root: the folder of the images.
        files: the images.

    Raises:
        ValueError: as :func:`find_groups` of a table; a split of another name than train, val and test.
    """
    if not isinstance(table, str) or not table.lower().endswith(".csv"):
        raise ValueError(f"data.options.split must be a .csv file, got {table!r}")
    place = find_table("data.options.split", table, root)
    return named_splits(place, match_files(place, root, files, read_column(place, "split"), "split"))


def named_splits(table: Path, names: Sequence[str]) -> list[str]:
    """Return the splits that a table calls by these names.

    Raises:
        ValueError: another name than those of train, val and test.
    """
    for name in names:
        if name.lower() not in SPLIT_NAMES:
            raise ValueError(f"{table} must have a split of train, val or test for each file, got {name!r}")
    return [SPLIT_NAMES[name.lower()] for name in names]


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


__all__ = [
    "SPLITS",
    "SPLIT_NAMES",
    "TEST",
    "VALIDATION",
    "check_apart",
    "find_groups",
    "find_splits",
    "named_splits",
    "stratify",
]
