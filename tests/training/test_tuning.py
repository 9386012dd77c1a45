"""Settings are chosen by validation alone, with as many trials for every kind of network."""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import study.cli
from study.tables.kept import results_of_runs
from study.tests.test_recipes import SHAPES
from torchcaps.cli import main
from torchcaps.cli.train_command import parse_experiment
from torchcaps.data import DATASETS, Dataset, Images
from torchcaps.models import MODELS, build
from torchcaps.training.config import Experiment, Model, Optim
from torchcaps.training.files import read_json, write_json
from torchcaps.training.module import NonFiniteLoss
from torchcaps.training.recipes import RECIPES, recipe
from torchcaps.training.run import flat
from torchcaps.training.train import train
from torchcaps.training.tuning import trials, tune


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A recipe "tiny" on made-up images; counts how often data were asked for."""
    asked: list[int] = []

    def made_up(root: Path | None = None, **_: object) -> Dataset:
        asked.append(1)
        images = Images(torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8), torch.arange(40) % 10)
        return Dataset("digits", tuple("0123456789"), images, images, images)

    def short() -> Experiment:
        model = Model("capsnet_small", {"channels": 4, "n_types": 2})
        return replace(recipe("digits"), recipe="tiny", epochs=4, batch_size=20, model=model, threads=1, device="cpu")

    monkeypatch.setitem(DATASETS, "digits", made_up)
    monkeypatch.setitem(RECIPES, "tiny", short)
    return asked


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("mnist-adam", "reconstruction", (0.0005, 0.01)),
        ("cifar10", "optim.weight_decay", (2e-7, 2e-5)),
        ("smallnorb-em-held-out", "optim.weight_decay", (2e-7, 2e-5)),
        ("smallnorb-cross-entropy", "optim.weight_decay", (2e-7, 2e-5)),
        ("smallnorb-margin-loss", "optim.weight_decay", (2e-7, 2e-5)),
        ("expanded-mnist-cnn", "model.options.dropout", (0.0, 0.5)),
    ],
)
def test_every_kind_of_network_has_six_trials(name: str, field: str, values: tuple[float, float]) -> None:
    config = recipe(name)
    found = trials(config)
    rates = [config.optim.lr * factor for factor in (1 / 3, 1, 3)]
    assert [settings for settings, _ in found] == [{"optim.lr": lr, field: value} for lr in rates for value in values]
    before = flat(config.to_dict()) | {"trial": True, "stop_at": None}
    for settings, trial in found:
        assert flat(trial.to_dict()) == before | settings


def test_whether_there_is_a_decoder_is_asked_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, decoder, field in (("capsnet_bare", None, "optim.weight_decay"), ("mine", [8], "reconstruction")):
        monkeypatch.setitem(MODELS, name, partial(MODELS["capsnet_small"], decoder=decoder))
        settings, _ = trials(replace(recipe("digits"), model=Model(name)))[0]
        assert field in settings


@pytest.mark.parametrize("name", [name for name in RECIPES if recipe(name).data.task.classifies])
def test_every_recipe_of_a_classifier_has_trials_that_differ(name: str) -> None:
    """A weight of a reconstruction that is not there would be the same trial twice, and dropout no capsules take."""
    config = recipe(name)
    settings, trial = trials(config)[0]
    kind = list(settings)[1]
    names = inspect.signature(MODELS[config.model.name]).parameters
    assert ("dropout" in kind) == ("cnn" in config.model.name) == ("dropout" in names)
    channels, *size = SHAPES[config.data.name]
    size = [side + 8 * config.data.pairs for side in size]  # of two, each shifted by up to 4 pixels
    with torch.device("meta"):
        model = build(config.model.name, (channels, *(config.data.crop or size)), 10, **trial.model.options)
    assert (kind == "reconstruction") == (getattr(model, "decoder", None) is not None)


def test_the_lowest_validation_error_wins_and_no_test_image_is_seen(
    tiny: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter((0.5, 0.3, 0.2, 0.4, 0.2, 0.9))
    seen: list[int] = []

    def scripted(config: Experiment, model: object, batches: Any, **_: object) -> dict[str, float]:
        seen.append(config.epochs)
        return {"error": next(errors), "loss": 1.0}

    monkeypatch.setattr("torchcaps.training.record.evaluate", scripted)
    said: list[str] = []
    options: dict[str, Any] = {"runs": tmp_path, "threads": 1, "device": "cpu", "progress": "none", "say": said.append}
    found = tune("tiny", keep_in=tmp_path / "kept", **options)
    assert seen == [2] * 6  # validation of six trials, each of a third of four epochs, and no other split
    assert found["best"] == found["trials"][2]["settings"] == {"optim.lr": 0.002, "reconstruction": 0.0005}
    assert "0.002" in said[-1] and len(said) == 7
    assert found == read_json(tmp_path / "tuning" / "tiny.json") == read_json(tmp_path / "kept" / "tiny.json")
    first = read_json(tmp_path / "tuning" / "tiny" / "0-of-2-epochs" / "result.json")
    assert first["val_error"] == 0.5 and not any(key.startswith("test") for key in first)
    assert tune("tiny", keep_in=tmp_path / "kept", **options) == found and len(tiny) == 6  # nothing is trained again
    with pytest.raises(ValueError, match=r"tiny.json holds the outcome of other settings or epochs"):
        tune("tiny", epochs=1, keep_in=tmp_path / "kept", **options)
    assert len(tiny) == 6
    kept = tmp_path / "kept" / "tiny.json"
    older = read_json(kept)
    del older["config"]["optim"]["name"]  # of a version that did not know it
    write_json(kept, older)
    assert tune("tiny", keep_in=tmp_path / "kept", **options) == found
    write_json(kept, read_json(kept) | {"best": {}})
    with pytest.raises(ValueError, match=r"tiny.json holds another outcome"):
        tune("tiny", keep_in=tmp_path / "kept", **options)
    with pytest.raises(ValueError, match=r"tiny.json holds another outcome"):
        tune("tiny", keep_in=tmp_path / "kept", **(options | {"runs": tmp_path / "new"}))
    assert len(tiny) == 6 and not (tmp_path / "new").exists()
    assert read_json(kept)["best"] == {}


def test_a_trial_that_diverges_is_passed_over(tiny: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def scripted(config: Experiment, *_: object, **__: object) -> dict[str, Any]:
        tried.append(config.optim.lr)
        if config.optim.lr > 0.001:
            raise NonFiniteLoss("loss is nan in step 3")
        facts = ("epochs", "seconds", "data", "device", "versions", "commit")
        return {"val_error": 0.1 * len(tried), **dict.fromkeys(facts, "")}

    monkeypatch.setattr("torchcaps.training.tuning.train", scripted)
    options: dict[str, Any] = {"runs": tmp_path, "say": lambda _: None}
    found = tune("tiny", **options)
    assert [trial["val_error"] for trial in found["trials"]] == [0.1, 0.2, None, None, None, None]
    assert found["trials"][2]["because"] == "loss is nan in step 3" and found["best"]["reconstruction"] == 0.0005
    monkeypatch.setitem(RECIPES, "tiny", lambda: replace(recipe("digits"), recipe="tiny", optim=Optim(lr=1.0)))
    with pytest.raises(ValueError, match="tiny.json holds the outcome of other settings or epochs: remove it"):
        tune("tiny", **options)
    with pytest.raises(ValueError, match="every trial diverged"):
        tune("tiny", **options | {"runs": tmp_path / "others"})


def test_a_trial_is_no_result(
    tiny: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "tiny", "--epochs", "1"]
    assert main([*arguments, "--trial", "true"]) == 0
    said = capsys.readouterr().out
    assert "validation error" in said and "test error" not in said
    for run, command in ((main, ["report"]), (main, ["evaluate"]), (study.cli.main, ["measure", "routing"])):
        assert run([*command, "runs/tiny-trial"]) == 2
        assert "a trial, which has seen no test image" in capsys.readouterr().err
    assert main(["evaluate", "runs/tiny-trial", "--split", "val"]) == 0
    assert main(arguments) == 0 and "test error" in capsys.readouterr().out  # in a folder of its own
    assert main([*arguments, "--out", "runs/tiny-trial"]) == 2
    assert "trial = True there, False here" in capsys.readouterr().err
    assert results_of_runs([recipe("tiny")], [Path("runs/tiny-trial")]) == []


def test_nothing_is_chosen_by_what_was_trained_on(
    tiny: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = DATASETS["digits"]
    monkeypatch.setitem(DATASETS, "digits", lambda root, image_size: replace(made(), held_out=False))
    config = replace(recipe("tiny"), epochs=1)
    with pytest.raises(ValueError, match="data must hold validation images out"):
        tune("tiny", runs=tmp_path)
    with pytest.raises(ValueError, match="data must hold validation images out"):
        train(replace(config, trial=True), tmp_path / "a")
    assert not any(tmp_path.iterdir())
    assert "test_error" in train(config, tmp_path / "a", progress="none")  # a schedule that was fixed before


def test_tuning_by_the_command(tiny: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "tiny", "--runs", str(tmp_path), "--smoke", "--threads", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.count("validation error") == 6
    assert len(json.loads((tmp_path / "tuning" / "tiny-smoke.json").read_text())["trials"]) == 6


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for label in ("blue", "red"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for k in range(20):
            Image.new("L", (12, 12), k + 100 * (label == "red")).save(tmp_path / "photos" / label / f"{k}.png")
    return tmp_path / "photos"


def test_tuning_on_images_of_ones_own(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, with the command that trains what was found; and the outcome of others is kept apart."""
    monkeypatch.chdir(tmp_path)
    fields = ["--data.name", "folder", "--data.image_size", "[28, 28]", "--batch_size", "14", "--optim.lr", "0.01"]
    fields += ["--model.options.n_parameters", "3000"]
    place = ["--data.root", "photos", "--threads", "1", "--device", "cpu"]
    assert main(["tune", "digits-cnn", *fields, *place, "--epochs", "1", "--runs", "mine"]) == 0
    said = capsys.readouterr().out
    assert said.count("validation error") == 6
    found = json.loads(Path("mine/tuning/digits-cnn.json").read_text())
    assert [trial["settings"]["optim.lr"] for trial in found["trials"]] == pytest.approx(
        [0.01 / 3] * 2 + [0.01] * 2 + [0.03] * 2
    )
    assert found["config"]["data"]["name"] == "folder" and found["config"]["batch_size"] == 14
    config = read_json(Path("mine/tuning/digits-cnn/0-of-1-epochs/config.json"))
    assert config["data"]["root"] == str(photos.resolve()) and config["trial"] is True
    command = next(line for line in said.splitlines() if line.startswith("next: "))
    best = found["best"]
    given = [*fields[: fields.index("--optim.lr")], "--model.options.n_parameters", "3000", *place[:2]]
    chosen = [text for name in best for text in (f"--{name}", repr(best[name]))]
    wanted = ["torchcaps", "train", "digits-cnn", *given, *chosen, "--out", "mine/digits-cnn-tuned"]
    assert command == "next: " + shlex.join(wanted)
    arguments = shlex.split(command)[2:]
    assert main([*arguments, *place[2:], "--epochs", "1"]) == 0
    trained = json.loads(Path("mine/digits-cnn-tuned/result.json").read_text())["config"]
    assert (trained["optim"]["lr"], trained["batch_size"]) == (best["optim.lr"], 14)
    # Again nothing is trained; of other images nothing is taken for these; the recipe itself is another.
    assert main(["tune", "digits-cnn", *fields, *place, "--epochs", "1", "--runs", "mine"]) == 0
    shutil.copytree(photos, tmp_path / "others")
    Image.new("L", (12, 12), 250).save(tmp_path / "others" / "red" / "more.png")
    other = ["others" if text == "photos" else text for text in place]
    assert main(["tune", "digits-cnn", *fields, *other, "--epochs", "1", "--runs", "mine"]) == 2
    assert "holds the run of other images" in capsys.readouterr().err
    assert main(["tune", "digits-cnn", *place[2:], "--epochs", "1", "--runs", "mine"]) == 2
    assert "holds the outcome of other settings or epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["--nonsense", "3"], "nonsense"),
        (["--data.name", "nonsense"], "data.name must be one of"),
        (["--reconstruction", "0.1"], "reconstruction must be left alone in tuning, which sets it itself"),
        (["--reconstruction=0.1"], "reconstruction must be left alone in tuning, which sets it itself"),
        (["--stop_at", "0.1"], "stop_at must be left alone in tuning, which sets it itself; got 0.1"),
        (["--out", "here"], "out must be left alone in tuning, which puts its runs below --runs; got here"),
        (["--batch_size", "64", "--keep", "kept"], "keep_in must be None for fields of one's own: it takes digits as"),
    ],
)
def test_fields_that_are_none_or_set_by_tuning(
    fields: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "digits", *fields]) == 2
    assert message in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_other_commands_have_no_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "runs/a", "--data.name", "folder"])
    assert "unrecognized arguments: --data.name folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_went_through_the_command_line_is_itself(name: str) -> None:
    """Else its outcome could not be kept."""
    assert flat(parse_experiment(name, recipe(name), [])[0].to_dict()) == flat(recipe(name).to_dict())


