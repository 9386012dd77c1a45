"""Which toys and viewpoints of small NORB are trained, validated and tested on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchcaps.checks import check_at_least, check_choice
from torchcaps.data.images import Images, fixed_order

#: The toys (instances) of each category in the two official halves.
TOYS = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}

#: Toys of the test half that test where the others train: three splits, every toy at least once.
FOLDS = ((0, 1), (2, 3), (0, 5))

#: What is trained on of each viewpoint: azimuths in units of 10 degrees (300, 320, 340, 0, 20, 40
#: degrees; the others are 60 … 280), and the lowest of the nine elevations.
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}

SPLITS = ("official", *FAMILIAR)

#: Of the order of the training images, which in the files is that of toys and viewpoints.
SPLIT_SEED = 0


@dataclass(frozen=True)
class Plan:
    """A split, before any image is read.

    Attributes:
        view: "azimuth" or "elevation", of which :data:`FAMILIAR` alone is trained on; None for all.
        halves: the official halves that train and that test.
        train: toys of each category that are trained on.
        val: the toy of each category that validates.
        test: toys of each category that are tested on.
    """

    view: str | None
    halves: tuple[str, str]
    train: tuple[int, ...]
    val: int
    test: tuple[int, ...]

    @property
    def held_out(self) -> bool:
        """Whether the toy that validates is kept from training."""
        return self.val not in self.train

    @property
    def note(self) -> str:
        """The split in words."""
        view = self.view or "official"
        where = " within the test half" if self.halves[0] == self.halves[1] else ""
        seen = "" if self.held_out else ", which is trained on too"
        return (
            f"{view} split{where}: toys {', '.join(map(str, self.train))} of each category train, "
            f"{self.val} validates{seen}, {', '.join(map(str, self.test))} test"
        )


def plan(split: str, val_toy: int | str | None, fold: int | None, *, posed: bool) -> Plan:
    """Choose the toys.

    Args:
        split: one of :data:`SPLITS`.
        val_toy: the toy that validates and is not trained on; "first" of the toys at hand; None to train
            on all of them, where the first validates though it was trained on.
        fold: a split by viewpoint within the test half, one of :data:`FOLDS`; None for the official
            halves, whose training half must have viewpoints then.
        posed: whether it has.

    Raises:
        ValueError: an argument that is none of these, a fold of the official split, or no viewpoints without one.
    """
    check_choice("split", split, SPLITS)
    if fold is not None:
        check_at_least("fold", fold, 0)
        check_choice("fold", fold, range(len(FOLDS)))
        if split == "official":
            raise ValueError(f"fold must be None for the official split, got {fold}")
    if split != "official" and not posed and fold is None:
        raise ValueError(
            "fold must be 0, 1 or 2 for a split by viewpoint where the training half has no viewpoints, as in .npz "
            "files; got None"
        )
    halves = ("train", "test") if fold is None else ("test", "test")
    test = TOYS["test"] if fold is None else FOLDS[fold]
    toys = tuple(toy for toy in TOYS[halves[0]] if halves[0] == "train" or toy not in test)
    check_choice("val_toy", val_toy, (*toys, "first", None))
    val = toys[0] if val_toy in ("first", None) else int(val_toy)
    train = toys if val_toy is None else tuple(toy for toy in toys if toy != val)
    return Plan(None if split == "official" else split, halves, train, val, test)


def divide(plan: Plan, halves: dict[str, Images]) -> dict[str, Images]:
    """The images of each split.

    Args:
        plan: as :func:`plan` made it.
        halves: the official halves that the plan names, with the factors ``instance`` and, for a
            split by viewpoint, that one.

    Returns:
        train in a fixed random order; val; test, of familiar viewpoints where there is a choice; and
        with a choice novel, the tested toys from the other viewpoints.
    """

    def part(half: str, toys: tuple[int, ...], familiar: bool = True) -> Images:
        images = halves[half]
        chosen = torch.isin(images.factors["instance"], torch.tensor(toys))
        if plan.view is not None:
            chosen &= torch.isin(images.factors[plan.view], torch.tensor(FAMILIAR[plan.view])) == familiar
        return images.take(chosen)

    trains, tests = plan.halves
    train = part(trains, plan.train)
    made = {
        "train": train.take(fixed_order(len(train), SPLIT_SEED)),
        "val": part(trains, (plan.val,)),
        "test": part(tests, plan.test),
    }
    return made if plan.view is None else made | {"novel": part(tests, plan.test, familiar=False)}
