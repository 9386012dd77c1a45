"""Which images train, validate and test: drawn class by class, with what belongs together in one split."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

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
