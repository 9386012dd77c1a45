"""Several labels an image, from an array and from a table, through training, evaluation and prediction."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.cli import main
from torchcaps.data import Dataset, Images
from torchcaps.data.sampling import balanced_weights
from torchcaps.models import ModelOutput
from torchcaps.ops import Capsules, margin_loss, reconstruction_loss
from torchcaps.training import Data, Experiment, Model, Optim
from torchcaps.training.batches import Batches
from torchcaps.training.examples import Batch
from torchcaps.training.objective import wrong
from torchcaps.training.per_class import label_scores
from torchcaps.training.predict import predict
from torchcaps.training.tasks import MultiLabel
from torchcaps.training.train import train

CLASSES = ("left", "right", "below")


def pattern(labels: torch.Tensor) -> torch.Tensor:
    """A bright square for each label, at its own place: uint8 ``[N, 1, 16, 16]``."""
    images = torch.zeros(len(labels), 1, 16, 16, dtype=torch.uint8)
    for k, (row, column) in enumerate(((2, 2), (2, 10), (10, 6))):
        images[labels[:, k], :, row : row + 4, column : column + 4] = 255
    return images


def made(n: int, seed: int) -> Images:
    labels = torch.rand(n, 3, generator=torch.Generator().manual_seed(seed)) < 0.5
    return Images(pattern(labels), labels)


TINY = Experiment(
    recipe="tiny",
    data=Data("toy", shift=1),
    model=Model("capsnet_small", {"channels": 8, "n_types": 2, "kernel_size": 5, "decoder": [16]}),
    optim=Optim(lr=1e-2, schedule="constant"),
    epochs=6,
    batch_size=16,
)


@pytest.mark.parametrize("loss", ["margin", "cross_entropy"])
def test_labels_that_can_be_seen_are_learned(tmp_path: Path, loss: str) -> None:
    data = Dataset("toy", CLASSES, made(256, 0), made(64, 1), made(64, 2))
    cnn = Model("matched_cnn", {"n_parameters": 20_000})
    config = TINY if loss == "margin" else replace(TINY, loss=loss, model=cnn, reconstruction=0)
    result = train(config, tmp_path, dataset=data, progress="none")
    assert result["config"]["data"]["multi_label"] is True
    assert result["test_error"] < 0.1 and result["test_f1"] > 0.95, result
    assert result["images_per_class"]["test"] == dict(zip(CLASSES, data.test.labels.sum(dim=0).tolist(), strict=True))
    assert set(result["test_recall"]) == set(result["test_precision"]) == set(CLASSES)


def test_the_loss_by_hand() -> None:
    pose, labels = torch.randn(2, 3, 4), torch.tensor([[True, False, True], [False, False, False]])
    scores = torch.rand(2, 3)
    parts = torch.rand(2, 1, 1, 2, 2)

    class Model(torch.nn.Module):
        @staticmethod
        def decoder(poses: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
            return (poses.sum(dim=2) * present).sum(dim=1).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)

    output = ModelOutput(scores, (Capsules(pose, scores),))
    batch = Batch(torch.rand(2, 1, 2, 2), labels, parts)
    config = replace(TINY, data=Data("toy", multi_label=True), reconstruction=0.5)
    sums = [pose[0, 0].sum() + pose[0, 2].sum(), torch.tensor(0.0)]
    images = torch.stack([x.expand(1, 2, 2) for x in sums])
    wanted = margin_loss(scores, labels.float()) + 0.5 * reconstruction_loss(images, parts[:, 0])
    torch.testing.assert_close(MultiLabel().loss(config, Model(), output, batch, None), wanted)
    low, high = torch.clamp(0.9 - scores, min=0) ** 2, torch.clamp(scores - 0.1, min=0) ** 2
    alone = torch.where(labels, low, 0.5 * high).sum(dim=1).mean()
    torch.testing.assert_close(wanted - 0.5 * reconstruction_loss(images, parts[:, 0]), alone)


def test_what_is_wrong_by_hand() -> None:
    labels = torch.tensor([[True, False], [True, True], [False, False]])
    scores = torch.tensor([[0.9, 0.4], [0.4, 0.8], [0.3, 0.6]])
    assert wrong(scores, labels).tolist() == [[False, False], [True, False], [False, True]]
    assert wrong(scores, labels, 0.0).tolist() == [[False, True], [False, False], [True, True]]


def test_scores_of_labels_by_hand() -> None:
    labels = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0]]).bool()
    predicted = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]]).bool()
    found = label_scores(labels, labels ^ predicted, ("a", "b", "c"))
    assert found["recall"] == {"a": 2 / 3, "b": 1 / 2, "c": None}
    assert found["precision"] == {"a": 1.0, "b": 1 / 2, "c": None}
    assert found["f1"] == pytest.approx((4 / 5 + 2 / 4) / 2)


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    one = Images(torch.zeros(40, 1, 16, 16, dtype=torch.uint8), torch.arange(40) % 3)
    several = made(40, 0)
    data, config = Dataset("toy", CLASSES, one, one, one), replace(TINY, data=replace(TINY.data, multi_label=True))
    with pytest.raises(ValueError, match="data.multi_label must be False for toy.*, whose images have one label each"):
        train(config, tmp_path, dataset=data, progress="none")
    pairs = replace(TINY, data=replace(TINY.data, pairs=True, n_pairs=(16, 16), shift=2))
    with pytest.raises(ValueError, match="data.multi_label must be False with data.pairs, got True"):
        train(pairs, tmp_path, dataset=Dataset("toy", CLASSES, *[several] * 3), progress="none")
    with pytest.raises(ValueError, match="loss must be margin or cross_entropy with data.multi_label"):
        replace(TINY, data=Data(multi_label=True), loss="spread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = made(120, 3)
    rows = ["file,labels"]
    for k, (image, labels) in enumerate(zip(images.images, images.labels, strict=True)):
        noisy = image[0].numpy() // 2 + np.random.default_rng(k).integers(0, 9, (16, 16), np.uint8)
        (tmp_path / "x").mkdir(exist_ok=True)
        Image.fromarray(noisy).save(tmp_path / "x" / f"{k}.png")
        rows.append(f"{k}.png,{';'.join(name for name, there in zip(CLASSES, labels.tolist(), strict=True) if there)}")
    (tmp_path / "x" / "labels.csv").write_text("\n".join(rows))
    return tmp_path / "x"


def test_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "run"
    arguments = ["train", "digits", "--data.name", "folder", "--data.root", str(folder), "--data.options.labels"]
    arguments += ["labels.csv", "--data.image_size", "[16, 16]", "--epochs", "1", "--out", str(out)]
    arguments += ["--model.options.kernel_size", "5"]
    assert main(arguments) == 2
    assert "data.multi_label must be True for folder, whose images have several labels" in capsys.readouterr().err
    assert main([*arguments, "--data.multi_label", "true", "--smoke"]) == 0
    said = capsys.readouterr().out
    assert (
        "(images with a label missed or too many; mean F1 of the labels" in said
        and f"next: torchcaps report {out}" in said
    )
    result = json.loads((out / "result.json").read_text())
    assert result["config"]["data"]["options"] == {"labels": "labels.csv", "n_each": 12}
    assert sum(result["images"].values()) < 80 and "at most" in result["data"]
    assert main(["evaluate", str(out)]) == 0
    assert "too many; mean F1 of the labels" in capsys.readouterr().out
    named = predict(out, [folder / "0.png"])
    assert {name for name, _ in named[str(folder / "0.png")]} == set(CLASSES)
    assert main(["report", str(out)]) == 0 and (out / "report.html").is_file()
    assert main(["evaluate", str(out), "--confusion", str(out.parent / "a.csv")]) == 2
    assert "--confusion must be left out for" in capsys.readouterr().err
    assert main(["evaluate", str(out), "--folder", str(folder)]) == 2
    assert "must be a run of one label an image to be measured on a folder" in capsys.readouterr().err


def test_balanced_weights_by_hand() -> None:
    assert balanced_weights(torch.tensor([0, 0, 0, 1])).tolist() == [1 / 3, 1 / 3, 1 / 3, 1]
    several = torch.tensor([[1, 0], [1, 1], [1, 0], [0, 0], [0, 0]]).bool()
    assert balanced_weights(several).tolist() == [1 / 3, 1, 1 / 3, 1 / 2, 1 / 2]


def test_rare_classes_are_shown_as_often() -> None:
    labels = torch.tensor([0] * 180 + [1] * 20)
    source = Images(torch.arange(200, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4), labels)

    def shown(data: Data, epoch: int = 0) -> torch.Tensor:
        batches = Batches(data, source, 50, seed=0, train=True)
        batches.epoch = epoch
        return torch.cat([batch.labels.squeeze(1) for batch in batches])

    plain, balanced = Data("toy", shift=0, n_shown=2000), Data("toy", shift=0, n_shown=2000, balance=True)
    assert shown(plain).float().mean() == 0.1
    assert 0.46 < shown(balanced).float().mean() < 0.54
    assert torch.equal(shown(balanced), shown(balanced)) and not torch.equal(shown(balanced), shown(balanced, 1))
    # Evaluation shows each image once.
    evaluated = Batches(balanced, source, 50, seed=0, train=False)
    assert torch.equal(torch.cat([batch.labels for batch in evaluated]).squeeze(1), labels)
