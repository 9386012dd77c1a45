"""Digits at random places of a larger canvas, and the splits that come with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from study.data import expanded_mnist
from torchcaps.data import Dataset, Images, load
from torchcaps.training import Data, Experiment
from torchcaps.training.batches import split


@pytest.fixture
def expanded(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Made of the bundled digits, which lie on their canvas as MNIST's do."""

    def affine(test: Images) -> Images:
        return Images(torch.zeros(2 * len(test), 1, 40, 40, dtype=torch.uint8), test.labels.repeat(2))

    monkeypatch.setattr(expanded_mnist, "load_mnist", lambda _: load("digits"))
    monkeypatch.setattr(expanded_mnist, "affine_mnist", affine)
    return load("expanded-mnist")


def test_splits(expanded: Dataset) -> None:
    assert expanded.image_shape == (1, 40, 40)
    assert {name: len(part) for name, part in expanded.splits.items()} == {
        "train": 1257,
        "val": 180,
        "test": 360,
        "affine_mnist": 720,
    }
    assert "affine-MNIST too, sha256 1cf06d84" in expanded.note and "affNIST" not in expanded.note
    with pytest.raises(ValueError, match=r"data.image_size must be None for expanded-mnist, which is 40×40; got \(28"):
        load("expanded-mnist", image_size=(28, 28))
    with pytest.raises(ValueError, match="data.options.affnist must be True or False, got 'no'"):
        load("expanded-mnist", affnist="no")


def places(images: torch.Tensor) -> torch.Tensor:
    """How far each digit ``[N, 1, 40, 40]`` of the bundled ones was moved, ``[N, 2]``."""
    inked = images[:, 0] > 0
    first = torch.stack([inked.any(dim=axis).int().argmax(dim=1) for axis in (2, 1)], dim=1)
    last = torch.stack([39 - inked.any(dim=axis).flip(1).int().argmax(dim=1) for axis in (2, 1)], dim=1)
    return (first + last) / 2 - 19.5


def test_digits_to_choose_on_have_their_places_for_good(expanded: Dataset) -> None:
    digits, drawn = load("digits"), {}
    for name in ("val", "test"):
        part, middle = expanded.splits[name], torch.nn.functional.pad(digits.splits[name].images, (6,) * 4)
        assert torch.equal(part.labels, digits.splits[name].labels)
        assert torch.equal(part.images.sum(dim=(1, 2, 3)), middle.sum(dim=(1, 2, 3)))  # all of the ink
        drawn[name] = moved = places(part.images) - places(middle)
        assert set(moved.flatten().tolist()) == set(range(-6, 7))
        assert torch.equal(part.images, load("expanded-mnist").splits[name].images)
    assert not torch.equal(drawn["val"], drawn["test"][:180])


def test_training_digits_are_moved_anew_in_every_epoch(expanded: Dataset) -> None:
    config = Experiment(data=Data("expanded-mnist", shift=6), batch_size=200)
    made = split(config, expanded, "train", torch.device("cpu"))
    ink, seen = expanded.train.images.float().sum(dim=(1, 2, 3)) / 255, []
    for made.epoch in (0, 1):
        batch = next(iter(made))
        seen.append(places(batch.images))
        lost = batch.images.sum(dim=(1, 2, 3)).sort().values[:, None] - ink
        assert lost.abs().min(dim=1).values.max() < 1e-3  # nothing is pushed off the canvas
    assert seen[0].min() < -5 and seen[0].max() > 5 and not torch.equal(*seen)
    assert not torch.equal(
        batch.images, next(iter(split(replace(config, seed=1), expanded, "train", batch.images.device))).images
    )


def test_folders_of_the_two_data_sets(expanded: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path | None] = []
    monkeypatch.setattr(expanded_mnist, "load_mnist", lambda root: asked.append(root) or load("digits"))
    monkeypatch.setattr(expanded_mnist, "load_affnist", lambda root: asked.append(root) or expanded.test)
    load("expanded-mnist", tmp_path, affnist=True)
    (tmp_path / "mnist").mkdir()
    load("expanded-mnist", tmp_path, affnist=True)
    load("expanded-mnist", affnist=True)
    assert asked == [tmp_path, tmp_path, tmp_path / "mnist", tmp_path, None, None]


def test_affnist_is_there_when_asked_for(expanded: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(expanded_mnist, "load_affnist", lambda root: expanded.test if root == tmp_path else None)
    assert list(load("expanded-mnist", tmp_path, affnist=True).further) == ["affine_mnist", "affnist"]
