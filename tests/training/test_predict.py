"""Predictions for image files: by capsules and by CNNs, in grey and in colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.training import Data, Experiment, Model
from torchcaps.training import predict as module
from torchcaps.training.checkpoint import load_model
from torchcaps.training.predict import predict
from torchcaps.training.run import Run
from torchcaps.training.tasks import OverlappingPairs
from torchcaps.training.train import train


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of red and of blue images, which are alike in grey."""
    root = tmp_path_factory.mktemp("colours")
    random = np.random.default_rng(0)
    for name, colour in (("red", (250, 0, 0)), ("blue", (0, 0, 250))):
        (root / name).mkdir()
        for k in range(20):
            pixels = np.clip(np.array(colour) + random.integers(-5, 5, (12, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{k}.png")
    return root


def test_a_cnn_gives_probabilities_and_sees_colour(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Experiment(
        data=Data("folder", root=str(colours), image_size=(8, 8), shift=0),
        model=Model("matched_cnn", {"n_parameters": 3000}),
        loss="cross_entropy",
        epochs=1,
        batch_size=8,
        threads=1,
        device="cpu",
    )
    train(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    paths = [*sorted((colours / "red").iterdir()), *sorted((colours / "blue").iterdir())]
    found = predict(run, paths)
    assert list(found) == [str(path) for path in paths]
    assert predict(str(run.path), paths[:1]) == {str(paths[0]): found[str(paths[0])]}
    assert [len(named) for named in predict(run, paths[:2], top=1).values()] == [1, 1]
    with pytest.raises(ValueError, match="top must be an integer of at least 1, got 0"):
        predict(run, paths, top=0)
    with pytest.raises(ValueError, match=r"paths must be several, such as \['red.png'\], got one"):
        predict(run, "red.png")
    with pytest.raises(ValueError, match="paths must be several"):
        predict(run, paths[0])  # type: ignore[arg-type]
    pixels = np.stack([np.array(Image.open(path).resize((8, 8), Image.Resampling.BICUBIC)) for path in paths])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        wanted = load_model(run).model(images).scores.softmax(dim=1)  # blue, red
    for (first, second), probabilities in zip(found.values(), wanted.tolist(), strict=True):
        assert {first[0], second[0]} == {"blue", "red"} and first[1] >= second[1]
        assert [dict((first, second))[name] for name in ("blue", "red")] == pytest.approx(probabilities, abs=1e-5)
    named = module._named(
        load_model(run), torch.from_numpy(pixels).permute(0, 3, 1, 2), False, 3, OverlappingPairs(), "cross_entropy"
    )
    with torch.no_grad():
        each = load_model(run).model(images).scores.sigmoid()  # of two objects, each by itself
    assert [probabilities for _, probabilities in (one[0] for one in named)] == pytest.approx(
        each.amax(dim=1).tolist(), abs=1e-5
    )
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match="text.png cannot be read as an image"):
        predict(run, [*paths[:2], tmp_path / "text.png", *paths[2:]])
    monkeypatch.setattr(module, "_AT_ONCE", 7)  # more files than are taken at once
    for one, two in zip(found.values(), predict(run, paths).values(), strict=True):
        assert [name for name, _ in one] == [name for name, _ in two]
        assert [value for _, value in one] == pytest.approx([value for _, value in two], abs=1e-5)


def test_capsules_that_cross_entropy_trained_give_probabilities(colours: Path, tmp_path: Path) -> None:
    """Their scores are logits, of any size."""
    config = Experiment(
        data=Data("folder", root=str(colours), image_size=(8, 8), shift=0),
        model=Model("self_routing_resnet"),
        loss="cross_entropy",
        epochs=1,
        batch_size=8,
        threads=1,
        device="cpu",
    )
    result = train(config, tmp_path / "run")
    paths = sorted((colours / "red").iterdir())
    for named in predict(tmp_path / "run", paths).values():
        assert sum(probability for _, probability in named) == pytest.approx(1, abs=1e-5)
    assert 0 <= result["test_ece"] <= 1 and result["test_auc_macro"] != 0.5
