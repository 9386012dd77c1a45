"""Codes of few labels: where an image lies must not show in them; and networks that see the labelled ones alone."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from study.analysis.factor_mixture import fit_factor_mixture
from study.few_labels import compare, readouts, supervised
from study.few_labels.codes import Codes, model_codes, pixel_codes
from study.few_labels.draws import draw_labelled
from study.few_labels.finished import Finished
from study.few_labels.readouts import factor_mixture, nearest_labelled, neighbour_graph, softening
from study.few_labels.supervised import NETWORKS, classes_of, train_on_few
from study.few_labels.write import best
from torchcaps.data import Dataset, Images
from torchcaps.data.augment import random_shift
from torchcaps.data.images import to_float
from torchcaps.models import TransformingAutoencoder
from torchcaps.ops import Capsules
from torchcaps.training import Data, Experiment
from torchcaps.training.checkpoint import Trained

SIZE = 24


class Centroids(TransformingAutoencoder):
    """Capsules that know where they are: forty for each channel, whose point is the centre of its brightness."""

    def __init__(self) -> None:
        super().__init__((3, SIZE, SIZE), n_capsules=120, n_recognition=1, n_generation=1, pose="translation")

    def encode(self, x: Tensor) -> Capsules:
        along = torch.arange(SIZE) - (SIZE - 1) / 2
        mass = x / x.sum(dim=(2, 3), keepdim=True)
        points = ((mass.sum(dim=axis) * along).sum(dim=-1) for axis in (2, 3))
        return Capsules(torch.stack(tuple(points), dim=-1).repeat(1, 40, 1), torch.ones(len(x), 120))


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


class NearSighted(Centroids):
    """Sees the parts of a whole in the middle of the image; of one elsewhere no more than where it is."""

    def encode(self, x: Tensor) -> Capsules:
        points, presence = super().encode(x)[:2]
        whole = points.mean(dim=1, keepdim=True)
        return Capsules(torch.where(whole.norm(dim=2, keepdim=True) < 1.5, points, whole.expand_as(points)), presence)


def test_poses_are_found_again_in_the_image_that_was_brought_into_the_frame() -> None:
    one = torch.tensor([[-4.0, -3.0], [3.0, -2.0], [0.0, 4.0]])
    two = one + torch.tensor([[0.0, 0.0], [0.0, 0.0], [4.0, 0.0]])
    shifts = torch.tensor([[3.0, 3.0], [-3.0, 3.0], [3.0, -3.0], [-3.0, -3.0]]).repeat(5, 1).unsqueeze(1)
    images = spots(torch.cat((one + shifts, two + shifts)))
    _, poses, again, _ = model_codes("it", NearSighted(), (images, images[:5], images[:6]))
    at_first, then = ((code.train[:20].mean(dim=0) - code.train[20:].mean(dim=0)).norm() for code in (poses, again))
    assert at_first < 0.1 < 1 < then


def test_fifty_principal_components_are_kept() -> None:
    """Recorded tables rest on it."""
    images = torch.randint(256, (60, 3, 5, 5), dtype=torch.uint8)
    assert [code.test.shape for code in pixel_codes((images,) * 3)] == [(60, 75), (60, 50)]


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


def test_networks_answer_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "tiny", ("matched_cnn", {"n_parameters": 1000}, "cross_entropy"))
    images = torch.randint(256, (9, 1, 28, 28), dtype=torch.uint8)
    model = train_on_few("tiny", Images(images, torch.arange(9) % 3), 3, steps=1, seed=0)
    assert torch.equal(model(to_float(images)).scores, model(to_float(images)).scores)


def test_every_draw_is_learned_from_other_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the table says; and the same draw from the same ones, as what was broken off goes on."""
    seeds: list[int] = []
    monkeypatch.setattr(compare, "train_on_few", lambda *_, seed: seeds.append(seed))
    monkeypatch.setattr(compare, "classes_of", lambda _, images: torch.zeros(len(images)))
    images = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    *_, make = (each[2] for each in compare._methods([], Images(images, torch.arange(4)), (images,) * 3, 4, 1))
    make()([(torch.tensor(index), torch.tensor([0, 1])) for index in ([0, 1], [2, 3], [0, 1])])
    assert seeds[0] == seeds[2] != seeds[1]


def test_every_network_is_trained_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(compare, "train_on_few", lambda name, *_, **__: asked.append(name))
    monkeypatch.setattr(compare, "classes_of", lambda _, images: torch.zeros(len(images)))
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    for code, name, make in compare._methods([], Images(images, torch.arange(3)), (images,) * 3, 3, 1):
        make()([(torch.tensor([0]), torch.tensor([0]))])
        assert code == "none: labelled images alone" and asked[-1] == name
    assert asked == list(NETWORKS)


