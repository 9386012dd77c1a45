"""Every recipe runs: two steps on a few images."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import study.data  # noqa: F401 (enters data sets)
from study.recipes import RECIPES, recipe
from torchcaps.data import DATASETS, Dataset, Images
from torchcaps.models import MODELS, build
from torchcaps.models.baselines import BaselineCNN, count_parameters
from torchcaps.training.batches import split
from torchcaps.training.config import smoke
from torchcaps.training.train import train

#: What each data set is like, for images made up here.
SHAPES = {
    "cifar10": (3, 32, 32),
    "digit-masks": (1, 32, 32),
    "digits": (1, 28, 28),
    "expanded-mnist": (1, 40, 40),
    "faces": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "folder": (3, 224, 224),
    "mnist": (1, 28, 28),
    "smallnorb": (2, 48, 48),
    "svhn": (3, 32, 32),
}
#: Networks whose first step takes many seconds, made smaller for this test alone.
SMALLER = {
    "self_routing_resnet": {"n_types": 2, "d_pose": 4, "width": 2},
    "attention_capsnet": {"trunk": "simple", "channels": 4, "n_types": 2},
    "capsnet": {"channels": 16, "n_types": 4, "decoder": (8,)},
    "matrix_capsnet": {"A": 4, "B": 2, "C": 3, "D": 2},
    "deepcaps": {"channels": 4, "n_types": 2, "d_pose": (2, 3, 3, 3), "decoder": (8,)},
    "heinsen_capsnet": {"channels": 4, "n_parts": 3},
    "variational_bayes_capsnet": {"A": 4, "B": 2, "C": 3, "D": 2, "d_pose": 4},
    "matched_cnn": {"n_parameters": 5000},
}
#: Those whose sizes are the paper's alone: a hundred megabytes and more would be written of each.
FIXED = ("baseline_cnn", "norb_cnn", "multimnist_cnn")


def small_cnn(image_shape: tuple[int, int, int], n_classes: int = 10, *, dropout: float = 0.0) -> BaselineCNN:
    return BaselineCNN(image_shape, n_classes, (4, 4), (8,), dropout=dropout)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = smoke(recipe(name))
    assert config.recipe == f"{name}-smoke"

    @functools.wraps(DATASETS[config.data.name])  # it takes the same options
    def made_up(root: object, image_size: tuple[int, int] | None, **_: object) -> Dataset:
        n_classes = 5 if config.data.name == "smallnorb" else 10
        channels, *own = SHAPES[config.data.name]
        size = (40, channels, *(image_size or own))
        labels = torch.arange(40) % n_classes
        masks = torch.rand(40, n_classes, *size[2:]) > 0.5 if config.data.masks else None
        images = Images(torch.randint(0, 256, size, dtype=torch.uint8), labels, masks=masks)
        return Dataset(config.data.name, tuple(map(str, range(n_classes))), images, images, images)

    monkeypatch.setitem(DATASETS, config.data.name, made_up)
    for fixed in FIXED:
        monkeypatch.setitem(MODELS, fixed, small_cnn)
    options = SMALLER.get(config.model.name, {}) | config.model.options
    config = replace(config, model=replace(config.model, options=options), threads=1, device="cpu", precision="32")
    result = train(config, tmp_path / name, progress="none")
    assert result["steps"] == 2 and result["test_loss"] >= 0
    assert ("test_error" in result) != (config.data.transformed or config.data.masks)
    assert ("test_dice" in result) == config.data.masks


def test_smoke_takes_few_images_and_leaves_the_rest_as_it_is() -> None:
    config = recipe("smallnorb-vector")
    small = smoke(config)
    assert (small.epochs, small.batch_size, small.data.n_shown, small.data.n_eval) == (1, 4, 8, 8)
    assert smoke(recipe("mnist-100-labels")).data.n_train is None  # so there may be fewer images than a recipe asks for
    assert small.model == config.model and small.optim == config.optim and small.loss == config.loss


def test_rows_of_mnist_differ_from_it_in_what_they_name() -> None:
    first = recipe("mnist-adam")
    wanted = {
        "mnist-1-iteration": {"n_iters": 1},
        "mnist-2-iterations": {"n_iters": 2},
        "mnist-4-iterations": {"n_iters": 4},
        "mnist-5-iterations": {"n_iters": 5},
        "mnist-10-iterations": {"n_iters": 10},
        "mnist-no-reconstruction": {"decoder": None},
        "mnist-1-iteration-no-reconstruction": {"n_iters": 1, "decoder": None},
    }
    for name, options in wanted.items():
        assert replace(recipe(name), recipe="mnist-adam", model=first.model) == first
        assert recipe(name).model.options == first.model.options | options


@pytest.mark.parametrize("name", ["mnist-adam", "mnist-cnn", "mnist-matched-cnn"])
@pytest.mark.parametrize("n", [100, 1000, 10_000])
def test_fewer_labels_take_as_many_steps(name: str, n: int) -> None:
    every, fewer = recipe(name), recipe(f"{name.removesuffix('-adam')}-{n}-labels")
    assert replace(fewer, recipe=name, data=every.data) == every
    pixels = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(55_000, 1, 28, 28)
    part = Images(pixels, torch.zeros(55_000, dtype=torch.int64))
    data = Dataset("mnist", ("0",), part, part, part)
    made = [split(config, data, "train", torch.device("cpu")) for config in (every, fewer)]
    assert len(made[0]) == len(made[1]) == 859 and len(made[1].source) == n


def test_what_is_compared_on_affine_digits_is_alike() -> None:
    capsules, cnn = recipe("expanded-mnist"), recipe("expanded-mnist-cnn")
    assert replace(cnn, recipe=capsules.recipe, model=capsules.model, loss=capsules.loss) == capsules
    wanted = count_parameters(build("capsnet", (1, 40, 40), 10, decoder=None))
    assert cnn.model.options["n_parameters"] == wanted
    assert count_parameters(build("matched_cnn", (1, 40, 40), 10, n_parameters=wanted)) == pytest.approx(
        wanted, rel=0.001
    )


def test_controls_on_affine_digits_differ_in_routing_alone() -> None:
    large, first = recipe("expanded-mnist"), recipe("expanded-mnist-small")
    assert replace(first, recipe=large.recipe, model=large.model, stop_at=large.stop_at) == large
    for name, n_matrices in {"uniform": 1152, "shared": 1}.items():
        other = recipe(f"expanded-mnist-small-{name}")
        assert replace(other, recipe=first.recipe, model=first.model) == first
        options = {key: value for key, value in other.model.options.items() if key not in ("routing", "shared")}
        assert options == first.model.options and other.model.options["routing"] == "uniform"
        weights = build(other.model.name, (1, 40, 40), 10, **other.model.options).state_dict()
        assert weights["classes.weight"].shape == (n_matrices, 10, 8, 16)


def test_rows_of_the_ablation_differ_from_the_first_in_what_they_name() -> None:
    first = recipe("smallnorb")
    wanted = {
        "smallnorb-1-iteration": {"n_iters": 1},
        "smallnorb-2-iterations": {"n_iters": 2},
        "smallnorb-5-iterations": {"n_iters": 5},
        "smallnorb-vector": {"pose": "vector", "coordinates": "row"},
        "smallnorb-no-coordinates": {"coordinates": None},
        "smallnorb-vector-no-coordinates": {"pose": "vector", "coordinates": None},
        "smallnorb-margin-loss": {},
        "smallnorb-cross-entropy": {},
    }
    for name, options in wanted.items():
        row = recipe(name)
        assert row.model.options == first.model.options | options
        optim = replace(first.optim, lr=3e-3) if "vector" in name else first.optim
        assert replace(row, recipe="row", model=first.model, loss="spread") == replace(first, recipe="row", optim=optim)
    assert [recipe(f"smallnorb-{name}").loss for name in ("margin-loss", "cross-entropy")] == [
        "margin",
        "cross_entropy",
    ]


def test_folds_differ_in_their_toys_alone() -> None:
    networks = ("", "-cnn", "-cnn-small")
    for name in (f"smallnorb-{by}{network}" for by in ("azimuth", "elevation") for network in networks):
        whole = recipe(name)
        for k in range(3):
            fold = recipe(f"{name}-fold-{k}")
            assert fold.data.options == {**whole.data.options, "fold": k}
            assert replace(fold, recipe=name, data=whole.data) == whole
