"""Batches: fixed splits, no repetition, and a place to go on from."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch

from torchcaps.data import Images, load
from torchcaps.data.augment import (
    random_affine,
    random_brightness,
    random_contrast,
    random_gamma,
    random_shading,
    random_shift,
)
from torchcaps.data.images import fixed_order
from torchcaps.training import Data
from torchcaps.training.batches import Batches, image_shape, split
from torchcaps.training.examples import mixed_seed
from torchcaps.training.recipes import recipe


def batches(train: bool = True, n: int = 100, **data: object) -> Batches:
    return Batches(Data(**data), load("digits").train.take(slice(n)), 16, seed=5, train=train)  # type: ignore[arg-type]


def test_an_epoch_shows_each_image_once() -> None:
    made = batches(shift=0)
    images = torch.cat([batch.images for batch in made])
    assert len(images) == 96 and len(made) == 6 and len(images.flatten(1).unique(dim=0)) == 96


def test_epochs_differ_and_seeds_differ_and_repeat() -> None:
    made = batches()
    first = next(iter(made))
    assert torch.equal(first.images, next(iter(batches())).images)
    made.epoch = 1
    assert not torch.equal(first.labels, next(iter(made)).labels)


@pytest.mark.parametrize("name", ["digits", "digits-pairs"])
def test_training_batches_are_those_of_the_experiments_seed(name: str) -> None:
    def first(seed: int) -> torch.Tensor:
        config = replace(recipe(name), seed=seed)
        return next(iter(split(config, load("digits"), "train", torch.device("cpu")))).images

    assert torch.equal(first(0), first(0)) and not torch.equal(first(0), first(1))


def test_validation_is_in_order_complete_and_not_augmented() -> None:
    made = batches(train=False)
    assert sum(len(batch.images) for batch in made) == 100 and len(made) == 7
    images = load("digits").train.take(slice(100)).images
    torch.testing.assert_close(torch.cat([batch.images for batch in made]), images.float() / 255)


@pytest.mark.parametrize("pairs", [False, True])
def test_goes_on_where_it_stood(pairs: bool) -> None:
    def fresh() -> Batches:
        made = batches(pairs=pairs, n_pairs=(96, 10))
        made.epoch = 2
        return made

    whole = list(fresh())
    broken = fresh()
    list(islice(iter(broken), 4))
    state = broken.state_dict()
    assert state == {"epoch": 2, "done": 4}
    resumed = batches(pairs=pairs, n_pairs=(96, 10))
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert len(rest) == 2
    for a, b in zip(rest, whole[4:], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
    assert len(list(resumed)) == 6  # the next epoch is whole again


def test_an_epoch_may_show_few_images_often() -> None:
    made = batches(n=40, n_shown=96, shift=0)
    assert len(made) == 6
    seen = [torch.cat([batch.images for batch in made]).flatten(1)]
    _, counts = seen[0].unique(dim=0, return_counts=True)
    assert sorted(counts.tolist()) == [2] * 24 + [3] * 16  # all of them twice before any a third time
    made.epoch = 1
    seen.append(torch.cat([batch.images for batch in made]).flatten(1))
    assert not torch.equal(*seen)
    assert len(batches(n=40, n_shown=20)) == 1 and len(batches(train=False, n=40, n_shown=96)) == 3
    # It changes nothing for those who do not ask for it.
    plain, all_of_them = (list(batches(n=40, n_shown=n)) for n in (None, 40))
    assert all(torch.equal(a.images, b.images) for a, b in zip(plain, all_of_them, strict=True))


@pytest.mark.parametrize("transformed", [False, True])
def test_every_batch_is_shifted_its_own_way(transformed: bool) -> None:
    one = load("digits").train.take(torch.zeros(32, dtype=torch.int64))
    made = Batches(Data(shift=4, transformed=transformed), one, 16, seed=0, train=True)
    first, second = (batch.images for batch in made)
    assert not torch.equal(first, second)
    made.epoch = 1
    assert not any(torch.equal(batch.images, other) for batch in made for other in (first, second))


def test_changes_are_made_in_one_order() -> None:
    """Recorded results rest on it: the power of a shaded image is not the shaded power."""
    changes = {"degrees": 20.0, "scale": 0.1, "gamma": 0.5, "shading": 0.5, "brightness": 0.2, "contrast": (0.5, 1.5)}
    images = next(iter(batches(shift=0))).images
    found = next(iter(batches(shift=2, **changes)))
    generator = torch.Generator().manual_seed(mixed_seed(5, 0, 1))
    images = random_affine(images, generator, degrees=20.0, scale=0.1, shear=0.0)
    images = random_shift(images, 2, generator)
    torch.testing.assert_close(found.parts[:, 0], images)
    for change, most in ((random_gamma, 0.5), (random_shading, 0.5), (random_brightness, 0.2)):
        images = change(images, most, generator)
    torch.testing.assert_close(found.images, random_contrast(images, (0.5, 1.5), generator))


def test_few_images_are_drawn_from_all() -> None:
    data = load("digits")
    config = replace(recipe("digits"), data=Data("digits", n_eval=100))
    for seed, name in ((0, "val"), (0, "test"), (1, "test")):
        found = split(replace(config, seed=seed), data, name, torch.device("cpu")).source
        order = fixed_order(len(data.splits[name]), 0)[:100].tolist()
        assert torch.equal(found.images, data.splits[name].images[sorted(order)])
    assert len(split(replace(config, data=Data("digits", n_eval=999)), data, "test", torch.device("cpu")).source) == 360


def test_pairs_are_blended_as_asked() -> None:
    added, larger = (next(iter(batches(pairs=True, n_pairs=(32, 10), blend=blend))) for blend in ("sum", "max"))
    assert torch.equal(added.parts, larger.parts) and not torch.equal(added.images, larger.images)
    assert torch.equal(larger.images, larger.parts.amax(dim=1))


def test_flipped_images_are_to_be_reconstructed_as_they_are_seen() -> None:
    plain, flipped = (next(iter(batches(shift=0, flip=flip))) for flip in (False, True))
    assert torch.equal(flipped.images, flipped.parts[:, 0]) and torch.equal(flipped.labels, plain.labels)
    same, mirrored = (
        (flipped.images == images).flatten(1).all(dim=1) for images in (plain.images, plain.images.flip(3))
    )
    assert bool((same ^ mirrored).all()) and 0 < mirrored.sum() < 16


def test_of_flipped_stereo_pairs_the_eyes_change_places() -> None:
    data = load("digits")
    eyes = {name: replace(each, images=each.images.repeat(1, 2, 1, 1)) for name, each in data.splits.items()}
    for each in eyes.values():
        each.images[:, 1] = 0  # the right eye is closed
    config = replace(recipe("digits"), data=Data("digits", shift=0, flip=True))
    left = dict[tuple[int, int] | None, torch.Tensor]()
    for mirrored in (None, (1, 0)):
        stereo = replace(data, **eyes, mirrored=mirrored)
        batch = next(iter(split(config, stereo, "train", torch.device("cpu"))))
        left[mirrored] = batch.images[:, 0].flatten(1).any(dim=1)
    assert bool(left[None].all()) and 0 < left[1, 0].sum() < len(left[1, 0])


def test_pairs_never_repeat_and_validation_pairs_are_fixed() -> None:
    made = batches(pairs=True, n_pairs=(32, 10))
    one = torch.cat([batch.images for batch in made])
    made.epoch = 1
    two = torch.cat([batch.images for batch in made])
    assert len(torch.cat((one, two)).flatten(1).unique(dim=0)) == 64
    config = replace(recipe("digits-pairs"), data=Data("digits", pairs=True, n_pairs=(100, 20)))
    data = load("digits")
    for name in ("val", "test"):
        parts = [split(replace(config, seed=seed), data, name, torch.device("cpu")) for seed in (0, 1)]
        assert torch.equal(next(iter(parts[0])).images, next(iter(parts[1])).images)
    assert image_shape(config, data) == (1, 36, 36)


def test_splits_share_no_image() -> None:
    data = load("digits")
    config = replace(recipe("digits"), data=Data("digits", shift=0), batch_size=1)
    made = [split(config, data, name, torch.device("cpu")) for name in ("train", "val", "test")]
    seen = [{batch.images.numpy().tobytes() for batch in part} for part in made]
    assert [len(s) for s in seen] == [1257, 180, 360] and len(set.union(*seen)) == 1797


def test_batch_larger_than_the_data() -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 10 training examples, got 16"):
        batches(n=10)


def test_training_images_are_turned_scaled_and_sheared() -> None:
    plain = next(iter(batches(shift=0)))
    found = next(iter(batches(shift=0, degrees=20.0, scale=0.1, shear=0.3)))
    generator = torch.Generator().manual_seed(mixed_seed(5, 0, 1))
    wanted = random_affine(plain.images, generator, degrees=20.0, scale=0.1, shear=0.3)
    torch.testing.assert_close(found.images, wanted)
    assert torch.equal(found.images, found.parts[:, 0])  # which is what it has to paint


def test_that_pairs_of_two_classes_cannot_be_misread_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config = recipe("digits-pairs")
    whole = load("digits")
    parts = {name: images.take(images.labels < 2) for name, images in whole.splits.items()}
    two = replace(whole, classes=("0", "1"), **parts)
    split(config, whole, "train", torch.device("cpu"))
    assert not caplog.messages
    split(config, two, "train", torch.device("cpu"))
    assert "both classes, 0 and 1, are in every pair: none can be misclassified" in caplog.text


def test_transformed_images_are_filled_as_the_data_say() -> None:
    grey = Images(torch.full((20, 1, 12, 12), 100, dtype=torch.uint8), torch.arange(20) % 2)
    for fill, least in (("zeros", 0.0), ("border", 100 / 255)):
        made = Batches(Data(transformed=True, shift=3, fill=fill), grey, 10, seed=0, train=True)  # type: ignore[arg-type]
        assert min(float(batch.parts.min()) for batch in made) == pytest.approx(least, abs=1e-6)
