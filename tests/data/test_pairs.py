"""Overlapping pairs."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch

from torchcaps.data import Images, Pairs, load


def source(n: int = 40, n_classes: int = 4) -> Images:
    """Every image is one brightness all over, its number."""
    values = torch.arange(1, n + 1, dtype=torch.uint8)
    return Images(values.view(n, 1, 1, 1).expand(n, 1, 5, 3).contiguous(), torch.arange(n) % n_classes)


def test_classes_differ_and_parts_are_the_labelled_images() -> None:
    pairs = Pairs(source())
    batch = pairs.batch(0, 500)
    assert pairs.image_shape == (1, 13, 11) and batch.images.shape == (500, 1, 13, 11)
    assert bool((batch.labels[:, 0] != batch.labels[:, 1]).all())
    numbers = (batch.parts.amax(dim=(2, 3, 4)) * 255).round().long() - 1
    assert torch.equal(numbers % 4, batch.labels)
    assert torch.equal((batch.parts > 0).sum(dim=(2, 3, 4)), torch.full((500, 2), 15))


def test_every_other_image_is_drawn() -> None:
    """The second image is drawn evenly from all that are not of the first one's class."""
    batch = Pairs(source(8, 2)).batch(0, 4000)
    numbers = (batch.parts.amax(dim=(2, 3, 4)) * 255).round().long() - 1
    counts = torch.zeros(8, 8).index_put((numbers[:, 0], numbers[:, 1]), torch.ones(4000), accumulate=True)
    possible = torch.arange(8)[:, None] % 2 != torch.arange(8) % 2
    assert bool((counts[possible] > 80).all()) and bool((counts[possible] < 180).all())  # 125 on average
    assert not counts[~possible].any()


def test_shifts_cover_the_canvas() -> None:
    batch = Pairs(source(), most=4).batch(0, 1000)
    first = batch.parts[:, 0, 0] > 0
    rows, columns = first.any(dim=2).float().argmax(dim=1), first.any(dim=1).float().argmax(dim=1)
    assert set(rows.tolist()) == set(columns.tolist()) == set(range(9))
    second = batch.parts[:, 1, 0] > 0  # is shifted by itself
    apart = rows - second.any(dim=2).float().argmax(dim=1), columns - second.any(dim=1).float().argmax(dim=1)
    assert set(apart[0].tolist()) == set(apart[1].tolist()) == set(range(-8, 9))


def test_blends() -> None:
    bright = Images(torch.full((2, 1, 3, 3), 200, dtype=torch.uint8), torch.tensor([0, 1]))
    summed, largest = (Pairs(bright, most=0, blend=blend).batch(0, 4).images for blend in ("sum", "max"))
    assert bool((summed == 1).all())  # 400 is clipped at 255
    torch.testing.assert_close(largest, torch.full((4, 1, 3, 3), 200 / 255))


def test_pair_k_depends_on_seed_and_k_alone() -> None:
    pairs = Pairs(source(), seed=3)
    whole, part = pairs.batch(0, 50), pairs.batch(17, 5)
    assert torch.equal(whole.images[17:22], part.images) and torch.equal(whole.labels[17:22], part.labels)
    assert torch.equal(Pairs(source(), seed=3).batch(0, 50).images, whole.images)
    assert not torch.equal(Pairs(source(), seed=4).batch(0, 50).labels, whole.labels)
    assert torch.equal(pairs.batch(10**9, 2).labels, pairs.batch(10**9 - 1, 3).labels[1:])  # without end


def test_pairs_of_real_digits_overlap() -> None:
    batch = Pairs(load("digits").test).batch(0, 64)
    assert batch.images.shape == (64, 1, 36, 36) and batch.images.max() <= 1
    both = ((batch.parts[:, 0] > 0.2) & (batch.parts[:, 1] > 0.2)).flatten(1).any(dim=1)
    assert both.float().mean() > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blend": "mean"}, "blend must be one of sum, max; got 'mean'"),
        ({"most": -1}, "most must be an integer of at least 0, got -1"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": 0.5}, "seed must be an integer of at least 0, got 0.5"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pairs(source(), **options)


def test_pairs_have_numbers_from_0() -> None:
    for first, n, name in ((-1, 2, "first"), (0, -2, "n")):
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least 0, got -"):
            Pairs(source()).batch(first, n)


def test_one_class_makes_no_pairs() -> None:
    with pytest.raises(ValueError, match="source must have images of at least two classes"):
        Pairs(source(4, 1))


def test_two_images_of_the_same_class_are_two_images():
    labels = torch.tensor([0, 1, 0, 2, 1, 2, 2])
    images = torch.arange(7, dtype=torch.uint8)[:, None, None, None].expand(7, 1, 2, 2) * 30 + 30
    pairs = Pairs(Images(images.contiguous(), labels), seed=3, most=0, same=True)
    batch = pairs.batch(0, 400)
    which = (batch.parts[:, :, 0, 0, 0] * 255 / 30 - 1).round().long()
    assert (which[:, 0] != which[:, 1]).all()
    assert torch.equal(labels[which], batch.labels) and torch.equal(batch.labels[:, 0], batch.labels[:, 1])
    drawn = {(int(a), int(b)) for a, b in which}
    assert drawn == {(a, b) for a in range(7) for b in range(7) if a != b and labels[a] == labels[b]}
    with pytest.raises(ValueError, match="same must be True or False, got 'no'"):
        Pairs(source(), same="no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="source must have images to make pairs of"):
        Pairs(source(0), same=True)
    with pytest.raises(ValueError, match="at least two images of each class to make pairs of the same class"):
        Pairs(Images(images.contiguous()[:4], labels[:4]), same=True)


@pytest.mark.parametrize(
    ("same", "labels", "brightness"),
    [
        (False, [[4, 0], [2, 4], [2, 1], [0, 3]], [5509, 5676, 4874, 5509, 5300, 5420, 5676, 5652]),
        (True, [[4, 4], [2, 2], [2, 2], [0, 0]], [5509, 5388, 4874, 5688, 5300, 5715, 5676, 4609]),
    ],
)
def test_pairs_remain_those_of_recorded_runs(same: bool, labels: list[list[int]], brightness: list[int]) -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randint(5, (50,), generator=generator)
    images = torch.randint(256, (50, 1, 6, 7), generator=generator, dtype=torch.uint8)
    batch = Pairs(Images(images, drawn), seed=7, most=2, same=same).batch(11, 4)
    assert batch.labels.tolist() == labels
    assert (batch.parts.double().sum(dim=(2, 3, 4)) * 255).round().flatten().tolist() == brightness


def test_images_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in a copy, which goes to another process without what it can make again."""
    pairs, wanted = Pairs(source(), seed=3), Pairs(source(), seed=3).batch(5, 20)
    pairs.batch(0, 2)
    size = len(pickle.dumps(Pairs(source(), seed=3)))
    assert len(pickle.dumps(pairs)) == size
    copies = pickle.loads(pickle.dumps(pairs)), copy.deepcopy(pairs)
    assert all(torch.equal(each.batch(5, 20).images, wanted.images) for each in copies)
    assert dataclasses.replace(pairs, source=source(8, 2)).batch(0, 50).labels.max() == 1
    monkeypatch.setattr(torch.Tensor, "argsort", None)
    assert torch.equal(pairs.batch(5, 20).images, wanted.images)
