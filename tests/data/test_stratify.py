"""Every class is shared out alike, what belongs together stays together, and little moves when images come."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict

import pytest

from torchcaps.data.splits import stratify

SHARES = {"test": 0.2, "val": 0.1}


def draw(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def alone(sizes: dict[str, int], shares: dict[str, float] = SHARES) -> dict[str, list[int]]:
    """How many images of each class, all different, come to train, val and test."""
    labels = [label for label, n in sizes.items() for _ in range(n)]
    names = [f"{label}{k}" for k, label in enumerate(labels)]
    splits = stratify(labels, [(name,) for name in names], [draw(name) for name in names], shares)
    counts = Counter(zip(labels, splits, strict=True))
    return {label: [counts[label, split] for split in ("train", "val", "test")] for label in sizes}


def test_every_class_has_its_shares() -> None:
    assert alone({"common": 380, "rare": 25}) == {"common": [266, 38, 76], "rare": [18, 2, 5]}
    wanted = {1: [1, 0, 0], 2: [1, 0, 1], 3: [1, 1, 1], 4: [2, 1, 1], 5: [3, 1, 1], 10: [7, 1, 2], 12: [9, 1, 2]}
    assert {n: alone({"a": n, "b": 100})["a"] for n in wanted} == wanted
    assert alone({"a": 2, "b": 3, "c": 30}, {"val": 0.1}) == {"a": [2, 0, 0], "b": [2, 1, 0], "c": [27, 3, 0]}


def test_the_order_of_the_images_changes_nothing() -> None:
    names = [f"{k}" for k in range(200)]
    labels = {name: "abc"[int(name) % 3] for name in names}
    groups = {name: f"g{int(name) // 7}" for name in names}
    found = []
    for seed in range(3):
        random.Random(seed).shuffle(names)
        splits = stratify([labels[n] for n in names], [(groups[n],) for n in names], [draw(n) for n in names], SHARES)
        found.append(dict(zip(names, splits, strict=True)))
    assert found[0] == found[1] == found[2] and set(found[0].values()) == {"train", "val", "test"}


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_several_classes_stay_whole_and_every_class_is_tested(seed: int) -> None:
    """Patients with 1 to 30 images, of one to three of five classes, the rarest in few of them."""
    rng = random.Random(seed)
    labels, groups = [], []
    for patient in range(60):
        kinds = rng.choices("abcde", weights=(50, 25, 12, 8, 5), k=rng.randint(1, 3))
        for _ in range(rng.randint(1, 30)):
            labels.append(rng.choice(kinds))
            groups.append(f"patient {patient}")
    splits = stratify(labels, [(group,) for group in groups], [draw(group) for group in groups], SHARES)
    homes = defaultdict(set)
    for group, split in zip(groups, splits, strict=True):
        homes[group].add(split)
    assert all(len(home) == 1 for home in homes.values())
    counts, totals = Counter(zip(labels, splits, strict=True)), Counter(labels)
    for label in "abcde":
        assert all(counts[label, split] for split in ("train", "val", "test"))
    for label in "ab":
        assert counts[label, "test"] / totals[label] == pytest.approx(0.2, abs=0.1)


def test_copies_tie_groups_together() -> None:
    """Two groups that share an image, and a third that shares another with the second, are one."""
    groups = [f"g{k}" for k in range(20) for _ in range(3)]
    images = [f"image {k}" for k in range(60)]
    images[3] = images[0]
    images[6] = images[4]
    ties = [(image, group) for image, group in zip(images, groups, strict=True)]
    splits = stratify(["a"] * 60, ties, [draw(group) for group in groups], SHARES)
    assert len(set(splits[:9])) == 1 and Counter(splits)["test"] in (12, 9)


def test_a_group_too_large_for_a_split_is_passed_over() -> None:
    """The least draw has 90 of 100 images: the ten others test and validate, if not as many as they should."""
    groups = ["large"] * 90 + [f"small {k}" for k in range(10)]
    draws = [b"\0" if group == "large" else draw(group) for group in groups]
    splits = stratify(["a"] * 100, [(group,) for group in groups], draws, SHARES)
    assert set(splits[:90]) == {"train"} and Counter(splits[90:]) == {"test": 9, "val": 1}
    halves = [b"\0"] * 50 + [b"\1"] * 50
    assert set(stratify(["a"] * 100, [(each,) for each in halves], halves, SHARES)) == {"train", "test"}


def test_the_last_unit_of_a_class_trains() -> None:
    """The rarest class's three units hold all of the other two classes, and something must be left of each."""
    labels, ties = ["rare", "x", "rare", "y", "rare", "y"], [("1",), ("1",), ("2",), ("2",), ("3",), ("3",)]
    splits = stratify(labels, ties, [bytes([k // 2]) for k in range(6)], SHARES)
    assert splits[:2] == ["train"] * 2 and {"train"} < set(splits[2:])


def test_a_group_that_grows_stays() -> None:
    groups = [f"g{k % 40}" for k in range(200)]
    before = stratify(["a"] * 200, [(group,) for group in groups], [draw(group) for group in groups], SHARES)
    home = dict(zip(groups, before, strict=True))
    groups.append("g7")
    after = stratify(["a"] * 201, [(group,) for group in groups], [draw(group) for group in groups], SHARES)
    assert len(dict(zip(groups, after, strict=True)).items() - home.items()) <= 2
