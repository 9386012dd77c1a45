"""A data set, a network and a loss of one's own, handed over to ``train`` as objects."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from torchcaps import DenseCaps, PrimaryCaps, load_model, predict, train
from torchcaps.cli import main
from torchcaps.data import DATASETS, NO_FILES, Dataset, Images, register
from torchcaps.models import MODELS, ModelOutput
from torchcaps.ops import margin_loss
from torchcaps.report.evaluated import evaluate_run
from torchcaps.report.report import write_report
from torchcaps.training import Data, Experiment, Model, Optim
from torchcaps.training.batches import split
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.examples import Batch
from torchcaps.training.objective import evaluate
from torchcaps.training.run import Run

CONFIG = Experiment(
    recipe="mine", data=Data(shift=0), optim=Optim(lr=1e-2), epochs=4, batch_size=20, threads=1, device="cpu"
)


def stripes(n_classes: int = 2) -> Dataset:
    """Bright in the upper or in the lower half."""

    def some(n: int) -> Images:
        labels = torch.arange(n) % n_classes
        images = torch.randint(0, 60, (n, 1, 12, 12), dtype=torch.uint8)
        for k in range(n_classes):
            images[labels == k, :, 6 * k : 6 * k + 6] += 150
        return Images(images, labels)

    return Dataset("stripes", tuple(map(str, range(n_classes))), some(80), some(20), some(20), note="stripes")


def capsules() -> nn.Sequential:
    """Returns capsules, not a ``ModelOutput``."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), PrimaryCaps(8, 2, 4, 3, stride=2), DenseCaps(2 * 4 * 4, 2, 4, 4)
    )


def quiet(config: Experiment, out: Path, **given: Any) -> dict[str, Any]:
    return train(config, out, progress="none", **given)


def test_data_and_network_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = stripes()
    result = quiet(CONFIG, tmp_path / "a", dataset=data, model=capsules())
    assert result["test_error"] == 0 and result["data"] == "stripes" and result["handed_over"] == ["dataset", "model"]
    assert result["config"]["model"]["name"] == "Sequential (handed over)"
    # A finished run is not trained again, and only returned for the same data.
    assert quiet(CONFIG, tmp_path / "a", dataset=data, model=capsules()) == json.loads(
        (tmp_path / "a" / "result.json").read_text()
    )
    with pytest.raises(ValueError, match="holds the run of other images"):
        quiet(CONFIG, tmp_path / "a", dataset=replace(data, note="others"), model=capsules())
    with pytest.raises(ValueError, match=r"another experiment \(model.name = 'Sequential \(handed over\)' there"):
        quiet(CONFIG, tmp_path / "a", dataset=data, model=nn.Linear(1, 1))
    # The weights come back into a network that is handed over again.
    with pytest.raises(ValueError, match=r"handed over to train: hand it over again, load_model\(run, model\)"):
        load_model(tmp_path / "a")
    model = load_model(tmp_path / "a", capsules()).model
    x = data.test.images.float() / 255
    assert (model(x).activation.argmax(dim=1) == data.test.labels).all()
    assert main(["evaluate", str(tmp_path / "a")]) == 2
    assert "handed over" in capsys.readouterr().err


