"""Windows of images: at random in training, at the centre or averaged over after it, and for one's own images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.training.test_train import CNN, TINY
from torchcaps.cli import main
from torchcaps.data import Dataset, load
from torchcaps.data.augment import CROPS_13
from torchcaps.models import ModelOutput
from torchcaps.training import Data
from torchcaps.training.batches import Batches, image_shape, split
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.files import read_json, write_json
from torchcaps.training.objective import evaluate, total_loss
from torchcaps.training.predict import predict
from torchcaps.training.run import Run
from torchcaps.training.train import train

CROP = Data("digits", n_train=64, shift=0, crop=(20, 22))
CPU = torch.device("cpu")


def batches(train: bool = True, **data: Any) -> Batches:
    return Batches(Data(**{"shift": 0, **data}), load("digits").train.take(slice(50)), 16, seed=5, train=train)


def places(whole: Tensor, windows: Tensor) -> list[list[tuple[int, int]]]:
    """For each window ``[N, h, w]`` all places in its image ``[N, H, W]`` where it may have been cut, by search."""
    height, width = windows.shape[1:]
    found = []
    for image, window in zip(whole, windows, strict=True):
        every = image.unfold(0, height, 1).unfold(1, width, 1)  # [rows, columns, h, w]
        found.append([(r, c) for r, c in (every == window).all(dim=3).all(dim=2).nonzero().tolist()])
    return found


def test_training_cuts_anywhere_and_reconstructs_the_same_window() -> None:
    whole, cut = next(iter(batches())), next(iter(batches(crop=(20, 22))))
    assert cut.images.shape == (16, 1, 20, 22) and torch.equal(cut.parts, cut.images.unsqueeze(1))
    found = places(whole.images[:, 0], cut.images[:, 0])
    assert all(found) and len({each[0] for each in found}) > 10
    again = next(iter(batches(crop=(20, 22))))
    assert torch.equal(cut.images, again.images)
    made = batches(crop=(20, 22))
    made.epoch = 1
    order = {image.numpy().tobytes() for image in next(iter(made)).images}
    assert not order & {image.numpy().tobytes() for image in cut.images}


@pytest.mark.parametrize("options", [{"gamma": 0.7}, {"shading": 0.7}])
def test_light_is_seen_but_not_reconstructed(options: dict[str, Any]) -> None:
    whole, both = next(iter(batches())), next(iter(batches(**options)))
    assert torch.equal(both.parts, whole.parts)
    changed = (both.images != whole.images).flatten(1).any(1)
    assert changed.all() and both.images.min() >= 0


def test_brightness_and_contrast_are_seen_but_not_reconstructed() -> None:
    """In the released code's order: brightness, contrast about the mean of the whole image, then the window."""
    options = {"brightness": 0.25, "contrast": (0.2, 1.8), "crop": (20, 22)}
    whole, both = next(iter(batches())), next(iter(batches(**options)))
    found = places(whole.images[:, 0], both.parts[:, 0, 0])
    assert all(found) and both.images.min() < 0
    for image, seen, part in zip(whole.images, both.images, both.parts[:, 0], strict=True):
        # seen = mean + factor · (image − mean) + brightness, with one factor and one brightness for all pixels
        slope = (seen.max() - seen.min()) / (part.max() - part.min())
        by = (seen - (image.mean() + slope * (part - image.mean()))).flatten()
        assert 0.2 <= slope <= 1.8 and by.max() - by.min() < 1e-5 and by.abs().max() <= 0.25 + 1e-5


def test_evaluation_sees_the_centre_and_twelve_around_it() -> None:
    images = load("digits").train.take(slice(16)).images.float() / 255
    one, many = (next(iter(batches(False, crop=(20, 22), test_crops=n))) for n in (1, 13))
    assert torch.equal(one.images, images[:, :, 4:24, 3:25]) and one.crops == () and len(one.views()) == 1
    assert torch.equal(many.images, one.images) and torch.equal(many.parts, one.parts)
    for view, (down, right) in zip(many.views(), CROPS_13, strict=True):
        expected = images[:, :, 4 + down : 24 + down, 3 + right : 25 + right]
        assert torch.equal(view.images, expected) and torch.equal(view.parts, expected.unsqueeze(1))
        assert torch.equal(view.labels, many.labels)


class Brightness(nn.Module):
    """Two scores: how bright a window's first pixel is, and a half."""

    def forward(self, x: Tensor) -> ModelOutput:
        first = x[:, 0, 0, 0]
        return ModelOutput(torch.stack((first, torch.full_like(first, 0.5)), dim=1), [])


