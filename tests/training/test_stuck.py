"""Training that is stuck says so."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.training.test_train import CNN, PAIRS, TINY
from torchcaps.models import MODELS, ModelOutput, build
from torchcaps.ops import Capsules
from torchcaps.training.config import NO_FACTORS, Experiment, Model
from torchcaps.training.stuck import _long
from torchcaps.training.train import train

SATURATED = replace(TINY, model=Model("capsnet_small", {**NO_FACTORS, "decoder": None, "channels": 32}))
SATURATED = replace(SATURATED, optim=replace(SATURATED.optim, lr=3e-2, warmup=0.0), reconstruction=0)


class OneClass(nn.Module):
    """Names the third class, whatever it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(10))

    def forward(self, x: Tensor) -> ModelOutput:
        third = torch.zeros(10).index_fill(0, torch.tensor(3), 1e6)
        return ModelOutput((self.scores + third).expand(len(x), 10))


def warnings(config: Experiment, out: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, "torchcaps"):
        train(config, out, progress="none")
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch")]


def test_saturated_capsules_are_told_in_the_epoch_that_saturates_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = warnings(SATURATED, tmp_path / "run", caplog)
    assert len(said) == 1 or "one class" in said[1]
    assert said[0].startswith("epoch 1: nearly all capsules of layer 0")
    assert "longer than 0.99" in said[0] and "docs/do/stuck.md" in said[0] and "a lower optim.lr" in said[0]


@pytest.mark.parametrize("config", [TINY, CNN, PAIRS], ids=["capsules", "cnn", "pairs"])
def test_networks_that_learn_are_told_nothing(
    config: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not [said for said in warnings(config, tmp_path / "run", caplog) if "saturated" in said]


def test_one_class_for_all_images_is_told_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "one_class", lambda image_shape, n_classes: OneClass())
    config = replace(CNN, model=Model("one_class"))
    said = warnings(config, tmp_path / "run", caplog)
    assert len(said) == 1 and said[0].startswith("epoch 2: all validation images are given one class, 3.")


def test_activations_that_are_no_lengths_are_none_that_saturate() -> None:
    pose = torch.full((2, 3, 4), 0.4999)
    assert _long(Capsules(pose, pose.norm(dim=-1))) == 1  # all of 0.9998
    assert _long(Capsules(pose, torch.full((2, 3), 0.5))) == 0
    model = build("matrix_capsnet_small", (1, 28, 28), 3)
    with torch.no_grad():
        assert all(_long(capsules) == 0 for capsules in model(torch.rand(1, 1, 28, 28)).capsules)
