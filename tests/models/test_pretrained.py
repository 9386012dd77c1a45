"""The weights that come with the library are whole, are what their cards say, and refuse what does not fit."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from study import records
from torchcaps import build, load_model
from torchcaps.data import load
from torchcaps.data.images import to_float
from torchcaps.models import Card, cards
from torchcaps.models.pretrained import FOLDER, choose_card, read_card, read_weights
from torchcaps.training.predict import predict
from torchcaps.training.recipes import RECIPES

pytest.importorskip("safetensors", reason="safetensors is not installed; it is of the extra train")

EVERY = sorted(cards())


def of(name: str, **options: object) -> torch.nn.Module:
    card = cards()[name]
    return build(card.model, card.image_shape, len(card.classes) or None, pretrained=name, **dict(options))


@pytest.mark.parametrize("name", EVERY)
def test_each_is_what_its_card_says(name: str) -> None:
    card = cards()[name]
    content = (FOLDER / f"{name}.safetensors").read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (card.sha256, card.size)
    output = of(name)(torch.rand(2, *card.image_shape))
    assert all(part.isfinite().all() for part in output if isinstance(part, torch.Tensor))


@pytest.mark.parametrize("name", EVERY)
def test_the_numbers_of_a_card_are_recorded(name: str) -> None:
    card = cards()[name]
    key = card.record.partition(",")[0].removeprefix("study/results/runs.jsonl: ")
    recorded = records.read("runs", key)
    assert (
        card.recipe in RECIPES
        and recorded["recipe"] == card.recipe
        and recorded["config"]["model"]["options"] == card.options
    )
    for what, value in card.result.items():
        assert abs(recorded[what] - value) <= 1e-4 * max(1, value)


def test_together_they_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 6e6


def test_digits_are_known(shared_mnist: Path) -> None:
    test = load("mnist", str(shared_mnist)).test
    shown = to_float(test.images[:1000])
    with torch.no_grad():
        predicted = of("mnist-small").eval()(shown).scores.argmax(dim=1)
    assert (predicted != test.labels[:1000]).sum() <= 10  # 0.3 % are wrong in 10,000; a wrong preprocessing fails


def test_other_classes_keep_the_features() -> None:
    card = cards()["mnist-small"]
    with pytest.warns(UserWarning, match=r"the weights mnist-small have 10 classes, not 3: .*have to be trained"):
        other = build(card.model, card.image_shape, 3, pretrained=True)
    same = of("mnist-small").state_dict()
    kept = {name for name, value in other.state_dict().items() if torch.equal(value, same[name])}
    assert {"conv.weight", "conv.bias", "primary.weight", "primary.bias"} <= kept
    assert not {"classes.weight", "decoder.layers.0.weight"} & kept
    assert other(torch.rand(2, *card.image_shape)).scores.shape == (2, 3)


def test_what_does_not_fit_is_refused() -> None:
    shape = cards()["mnist-small"].image_shape
    with pytest.raises(ValueError, match=r"image_shape must be \(1, 28, 28\) for the weights mnist-small, got \(1, 32"):
        build("capsnet_small", (1, 32, 32), 10, pretrained=True)
    with pytest.raises(ValueError, match="must be True or one of mnist-small for capsnet_small, got 'mnist'"):
        build("capsnet_small", shape, 10, pretrained="mnist")
    with pytest.raises(ValueError, match="pretrained must be False for capsnet, got True: weights are of caps"):
        build("capsnet", shape, 10, pretrained=True)
    with pytest.raises(ValueError, match=r"primary_scale must be 1\.0 for the weights mnist-small, or left"):
        of("mnist-small", primary_scale=2.0)
    with pytest.raises(ValueError, match="options must be those of the weights mnist-small"):
        of("mnist-small", decoder=None)
    with pytest.raises(ValueError, match=r"pretrained must be one of .*mnist-small.*; got 'digits'"):
        load_model("pretrained:digits")


def test_more_than_one_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    card = cards()["mnist-small"]
    two = {"mnist-small": card, "mnist-smaller": replace(card, name="mnist-smaller")}
    monkeypatch.setattr("torchcaps.models.pretrained.cards", lambda: two)
    with pytest.raises(ValueError, match="one of mnist-small, mnist-smaller for capsnet_small, got True"):
        choose_card("capsnet_small", True)
    assert choose_card("capsnet_small", "mnist-smaller").name == "mnist-smaller"


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    card = cards()["mnist-small"]
    with pytest.raises(ValueError, match="must hold the weights mnist-small, and is missing"):
        read_weights(card, tmp_path)
    file = shutil.copy(FOLDER / "mnist-small.safetensors", tmp_path)
    content = bytearray(Path(file).read_bytes())
    content[-1] ^= 1
    Path(file).write_bytes(content)
    with pytest.raises(ValueError, match=f"must have the sha256 {card.sha256}, got "):
        read_weights(card, tmp_path)


def test_a_card_is_read_as_it_was_written(tmp_path: Path) -> None:
    card = cards()["mnist-small"]
    path = card.write(tmp_path)
    assert isinstance(read_card(path), Card) and read_card(path) == card
    path.write_text(json.dumps({"name": "mnist-small"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"mnist-small\.json must be the card of a file of weights"):
        read_card(path)


def test_images_are_predicted_without_a_run(tmp_path: Path) -> None:
    digits = load("digits")
    for k in range(5):
        Image.fromarray(digits.test.images[k, 0].numpy()).save(tmp_path / f"{k}.png")
    found = predict("pretrained:mnist-small", [tmp_path / f"{k}.png" for k in range(5)], top=1)
    said = [int(named[0][0]) for named in found.values()]
    right = sum(a == b for a, b in zip(said, digits.test.labels[:5].tolist(), strict=True))
    assert right >= 3, (said, digits.test.labels[:5])  # of other pens, and 8×8 pixels enlarged


@pytest.mark.parametrize("name", [name for name in EVERY if not cards()[name].classes])
def test_an_autoencoder_predicts_no_classes(name: str) -> None:
    with pytest.raises(ValueError, match=f"pretrained:{name} must hold a classifier, got an auto-encoder"):
        predict(f"pretrained:{name}", ["digit.png"])