def a_run(path: Path, note: str = "", classes: tuple[str, ...] = ("a", "b", "c"), test: str = "40", **data: Any) -> Any:
    """What a comparison asks a finished run for."""
    config = Experiment(data=Data(**{"name": "digits", **data}))
    result = {"recipe": "it", "seed": 0, "epochs": 1, "commit": "c"}
    trained = Trained(nn.Identity(), (1, 4, 4), classes, (4, 4), note, {"test": test})
    return SimpleNamespace(path=path, trained=trained, experiment=lambda: config, finished=lambda: result)


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Images of three classes that all runs are of; of their codes there are pixels alone."""
    parts = [Images(torch.randint(256, (n, 1, 4, 4), dtype=torch.uint8), torch.arange(n) % 3) for n in (60, 20, 40)]
    dataset = Dataset("noise", ("a", "b", "c"), *parts)
    monkeypatch.setattr(compare, "load_model", lambda run: run.trained)
    monkeypatch.setattr(compare, "data_for", lambda *_: dataset)
    monkeypatch.setattr(compare, "model_codes", lambda *_: [])
    monkeypatch.setattr(compare, "READOUTS", {"nearest labelled": nearest_labelled})
    return dataset


def test_errors_of_the_nearest_pixels_written_out(noise: Dataset, tmp_path: Path) -> None:
    settings = compare.Settings(labels=(6,), draws=3, n_unlabelled=50, steps=0)
    found = compare.compare(a_run(tmp_path), [], settings, Finished(tmp_path / "kept.json", "of"))
    errors = found["rows"][0]["errors"]["6"]
    train, val, test = (part.images.flatten(1).double() for part in (noise.train, noise.val, noise.test))
    wanted: list[list[float]] = [[], []]
    for seed in range(3):
        index = draw_labelled(noise.train.labels[:50], 6, 3, seed)
        for errors_of, x, true in zip(wanted, (val, test), (noise.val.labels, noise.test.labels), strict=True):
            answer = noise.train.labels[index[torch.cdist(x, train[index]).argmin(dim=1)]]
            errors_of.append((answer != true).double().mean().item())
    assert errors["val_error"] == pytest.approx(statistics.mean(wanted[0]))
    assert errors["test_errors"] == pytest.approx(wanted[1]) and len(set(wanted[1])) > 1
    assert errors["test_error"] == pytest.approx(statistics.mean(wanted[1]))


@pytest.mark.usefixtures("noise")
@pytest.mark.parametrize(
    "changed",
    [
        {"name": "mnist"},
        {"options": {"split": "other"}},
        {"crop": (3, 3)},
        {"image_size": (3, 3)},
        {"note": "another split"},
        {"classes": ("a", "b")},
        {"test": "40 of other labels"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_run_beside_was_trained_on_the_same_images(changed: dict[str, Any], tmp_path: Path) -> None:
    """Else it might be tested on what it was trained on."""
    run, other = a_run(tmp_path / "it"), a_run(tmp_path / "other", **changed)
    with pytest.raises(ValueError, match="beside must be runs on the same data"):
        compare.compare(run, [other], compare.Settings(), Finished(tmp_path / "kept.json", "of"))


def test_the_times_of_what_was_done_before_count(tmp_path: Path) -> None:
    first = Finished(tmp_path / "kept.json", "of")
    first.add({"code": "a", "readout": "b"}, 1.5)
    first.add({"code": "c", "readout": "b"}, 2.0)
    assert first.seconds == Finished(tmp_path / "kept.json", "of").seconds == 3.5


def test_every_device_that_took_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Abacus", "Abacus", "Slide rule"):
        monkeypatch.setattr("study.few_labels.finished.device_in_words", lambda _, name=name: name)
        Finished(tmp_path / "kept.json", "of").add({"code": name, "readout": "b"}, 1.0)
    assert Finished(tmp_path / "kept.json", "of").devices == ["Abacus", "Slide rule"]


def test_the_three_nearest_outvote_one_where_labels_abound() -> None:
    """Of twenty labels of two classes: the nearest is of class 0, the next two are of class 1, then two of class 0."""
    train = torch.tensor([0.0, *[-5.0] * 9, 0.1, 0.2, *[6.0] * 8]).unsqueeze(1)
    labels = (torch.arange(20) >= 10).long()
    asked = torch.tensor([[0.04]])
    read = nearest_labelled(Codes("a line", train, asked, asked), 2)
    assert [part.tolist() for part in read([(torch.arange(20), labels)])[0]] == [[1], [1]]
    for few in (torch.tensor([0, 1, 10, 11]), torch.arange(19)):  # below ten of each class: the nearest alone
        assert [part.tolist() for part in read([(few, labels[few])])[0]] == [[0], [0]]


def test_of_three_that_disagree_the_nearest_is_right() -> None:
    train = torch.tensor([0.2, *[9.0] * 9, 0.1, *[9.0] * 9, 0.0, *[9.0] * 9]).unsqueeze(1)
    asked = torch.tensor([[0.04]])
    read = nearest_labelled(Codes("a line", train, asked, asked), 3)
    assert [part.tolist() for part in read([(torch.arange(30), torch.arange(30) // 10)])[0]] == [[2], [2]]


def test_near_neighbours_count_for_more_than_many_far_ones() -> None:
    """Of the ten nearest of 0.5 three are of one class, between 0.5 and 1.1 away, and seven of the other, at 1.4."""
    train = torch.cat((-0.3 * torch.arange(15.0), 1.9 + 0.001 * torch.arange(15.0))).unsqueeze(1)
    train = torch.cat((train, torch.zeros(30, 1)), dim=1)
    asked = torch.tensor([[0.5, 0.0]])
    read = neighbour_graph(Codes("a line", train, asked, asked), 2)
    places = torch.tensor([7, 22])
    for labels in ([0, 1], [1, 0]):
        assert [part.tolist() for part in read([(places, torch.tensor(labels))])[0]] == [[labels[0]]] * 2


def test_a_mixture_names_far_clusters_by_one_label_each() -> None:
    centres = 30 * torch.eye(3, 5)
    labels = torch.arange(120) % 3
    codes = centres[labels] + torch.randn(120, 5)
    read = factor_mixture(Codes("far", codes, codes[:60], codes[60:]), 3, n_components=6, n_factors=2)
    ((val, test),) = read([(torch.tensor([0, 1, 2]), labels[:3])])
    assert torch.equal(val, labels[:60]) and torch.equal(test, labels[60:])


def test_a_mixture_names_clusters_without_a_label_by_those_they_are_near() -> None:
    """Of two pairs of clusters, none of which shares a point with another before memberships are softened."""
    centres = torch.tensor([[0.0, 0.0], [0.0, 40.0], [100.0, 0.0], [100.0, 40.0]])
    cluster = torch.arange(200) % 4
    codes = centres[cluster] + torch.randn(200, 2)
    read = factor_mixture(Codes("pairs", codes, codes[:80], codes[80:]), 2, n_components=4, n_factors=1)
    for labels in (torch.tensor([0, 1]), torch.tensor([1, 0])):
        ((val, test),) = read([(torch.tensor([0, 2]), labels)])
        assert torch.equal(torch.cat((val, test)), labels[cluster // 2])


def test_what_one_would_choose_is_chosen_on_validation_images() -> None:
    rows = [{"code": k, "errors": {"25": {"val_error": v, "test_error": 1 - v}}} for k, v in (("a", 0.3), ("b", 0.1))]
    assert best(rows, "25")["code"] == "b"


def test_every_component_of_a_mixture_has_points_enough_to_be_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fitted(x: Tensor, n_components: int, n_factors: int) -> Any:
        asked.append(n_components)
        return fit_factor_mixture(x, n_components, n_factors)

    monkeypatch.setattr(readouts, "fit_factor_mixture", fitted)
    for n in (15, 200, 2000):
        factor_mixture(Codes("noise", torch.randn(n, 10), torch.randn(3, 10), torch.randn(3, 10)), 2)
    assert asked == [1, 10, 50]


def test_what_no_label_reaches_is_taken_for_the_commonest() -> None:
    """Two far clusters, of which one has no labels: of class 1 there are two, of class 2 one."""
    near, far = torch.randn(20, 2), 1e4 + torch.randn(20, 2)
    asked = torch.cat((near[:1], far[:1])) + 0.01
    read = neighbour_graph(Codes("two", torch.cat((near, far)), asked, asked), 3)
    index, labels = torch.tensor([0, 1, 2]), torch.tensor([1, 1, 2])
    ((val, test),) = read([(index, labels)])
    assert val[1] == test[1] == 1


def test_networks_leave_the_random_numbers_of_others_alone() -> None:
    labelled = Images(torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8), torch.arange(4))
    before = torch.get_rng_state()
    train_on_few("CNN", labelled, 4, 1, 0)
    assert torch.get_rng_state().equal(before)


def test_too_few_images_for_a_graph_are_named(noise: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n_unlabelled must leave more than 10 images to train on, got 9"):
        compare.compare(a_run(tmp_path), [], compare.Settings(n_unlabelled=9), Finished(tmp_path / "kept.json", "of"))
