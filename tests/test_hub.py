"""Networks in the form of the Hugging Face Hub, in local folders: nothing is uploaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed; it is of the extra hub")
from safetensors.torch import load_file, save_file

from torchcaps import recipe, train
from torchcaps.hub import HubModel
from torchcaps.training.config import smoke


def mine() -> HubModel:
    return HubModel("capsnet_small", (1, 28, 28), ["cat", "dog"], {"channels": 8, "n_types": 2})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    model, x = mine().eval(), torch.rand(2, 1, 28, 28)
    model.save_pretrained(tmp_path)
    again = HubModel.from_pretrained(str(tmp_path)).eval()
    assert torch.equal(again(x).scores, model(x).scores) and again.classes == ["cat", "dog"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_name"] == "capsnet_small" and config["options"] == {"channels": 8, "n_types": 2}
    assert "torchcaps" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_file_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    mine().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.conv.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match=r"Missing key.*model\.conv\.weight"):
        HubModel.from_pretrained(str(tmp_path))


def test_the_network_of_a_run(tmp_path: Path) -> None:
    config = smoke(recipe("digits"))
    train(config, tmp_path / "run")
    model = HubModel.from_run(tmp_path / "run")
    model.save_pretrained(tmp_path / "hub")
    assert model.classes == list("0123456789")
    assert HubModel.from_pretrained(str(tmp_path / "hub")).model(torch.rand(1, 1, 28, 28)).scores.shape == (1, 10)


@pytest.mark.parametrize("classes", ["cat", ["a", "a"]])
def test_classes_are_different_names(classes: list[str] | str) -> None:
    with pytest.raises(ValueError, match="classes must be a list of different names"):
        HubModel("capsnet_small", (1, 28, 28), classes)