class Plain(nn.Module):
    """Returns bare scores."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(144, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    """It is what is trained, validated and tested by, and sees scores as a ``ModelOutput``."""
    seen: list[type] = []

    def loss(output: Any, batch: Batch) -> Tensor:
        seen.append(type(output))
        return margin_loss(output.scores.sigmoid(), batch.labels.squeeze(1)) + 7

    config, given = replace(CONFIG, loss="cross_entropy"), {"dataset": stripes(), "model": Plain()}
    result = quiet(config, tmp_path / "a", **given, loss=loss)
    assert result["handed_over"] == ["dataset", "model", "loss"] and set(seen) == {ModelOutput}
    assert 7 <= result["test_loss"] < 8 and 7 <= result["val_loss"] < 8 and result["test_error"] == 0
    # The record says that it was one's own: the run does not go on, nor is it evaluated, with another.
    assert result["config"]["loss"] == "own"
    with pytest.raises(ValueError, match="another experiment"):
        quiet(config, tmp_path / "a", **given)
    with pytest.raises(ValueError, match="loss must be handed over"):
        quiet(replace(config, loss="own"), tmp_path / "b", **given)
    own = Run(tmp_path / "a").experiment()
    with pytest.raises(ValueError, match="loss must be handed over"):
        evaluate(own, Plain(), split(own, stripes(), "test", torch.device("cpu")))


class ImagesAlone(nn.Module):
    """A decoder that takes all capsules, as the library's loss could not use it."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_loss_of_ones_own_may_want_anything_of_the_model(tmp_path: Path) -> None:
    model = Plain()
    model.decoder = ImagesAlone()
    given = {"dataset": stripes(), "model": model}
    with pytest.raises(ValueError, match="whose decoder is no torchcaps.Decoder"):
        quiet(replace(CONFIG, loss="cross_entropy"), tmp_path / "a", **given)
    quiet(replace(CONFIG, epochs=1), tmp_path / "a", **given, loss=lambda output, _: output.scores.square().mean())
    with pytest.raises(ValueError, match="reconstruction must be 0"):
        quiet(replace(CONFIG, reconstruction=0.1), tmp_path / "b", **given, loss=lambda output, _: output.scores.sum())


@pytest.mark.parametrize("make", [Plain, capsules])
def test_registered_networks_that_return_scores_or_capsules_alone(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are trained, evaluated, reported on, and predict image files."""
    monkeypatch.setitem(MODELS, "mine", lambda image_shape, n_classes: make())
    register("stripes", lambda root, image_size: stripes(), files=False)
    try:
        config = replace(CONFIG, data=Data("stripes", shift=0), model=Model("mine"), epochs=2)
        if make is Plain:
            config = replace(config, loss="cross_entropy")
        result = quiet(config, tmp_path / "a")
        assert evaluate_run(Run(tmp_path / "a")).wrong.float().mean() == result["test_error"]
        page = write_report(tmp_path / "a").read_text()
        assert ("Where the votes come from" in page) == (make is capsules) == ("Parse tree" in page)
    finally:
        DATASETS.pop("stripes")
        NO_FILES.discard("stripes")
    image = tmp_path / "image.png"
    Image.fromarray(stripes().test.images[0, 0].numpy()).save(image)
    [named] = predict(tmp_path / "a", [image]).values()
    assert named[0][0] == "0" and len(named) == 2


def test_a_run_that_was_stopped_ends_as_it_would_have(tmp_path: Path) -> None:
    data = stripes()
    torch.manual_seed(5)
    start = capsules()
    state = {name: value.clone() for name, value in start.state_dict().items()}
    whole = quiet(CONFIG, tmp_path / "whole", dataset=data, model=start)
    again = capsules()
    again.load_state_dict(state)
    with pytest.raises(OutOfTime):
        quiet(CONFIG, tmp_path / "parts", dataset=data, model=again, until=0.0)
    resumed = quiet(CONFIG, tmp_path / "parts", dataset=data, model=again)
    assert resumed["test_loss"] == whole["test_loss"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": [1, 2]}, "dataset must be a Dataset, got a list"),
        ({"model": "capsnet"}, "model must be a Module, got a str"),
        ({"loss": "margin"}, "loss must be a function of output and batch, got 'margin'"),
        ({"model": nn.Linear(3, 2)}, r"the model Linear \(handed over\) must take images \[1, 1, 12, 12\]"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(144, 3))}, r"must return scores \[B, 2\]"),
    ],
)
def test_bad_input(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        quiet(CONFIG, tmp_path / "a", **{"dataset": stripes(), **given})
    assert not (tmp_path / "a").exists()