def test_a_reconstruction_that_weighs_otherwise_does_so_in_the_trials(
    tiny: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of larger images."""
    weights: list[float] = []

    def scripted(config: Experiment, *_: object, **__: object) -> dict[str, Any]:
        weights.append(config.reconstruction)
        raise NonFiniteLoss("loss is nan in step 3")

    monkeypatch.setattr("torchcaps.training.tuning.train", scripted)
    for half, wanted in ((recipe("tiny").reconstruction / 2, (0.00025, 0.005)), (0.0, (0.0005, 0.01))):
        weights.clear()
        with pytest.raises(ValueError, match="every trial diverged"):
            tune("tiny", replace(recipe("tiny"), reconstruction=half), runs=tmp_path, say=lambda _: None)
        assert weights == pytest.approx(wanted * 3)


def test_a_configuration_of_another_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="config must be of the recipe digits, got one of mnist"):
        tune("digits", recipe("mnist"), runs=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "nonsense"}, "recipe must be one that torchcaps list shows"),
        ({"name": "mnist-templates"}, "recipe must be one of a classifier or of masks, got mnist-templates"),
        ({"epochs": 0}, "epochs must be an integer of at least 1"),
        ({"quick": True, "keep_in": "results"}, "keep_in must be None for a smoke run"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tune(**({"name": "digits", "runs": tmp_path} | arguments))
    assert not any(tmp_path.iterdir())
