"""What the command line changes of a recipe for one's own images, or for another model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import lightning as L
import pytest
import torch

from study.tables.kept import is_of
from tests.training.test_train import TINY
from torchcaps.cli.train_command import parse_experiment
from torchcaps.training import Experiment, Model
from torchcaps.training.callbacks import Checkpoints, OutOfTime
from torchcaps.training.config import NO_FACTORS
from torchcaps.training.recipes import recipe
from torchcaps.training.run import Run
from torchcaps.training.train import train

FOLDER = ["--data.name", "folder", "--data.root", "photos"]


def parsed(name: str, *arguments: str) -> Experiment:
    return parse_experiment(name, recipe(name), list(arguments))[0]


@pytest.mark.parametrize(("name", "model"), [("digits", "capsnet_small"), ("mnist", "capsnet")])
def test_networks_for_ones_own_images_have_factors_and_standardize(name: str, model: str) -> None:
    config = parsed(name, *FOLDER)
    assert (config.model.name, config.model.options) == (model, {"standardize": True})
    assert config.reconstruction == recipe(name).reconstruction
    assert replace(config, data=recipe(name).data, model=recipe(name).model) == recipe(name)


def test_photographs_get_no_black_frames() -> None:
    assert parsed("digits", *FOLDER).data.fill == parsed("digits-cnn", *FOLDER).data.fill == "reflection"
    assert parsed("digits", *FOLDER, "--data.fill", "border").data.fill == "border"
    assert parsed("digits").data.fill == recipe("digits").data.fill == "zeros"
    assert parsed("mnist-translation", *FOLDER).data.fill == "zeros"
    with pytest.raises(ValueError, match="data.fill must be zeros with data.pairs, got border"):
        parsed("digits-pairs", "--data.fill", "border")


def test_what_asked_for_is_done_all_the_same() -> None:
    options = [
        "--model.options.standardize",
        "false",
        "--model.options.primary_scale",
        "1.0",
        "--reconstruction",
        "0.5",
    ]
    config = parsed("digits", *FOLDER, *options, "--data.image_size", "[56, 56]")
    assert config.model.options == {"standardize": False, "primary_scale": 1.0} and config.reconstruction == 0.5
    assert config.data.image_size == (56, 56) and config.data.root == "photos"


def test_large_images_are_not_reconstructed_above_all() -> None:
    assert parsed("digits", *FOLDER, "--data.image_size", "[56, 56]").reconstruction == 0.0005 / 4
    assert parsed("digits", *FOLDER, "--data.image_size", "[14, 14]").reconstruction == 0.0005
    with pytest.raises(ValueError, match=r"data.image_size"):
        parsed("digits", *FOLDER, "--data.image_size", "[0, 14]")


def test_the_cnn_beside_them_standardizes_too() -> None:
    assert parsed("digits-cnn", *FOLDER).model.options == {"n_parameters": 705_888, "standardize": True}


@pytest.mark.parametrize("name", ["mnist-em", "mnist-templates"])
def test_other_networks_are_left_alone(name: str) -> None:
    config = parsed(name, *FOLDER)
    assert replace(config, data=recipe(name).data) == recipe(name)


def test_recipes_on_their_own_data_are_as_they_were() -> None:
    assert parsed("digits") == recipe("digits") and recipe("digits").model.options == NO_FACTORS


def test_factors_of_a_capsnet_are_no_options_of_another_model() -> None:
    assert parsed("digits", "--model.name", "matched_cnn", "--loss", "cross_entropy").model.options == {}
    assert parsed("digits", "--model.name", "capsnet_deep").model.options == NO_FACTORS


def test_results_of_before_there_were_factors_are_those_of_their_recipe() -> None:
    config = recipe("digits").to_dict()
    assert is_of({"config": config | {"model": {"name": "capsnet_small", "options": {}}}}, recipe("digits"))
    other = {"name": "capsnet_small", "options": {"primary_scale": 0.5}}
    assert not is_of({"config": config | {"model": other}}, recipe("digits"))


def test_a_run_of_before_there_were_factors_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as one that was never broken off."""
    config = replace(TINY, model=Model("capsnet", TINY.model.options | NO_FACTORS))
    wanted = train(config, tmp_path / "unbroken", progress="none")
    run = Run(tmp_path / "old")

    def killed(self: Checkpoints, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.save(trainer)
        raise OutOfTime

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_train_epoch_end", killed)
        with pytest.raises(OutOfTime):
            train(config, run.path, progress="none")
    run.config.write_text(json.dumps(config.to_dict() | {"model": {"name": "capsnet", "options": TINY.model.options}}))
    content = torch.load(run.checkpoint, weights_only=True)
    content["state_dict"] = {k: v for k, v in content["state_dict"].items() if not k.endswith(".scale")}
    torch.save(content, run.checkpoint)
    result = train(config, run.path, progress="none")
    assert all(result[key] == wanted[key] for key in ("test_error", "val_loss", "test_loss"))
    other = replace(config, model=Model("capsnet", config.model.options | {"vote_scale": 0.5}))
    with pytest.raises(ValueError, match=r"another experiment \(model.options.vote_scale = nothing there, 0.5 here"):
        train(other, run.path, progress="none")


def test_options_of_the_recipes_data_are_not_those_of_ones_own() -> None:
    """Such as which toy of small NORB validates; what is given besides counts."""
    assert recipe("smallnorb-em-small").data.options == {"val_toy": None}
    assert parsed("smallnorb-em-small", *FOLDER).data.options == {}
    assert parsed("mnist", *FOLDER, "--data.options.groups", "^(p)").data.options == {"groups": "^(p)"}