def test_scores_are_averaged_before_one_is_called_wrong() -> None:
    dark, bright = torch.zeros(28, 28), torch.zeros(28, 28)
    dark[4, 3] = 1  # the central window alone begins there: 1/13 on average
    bright[1:8, 0:7] = 1
    bright[4, 3] = 0  # all but the central one: 12/13
    source = load("digits").train.take(slice(2))
    source = replace(
        source, images=(torch.stack((dark, bright)) * 255).to(torch.uint8)[:, None], labels=torch.arange(2)
    )
    config = replace(CNN, data=CROP, batch_size=2)
    scores = {}
    for n in (1, 13):
        made = Batches(replace(CROP, test_crops=n), source, 2, seed=0, train=False)
        scores[n] = evaluate(config, Brightness(), made)
        losses = [total_loss(config, Brightness(), Brightness()(v.images), v) for b in made for v in b.views()]
        assert scores[n]["loss"] == pytest.approx(torch.stack(losses).mean().item())
    assert scores[1]["error"] == 0 and scores[13]["error"] == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"crop": (29, 20)}, "28×28 in images of 28×28 with data.test_crops = 1, got 29×20"),
        ({"crop": (22, 23), "test_crops": 13}, "22×22 in images of 28×28 with data.test_crops = 13, got 22×23"),
    ],
)
def test_windows_larger_than_the_images_cost_no_work(tmp_path: Path, data: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"data.crop must be at most {message}"):
        train(replace(TINY, data=Data("digits", **data)), tmp_path / "a", progress="none")
    assert not (tmp_path / "a").exists()
    batches(False, crop=(22, 22), test_crops=13)  # the largest that has room


def test_a_split_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="split must be one of train, val, test for these data, got 'novel'"):
        split(TINY, load("digits"), "novel", CPU)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "crops"
    train(replace(TINY, data=CROP, epochs=1), out, progress="none")
    return Run(out)


def test_a_trained_model_takes_windows(run: Run) -> None:
    trained = load_model(run)
    assert trained.image_shape == (1, 20, 22) and trained.uncropped == (28, 28)
    dataset = data_for(run.experiment(), trained)
    assert dataset.image_shape == (1, 28, 28) and image_shape(run.experiment(), dataset) == (1, 20, 22)
    images = dataset.test.images[:, :, 4:24, 3:25].float() / 255
    error = (trained.model(images).scores.argmax(dim=1) != dataset.test.labels).float().mean().item()
    assert read_json(run.result)["test_error"] == pytest.approx(error)


def test_your_own_image_is_cut_at_its_centre(run: Run, tmp_path: Path) -> None:
    pixels = load("digits").test.images[0, 0]
    Image.fromarray(pixels.numpy()).save(tmp_path / "a.png")
    found = predict(run, [tmp_path / "a.png"])[str(tmp_path / "a.png")]
    scores = load_model(run).model(pixels[None, None, 4:24, 3:25].float() / 255).scores[0]
    assert [value for _, value in found] == pytest.approx(scores.topk(3).values.tolist())


def test_a_model_from_before_there_were_windows(run: Run, tmp_path: Path) -> None:
    content = torch.load(run.model, weights_only=True)
    del content["uncropped"], content["data"], content["splits"]
    config = json.loads(run.config.read_text())
    for name in ("crop", "test_crops", "brightness", "contrast", "options"):
        del config["data"][name]
    old = Run(tmp_path)
    write_json(old.config, config)
    torch.save(content, old.model)
    assert load_model(old)[3:] == ((20, 22), "", {}) and old.experiment().data == Data("digits", n_train=64, shift=0)


def test_evaluate_over_13_windows(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run.path), "--data.test_crops", "13"]) == 0
    config = run.experiment()
    config = replace(config, data=replace(config.data, test_crops=13))
    model = load_model(run).model
    expected = evaluate(config, model, split(config, load("digits"), "test", CPU))
    assert f"test error {expected['error']:.2%}, loss {expected['loss']:.5f}" in capsys.readouterr().out
    assert expected["loss"] != read_json(run.result)["test_loss"]
    assert main(["evaluate", str(run.path), "--data.test_crops", "5"]) == 2
    assert "data.test_crops must be one of 1, 13; got 5" in capsys.readouterr().err
    assert main(["evaluate", str(run.path), "--split", "novel"]) == 2
    assert "split must be one of val, test; got 'novel'" in capsys.readouterr().err


def test_two_eyes_and_novel_viewpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What small NORB's splits need: two channels, a split more, and a note on which it was."""
    from torchcaps.data import DATASETS

    def stereo(root: Path | None, image_size: tuple[int, int] | None, *, n_novel: int) -> Dataset:
        digits = load("digits")
        parts = {k: replace(v, images=v.images.expand(-1, 2, -1, -1)) for k, v in digits.splits.items()}
        novel = {"novel": parts["test"].take(slice(n_novel))}
        return Dataset("stereo", digits.classes, **parts, further=novel, note=f"{n_novel} novel")

    monkeypatch.setitem(DATASETS, "stereo", stereo)
    data = replace(CROP, name="stereo", options={"n_novel": 40}, brightness=0.2, contrast=(0.5, 1.5), test_crops=13)
    result = train(replace(TINY, data=data, epochs=1), tmp_path / "a", progress="none")
    assert result["data"] == "40 novel" and result["novel_error"] * 40 % 1 == pytest.approx(0)
    assert result["config"]["data"]["options"] == {"n_novel": 40}
    Image.fromarray(load("digits").test.images[0, 0].numpy()).save(tmp_path / "a.png")
    found = predict(Run(tmp_path / "a"), [tmp_path / "a.png"])[str(tmp_path / "a.png")]
    both = load("digits").test.images[:1, :, 4:24, 3:25].expand(-1, 2, -1, -1).float() / 255
    scores = load_model(Run(tmp_path / "a")).model(both).scores[0]
    assert [value for _, value in found] == pytest.approx(scores.topk(3).values.tolist())
    from torchcaps.report import write_report

    page = write_report(tmp_path / "a").read_text(encoding="utf-8")
    assert "Data: 40 novel." in page and "test error, novel viewpoints" in page
