"""The run folder: nothing is overwritten, nothing half-written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from torchcaps.training import Data, Experiment, Model, Optim
from torchcaps.training.errors_in_words import further_errors
from torchcaps.training.files import write_atomically, write_json, write_tensors
from torchcaps.training.run import Run, experiment_from, with_data_in


def test_configuration_survives_the_file(tmp_path: Path) -> None:
    config = Experiment(
        "x",
        Data("folder", "there", (20, 30), contrast=(0.5, 2.0), crop=(9, 8), options={"a": [1, None]}),
        Model("capsnet", {"hidden": [{"n_types": 3}]}),
        seed=7,
    )
    run = Run(tmp_path / "a")
    run.open(config)
    assert run.experiment() == config
    assert experiment_from(json.loads(run.config.read_text())) == config
    data = replace(config.data, root=Path("there"), image_size=[20, 30], contrast=[0.5, 2.0], crop=[9, 8])  # type: ignore[arg-type]
    assert replace(config, data=data) == config
    run.open(config)  # the same again is a resumption
    run.open(replace(config, threads=2, device="cpu", data=replace(config.data, root="elsewhere")))


def test_fields_that_a_run_had_not_yet_have_their_defaults(tmp_path: Path) -> None:
    config, run = Experiment("x", epochs=3), Run(tmp_path)
    old = config.to_dict()
    for name in ("brightness", "contrast", "crop", "test_crops", "options"):
        del old["data"][name]
    write_json(run.config, old)
    run.metrics.write_text("epoch\n")
    assert run.experiment() == config
    run.open(config)  # it can be resumed
    with pytest.raises(ValueError, match=r"another experiment \(data.brightness = 0.0 there, 0.5 here\)"):
        run.open(replace(config, data=Data(brightness=0.5)))


def test_a_folder_where_nothing_was_trained_yet_is_free(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.open(Experiment("x"))
    run.open(Experiment("x", epochs=3))
    assert run.experiment().epochs == 3


def test_folder_of_another_experiment(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.open(Experiment("x"))
    run.metrics.write_text("epoch\n")
    with pytest.raises(
        ValueError, match=r"holds a run of another experiment \(epochs = 10 there, 11 here, optim.lr = "
    ):
        run.open(replace(Experiment("x"), epochs=11, optim=replace(Experiment().optim, lr=0.5)))


def test_an_option_of_none_is_not_one_left_out(tmp_path: Path) -> None:
    """All toys train with ``val_toy: None``; without it one is held out."""
    run = Run(tmp_path)
    run.open(Experiment("x", data=Data("smallnorb", options={"val_toy": None})))
    run.metrics.write_text("epoch\n")
    with pytest.raises(ValueError, match=r"data.options.val_toy = None there, nothing here"):
        run.open(Experiment("x", data=Data("smallnorb")))


def test_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        Run(tmp_path).open(Experiment("x"))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_configuration_of_somebody_else(tmp_path: Path) -> None:
    """The name is a common one."""
    (tmp_path / "config.json").write_text('{"my": "project"}')
    with pytest.raises(ValueError, match=r"not the configuration of a run .*: name another folder by out"):
        Run(tmp_path).open(Experiment("x"))
    assert (tmp_path / "config.json").read_text() == '{"my": "project"}'
    ours = Run(tmp_path / "ours")
    ours.open(Experiment("x"))
    (ours.path / "notes").mkdir()
    (ours.path / "notes" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty and holds no run, but .*thesis.txt: name another folder"):
        ours.open(Experiment("y"))
    assert ours.experiment() == Experiment("x")


def test_a_number_is_the_same_with_and_without_a_point(tmp_path: Path) -> None:
    """A parser gives the default 2000 back as 2000.0."""
    run = Run(tmp_path)
    run.open(Experiment("x"))
    run.metrics.write_text("epoch\n")
    run.open(replace(Experiment("x"), optim=replace(Experiment().optim, decay_steps=2000.0)))
    run = Run(tmp_path / "options")
    run.open(Experiment("x", model=Model("capsnet", {"leaky": True})))
    run.metrics.write_text("epoch\n")
    with pytest.raises(ValueError, match=r"model.options.leaky = True there, 1 here"):
        run.open(Experiment("x", model=Model("capsnet", {"leaky": 1})))


def test_a_home_folder_may_be_named_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Run("~/runs/mine").path == tmp_path / "runs" / "mine"


def test_data_that_were_moved_are_found_again(tmp_path: Path) -> None:
    """By whatever reads the configuration once the run is finished."""
    run = Run(tmp_path)
    run.open(Experiment("x", data=Data(root="/old"), threads=1))
    run.metrics.write_text("epoch\n")
    run.open(Experiment("x", data=Data(root="/new"), threads=2))
    assert run.experiment() == Experiment("x", data=Data(root="/new"), threads=1)


def test_numbers_of_numpy_can_be_written(tmp_path: Path) -> None:
    config, run = (
        Experiment(
            "x",
            Data(n_train=np.int64(9), flip=np.bool_(True), contrast=[np.float32(0.5), 2], options={"k": [np.int8(1)]}),  # type: ignore[arg-type]
            Model(options={"share": {"of": np.float32(0.25)}}),
            Optim(lr=np.float32(0.5)),
            epochs=np.int64(3),  # type: ignore[arg-type]
            seed=np.uint8(2),  # type: ignore[arg-type]
        ),
        Run(tmp_path),
    )
    run.open(config)
    assert run.experiment() == Experiment(
        "x",
        Data(n_train=9, flip=True, contrast=(0.5, 2), options={"k": [1]}),
        Model(options={"share": {"of": 0.25}}),
        Optim(lr=0.5),
        epochs=3,
        seed=2,
    )


def test_no_two_experiments_share_their_options() -> None:
    Experiment().model.options["n_iters"] = 1
    assert Experiment().model.options == {}


def test_the_folder_of_the_data_sets_folders_will_do(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "folder").mkdir()
    mnist, own = Experiment("x", Data("mnist", root="gone")), Experiment("x", Data("folder", root="gone"))
    for root in (tmp_path, tmp_path / "mnist", str(tmp_path)):
        assert with_data_in(mnist, root).data.root == str(tmp_path / "mnist")
    assert with_data_in(mnist, tmp_path / "folder").data.root == str(tmp_path / "folder")
    assert with_data_in(own, tmp_path).data.root == str(tmp_path)  # whose class is called "folder"
    assert with_data_in(mnist, None) == mnist


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a run folder, but it has no config.json"):
        Run(tmp_path).experiment()
    (tmp_path / "config.json").write_text('{"recipe": ')
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        Run(tmp_path).experiment()
    for content in ("{}", '{"data": {"colour": 1}}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"config.json: not the configuration of a run of this version"):
            Run(tmp_path).experiment()


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old and whole")

    def fails(temporary: Path) -> None:
        temporary.write_text("new and ha")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, fails)
    assert path.read_text() == "old and whole"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named() -> None:
    with pytest.raises(OSError, match=r"/dev took no further file; is the disk full"):
        write_tensors(Path("/dev/full"), {"weight": torch.zeros(1000)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"epochs": 2.5}, "epochs must be an integer of at least 1, got 2.5"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        (
            {"loss": "hinge"},
            "loss must be one of margin, spread, cross_entropy, dice, dice_cross_entropy, squared_error, own; "
            "got 'hinge'",
        ),
        ({"precision": "16"}, "precision must be one of 32, bf16; got '16'"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda, mps; got 'tpu'"),
        ({"reconstruction": -1.0}, "reconstruction must be at least 0 and finite, got -1.0"),
        ({"reconstruction": float("nan")}, "reconstruction must be at least 0 and finite, got nan"),
        ({"data": Data(shift=-1)}, "data.shift must be an integer of at least 0, got -1"),
        ({"data": Data(n_train=0)}, "data.n_train must be an integer of at least 1, got 0"),
        ({"data": Data(n_pairs=(64, 0))}, r"data.n_pairs must be two integers of at least 1, got \(64, 0\)"),
        ({"data": Data(image_size=(0, 5))}, r"data.image_size must be two integers of at least 1, got \(0, 5\)"),
        ({"data": Data(image_size=28)}, "data.image_size must be two numbers, got 28"),  # type: ignore[arg-type]
        ({"data": Data(crop=(20, 20, 20))}, r"data.crop must be two numbers, got \(20, 20, 20\)"),  # type: ignore[arg-type]
        ({"data": Data(n_pairs=(500,))}, r"data.n_pairs must be two numbers, got \(500,\)"),  # type: ignore[arg-type]
        ({"data": Data(contrast=(1.0,))}, r"data.contrast must be two numbers, got \(1.0,\)"),  # type: ignore[arg-type]
        ({"data": Data(blend="mean")}, "data.blend must be one of sum, max; got 'mean'"),
        ({"data": Data(scale=1.0)}, "data.scale must be 0 … 0.99 and finite, got 1.0"),
        ({"data": Data(degrees=-3.0)}, "data.degrees must be 0 … 180 and finite, got -3.0"),
        ({"data": Data(crop=(0, 5))}, r"data.crop must be two integers of at least 1, got \(0, 5\)"),
        (
            {"data": Data(options={"root": "x"})},
            "data.options must not hold root, which is data.root; got {'root': 'x'}",
        ),
        (
            {"model": Model("capsnet", {"n_classes": 7})},
            "model.options must not hold n_classes, which follows from model.name and the data",
        ),
        ({"consistency": 1.0}, "consistency must be 0 without data.transformed, as nothing moves; got 1.0"),
        ({"data": Data(brightness=-0.1)}, "data.brightness must be at least 0 and finite, got -0.1"),
        ({"data": Data(contrast=(1.5, 0.5))}, r"data.contrast\[0\] must be 0 … 0.5 and finite, got 1.5"),
        ({"data": Data(contrast=(0.0, -1.0))}, r"data.contrast\[1\] must be at least 0 and finite, got -1.0"),
        ({"data": Data(test_crops=5)}, "data.test_crops must be one of 1, 13; got 5"),  # type: ignore[arg-type]
        ({"data": Data(test_crops=13)}, "data.crop must be given for data.test_crops = 13, got None"),
        ({"data": Data(pairs=True, crop=(9, 9))}, r"data.crop must be None with data.pairs, got \(9, 9\)"),
        (
            {"model": Model("capsnet", {"x": [{"y": {1}}]})},
            r"model.options must hold finite numbers, .* got x=\[\{'y': \{1\}\}\]",
        ),
        (
            {"data": Data(options={"x": Path("a")})},
            "data.options must hold finite numbers, texts, .* as they are kept in files",
        ),
        (
            {"data": Data(pairs=True, degrees=3.0)},
            "data.degrees must be 0.0 with data.pairs, got 3.0",
        ),
        (
            {"optim": Optim(schedule="cosin")},
            "optim.schedule must be one of exponential, cosine, constant; got 'cosin'",
        ),
        ({"optim": Optim(lr="1e-3")}, "optim.lr must be at least 1e-12 and finite, got '1e-3'"),  # type: ignore[arg-type]
        ({"data": Data(degrees=True)}, "data.degrees must be 0 … 180 and finite, got True"),
        ({"recipe": 5}, "recipe must be a text, got 5"),
        ({"recipe": "../it"}, "recipe must be a name without slashes, got '../it'"),
        ({"recipe": ""}, "recipe must be a name without slashes, got ''"),
        ({"trial": "false"}, "trial must be True or False, got 'false'"),
        ({"compile": 1}, "compile must be True or False, got 1"),
        ({"data": Data(flip="no")}, "data.flip must be True or False, got 'no'"),  # type: ignore[arg-type]
        ({"data": {"name": "digits"}}, "data must be a Data, got {'name': 'digits'}"),
        ({"data": Data(options=None)}, "data.options must be a dict, got None"),  # type: ignore[arg-type]
        ({"optim": Optim(eps=0.0)}, "optim.eps must be at least 1e-30 and finite, got 0.0"),
        (
            {"model": Model("capsnet", {"bias_init": float("inf")})},
            "model.options must hold finite .* got bias_init=inf",
        ),
        ({"optim": Optim(lr=float("inf"))}, "optim.lr must be at least 1e-12 and finite, got inf"),
        ({"optim": Optim(warmup=5.0)}, "optim.warmup must be 0 … 0.99 and finite, got 5.0"),
        ({"optim": Optim(decay_steps=0)}, "optim.decay_steps must be at least 1e-12 and finite, got 0"),
        ({"optim": Optim(decay=-0.5)}, "optim.decay must be 1e-12 … 1 and finite, got -0.5"),
    ],
)
def test_bad_values(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment(**change)


def test_a_precision_without_quotes() -> None:
    assert Experiment(precision=32) == Experiment(precision="32")  # type: ignore[arg-type]


def test_errors_on_splits_of_any_name_have_words() -> None:
    result = {"val_error": 0.1, "test_error": 0.2, "novel_error": 0.3, "hard_error": 0.4, "test_loss": 1.0}
    assert further_errors(result) == {"novel_error": "test error, novel viewpoints", "hard_error": "error on hard"}
