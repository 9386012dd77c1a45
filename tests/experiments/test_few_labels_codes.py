"""Codes of few labels: where an image lies must not show in them; and networks that see the labelled ones alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torchcaps.data import Images
from torchcaps.data.augment import random_shift
from torchcaps.experiments.few_labels import compare, supervised
from torchcaps.experiments.few_labels.codes import Codes, model_codes, pixel_codes
from torchcaps.experiments.few_labels.finished import Finished
from torchcaps.experiments.few_labels.readouts import factor_mixture, nearest_labelled, softening
from torchcaps.experiments.few_labels.supervised import NETWORKS, classes_of, train_on_few
from torchcaps.experiments.few_labels.write import best
from torchcaps.models import TransformingAutoencoder
from torchcaps.ops import Routed

SIZE = 24


class Centroids(TransformingAutoencoder):
    """Capsules that know where they are: forty for each channel, whose point is the centre of its brightness."""

    def __init__(self) -> None:
        super().__init__((3, SIZE, SIZE), n_capsules=120, n_recognition=1, n_generation=1, pose="translation")

    def recognise(self, x: Tensor) -> Routed:
        along = torch.arange(SIZE) - (SIZE - 1) / 2
        mass = x / x.sum(dim=(2, 3), keepdim=True)
        points = ((mass.sum(dim=axis) * along).sum(dim=-1) for axis in (2, 3))
        return Routed(torch.stack(tuple(points), dim=-1).repeat(1, 40, 1), torch.ones(len(x), 120))


def spots(points: Tensor) -> Tensor:
    """One soft spot in each channel, ``[N, 3, 2]`` → uint8 ``[N, 3, SIZE, SIZE]``."""
    along = torch.arange(SIZE) - (SIZE - 1) / 2
    x, y = (
        along[None, None, None, :] - points[..., 0, None, None],
        along[None, None, :, None] - points[..., 1, None, None],
    )
    return (255 * torch.exp(-(x**2 + y**2) / 4)).round().to(torch.uint8)


def apart(code: Tensor, n: int) -> float:
    """Distance of the means of the first n and the others, over the spread within both."""
    one, two = code[:n], code[n:]
    within = torch.cat((one - one.mean(dim=0), two - two.mean(dim=0))).square().sum(dim=1).mean().sqrt()
    return ((one.mean(dim=0) - two.mean(dim=0)).norm() / within).item()


def test_codes_are_those_of_the_frame() -> None:
    """Two constellations that differ by four pixels in one spot, each shifted about by whole pixels."""
    one = torch.tensor([[-4.0, -3.0], [3.0, -2.0], [0.0, 4.0]])
    two = one + torch.tensor([[0.0, 0.0], [0.0, 0.0], [4.0, 0.0]])
    shifts = torch.randint(-3, 4, (40, 1, 2)).float()
    images = spots(torch.cat((one + shifts[:20], two + shifts[20:])))
    as_they_are, poses, again, pixels = model_codes("it", Centroids(), (images, images[:5], images[:6]))
    assert [code.name for code in (as_they_are, poses, again, pixels)] == [
        "poses of it, as they are", "poses of it", "poses of it, found again", "pixels in the frame of it",
    ]  # fmt: skip
    assert [len(part) for part in poses[1:]] == [40, 5, 6]
    assert apart(as_they_are.train, 20) < 2 < 10 < min(apart(code.train, 20) for code in (poses, again, pixels))


def test_what_is_tested_on_shapes_no_code() -> None:
    images = spots(4 * torch.randn(60, 3, 2))
    for make in (pixel_codes, lambda splits: model_codes("it", Centroids(), splits)):
        one, two = make((images, images[:9], images[:20])), make((images, images[:9], images[40:].flip(2)))
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close((a.train, a.val), (b.train, b.val), rtol=0, atol=0)


def test_a_classifier_has_no_codes() -> None:
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="it must be the run of an auto-encoder, got one of a Linear"):
        model_codes("it", nn.Linear(1, 1), (images,) * 3)


def test_softened_points_belong_to_about_three_of_many() -> None:
    joint = 500 * torch.randn(200, 30)
    share = (joint / softening(joint)).softmax(dim=1)
    assert torch.special.entr(share).sum(dim=1).mean().exp() == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_learn_the_labelled_images(name: str) -> None:
    images = torch.zeros(6, 1, 28, 28, dtype=torch.uint8)
    for k in range(3):
        images[k::3, :, 8 * k + 2 : 8 * k + 8, 4:24] = 255
    labels = torch.arange(6) % 3
    one, two = (train_on_few(name, Images(images, labels), 3, steps=30, seed=4) for _ in range(2))
    assert torch.equal(classes_of(one, images), labels)
    for mine, other in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_networks_are_trained_for_fifteen_epochs_at_least_on_images_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []

    def spied(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
        shown.append(len(images))
        assert most == 2
        return random_shift(images, most, generator)

    monkeypatch.setattr(supervised, "random_shift", spied)
    labelled = Images(torch.zeros(120, 1, 28, 28, dtype=torch.uint8), torch.arange(120) % 3)
    monkeypatch.setitem(NETWORKS, "tiny", ("matched_cnn", {"n_parameters": 1000}, "cross_entropy"))
    train_on_few("tiny", labelled, 3, steps=1, seed=0)
    assert shown == [50] * (15 * 120 // 50)


def test_every_network_is_trained_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(compare, "train_on_few", lambda name, *_, **__: asked.append(name))
    monkeypatch.setattr(compare, "classes_of", lambda _, images: torch.zeros(len(images)))
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    for code, name, make in compare._methods([], Images(images, torch.arange(3)), (images,) * 3, 3, 1):
        make()([(torch.tensor([0]), torch.tensor([0]))])
        assert code == "none: labelled images alone" and asked[-1] == name
    assert asked == list(NETWORKS)


def test_the_times_of_what_was_done_before_count(tmp_path: Path) -> None:
    first = Finished(tmp_path / "kept.json", "of")
    first.add({"code": "a", "readout": "b"}, 1.5)
    first.add({"code": "c", "readout": "b"}, 2.0)
    assert first.seconds == Finished(tmp_path / "kept.json", "of").seconds == 3.5


def test_the_three_nearest_outvote_one_where_labels_abound() -> None:
    """Of twenty labels of two classes: the nearest is of class 0, the next two are of class 1."""
    train = torch.tensor([0.0, *[-5.0] * 9, 0.1, 0.2, *[5.0] * 8]).unsqueeze(1)
    labels = (torch.arange(20) >= 10).long()
    asked = torch.tensor([[0.04]])
    read = nearest_labelled(Codes("a line", train, asked, asked), 2)
    assert [part.tolist() for part in read([(torch.arange(20), labels)])[0]] == [[1], [1]]
    few = torch.tensor([0, 1, 10, 11])  # two of each class: the nearest alone
    assert [part.tolist() for part in read([(few, labels[few])])[0]] == [[0], [0]]


def test_a_mixture_names_far_clusters_by_one_label_each() -> None:
    centres = 30 * torch.eye(3, 5)
    labels = torch.arange(120) % 3
    codes = centres[labels] + torch.randn(120, 5)
    read = factor_mixture(Codes("far", codes, codes[:60], codes[60:]), 3, n_components=6, n_factors=2)
    ((val, test),) = read([(torch.tensor([0, 1, 2]), labels[:3])])
    assert torch.equal(val, labels[:60]) and torch.equal(test, labels[60:])


def test_what_one_would_choose_is_chosen_on_validation_images() -> None:
    rows = [{"code": k, "errors": {"25": {"val_error": v, "test_error": 1 - v}}} for k, v in (("a", 0.3), ("b", 0.1))]
    assert best(rows, "25")["code"] == "b"
