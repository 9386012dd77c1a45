"""The command line, as a stranger would type it."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from torchcaps.cli import main
from torchcaps.cli.parser import make_parser
from torchcaps.cli.train_command import parse_experiment
from torchcaps.data import DATASETS, load
from torchcaps.models import MODELS
from torchcaps.training import Experiment
from torchcaps.training.recipes import RECIPES, recipe

TINY = [
    "--data.n_train=64",
    "--batch_size=16",
    "--epochs=1",
    "--threads=1",
    "--device=cpu",
    '--model.options={"channels": 4, "n_types": 2, "decoder": [8]}',
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "digits", "--out", str(out), *TINY]) == 0
    return out


def examples_of(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """Take the example off the help of each command, and see that its parser takes it."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        assert re.match(r"[A-Z][a-z]+ .*\.$", command.description), name
        (line,) = re.findall(rf"example: {re.escape(parser.prog)} (.+)$", command.format_help(), re.MULTILINE)
        words = shlex.split(line)
        assert words[0] == name and parser.parse_known_args(words)
        yield words


def test_the_help_of_every_command_has_an_example() -> None:
    for name, *words in examples_of(make_parser()):
        if name in ("train", "tune"):  # whose further options are the recipe's
            parse_experiment(words[0], recipe(words[0]), words[1:])


def test_the_help_of_train_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "digits", "--help"])
    said = capsys.readouterr().out
    assert "`" not in said
    words = re.findall(r"example: torchcaps train (.+)$", said, re.MULTILINE)[0].split()
    assert parse_experiment(words[0], recipe(words[0]), words[1:])[0].epochs == 5


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_who_has_read_enough_is_left_alone() -> None:
    """As ``torchcaps list | head -1``."""
    command = [sys.executable, "-m", "torchcaps", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams as a POSIX shell does")
@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_stream_that_is_closed(run: Path, stream: str) -> None:
    """As that of a daemon may be."""
    again = ["sh", "-c", f'exec "$0" -m torchcaps train digits "$@" {stream}>&-', sys.executable, "--out", run, *TINY]
    assert subprocess.run(again, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "digits", "--runs="],
        ["evaluate", "runs/a", "--data.root="],
    ],
)
def test_an_empty_name_is_not_the_folder_one_stands_in(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"{arguments[-1][:-1]}: wants a name, got an empty text" in capsys.readouterr().err


def test_recipes_models_and_data_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = re.sub(r" +", " ", capsys.readouterr().out)
    assert all(f"\n {name} " in said for name in (*RECIPES, *MODELS, *DATASETS))


def test_one_option_leaves_the_recipes_others_alone() -> None:
    """And a whole mapping takes their place, as the help says."""
    name = "smallnorb-em-small"
    others = recipe(name).model.options
    assert others["settings"] == "released" and others["n_iters"] != 5
    for given, wanted in (
        (["--model.options.n_iters", "5"], {**others, "n_iters": 5}),
        (["--model.options", '{"n_iters": 5}'], {"n_iters": 5}),
    ):
        config, _ = parse_experiment(name, recipe(name), given)
        assert config.model.options == wanted


def test_train_writes_what_was_asked_for(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["recipe"] == "digits" and result["epochs"] == 1
    assert result["config"]["data"]["n_train"] == 64 and result["config"]["optim"]["schedule"] == "cosine"
    assert result["config"]["model"]["options"] == {"channels": 4, "n_types": 2, "decoder": [8]}


def test_finished_run_is_reported_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--out", str(run), *TINY]) == 0
    out = capsys.readouterr().out
    assert "digits, seed 0: test error" in out and "holds the finished run; nothing was trained" in out
    # So it is by its own configuration, which its numbers went through a parser for.
    assert main(["train", "digits", "--config", str(run / "config.json"), "--out", str(run)]) == 0
    assert "holds the finished run; nothing was trained" in capsys.readouterr().out


def test_another_experiment_does_not_overwrite(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--out", str(run), *TINY, "--optim.lr=0.5"]) == 2
    assert "holds a run of another experiment (optim.lr = 0.002 there, 0.5 here)" in capsys.readouterr().err


def test_fields_from_a_file_and_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("seed: 3\noptim:\n  lr: 0.25\n")
    arguments = ["train", "digits", "--config", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "a")]
    assert main([*arguments, *TINY, "--optim.warmup", "0.5"]) == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["seed"], config["optim"]["lr"], config["optim"]["warmup"]) == (3, 0.25, 0.5)
    assert config["recipe"] == "digits"


def test_the_configuration_of_a_run_is_one(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(run / "config.json"), "--out", str(tmp_path / "a")]
    assert main(["train", "digits", *arguments]) == 0
    configs = [json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "a", run)]
    assert configs[0] == configs[1]
    capsys.readouterr()
    assert main(["train", "mnist", *arguments]) == 2
    assert "the configuration must be of the recipe mnist, got one of digits" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--config=", "--config"])
def test_the_settings_of_a_result_are_trained_again(run: Path, option: str) -> None:
    file = str(run / "result.json")
    given = [option + file] if option.endswith("=") else [option, file]
    wanted = json.loads((run / "config.json").read_text())
    for arguments in ([*given, "--epochs", "3"], ["--epochs", "3", *given]):
        config, _ = parse_experiment("digits", recipe("digits"), arguments)
        assert json.loads(json.dumps(config.to_dict())) == wanted | {"epochs": 3}
    with pytest.raises(ValueError, match="expected one argument"):
        parse_experiment("digits", recipe("digits"), ["--config"])


def test_an_older_result_keeps_what_was_the_default_then(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((run / "result.json").read_text())
    del result["config"]["batch_size"]  # the recipe's is another by now
    (tmp_path / "old.json").write_text(json.dumps(result))
    config, _ = parse_experiment("digits", recipe("digits"), ["--config", str(tmp_path / "old.json")])
    assert config.batch_size == Experiment().batch_size != recipe("digits").batch_size
    del result["config"]["model"]
    (tmp_path / "old.json").write_text(json.dumps(result))
    assert main(["train", "digits", "--config", str(tmp_path / "old.json")]) == 2
    assert "old.json: not the configuration of a run of this version" in capsys.readouterr().err


def test_a_file_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("mine")
    assert main(["train", "digits", "--out", str(tmp_path / "a"), *TINY]) == 2
    assert f"{tmp_path / 'a'} is a file: name a folder by --out" in capsys.readouterr().err
    assert (tmp_path / "a").read_text() == "mine"


def test_evaluate_repeats_the_result(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("test", "val"):
        assert main(["evaluate", str(run), "--split", split]) == 0
        error = json.loads((run / "result.json").read_text())[f"{split}_error"]
        assert f"{split} error {error:.2%}" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--split", "train"]) == 2
    assert "split must be one of val, test; got 'train'" in capsys.readouterr().err


def test_as_a_module() -> None:
    """Where scripts are not on the PATH."""
    done = subprocess.run(
        [sys.executable, "-m", "torchcaps", "list"], capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert done.stdout.startswith("Recipes:\n")


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (
        MemoryError("Unable to allocate 9 TiB"),
        RuntimeError("can't allocate memory"),
        RuntimeError("a bug"),
    ):

        def fail(_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("torchcaps.cli.commands.list_command", fail)
        if str(error) == "a bug":
            with pytest.raises(RuntimeError, match="a bug"):
                main(["list"])
            return
        assert main(["list"]) == 2
        said = capsys.readouterr().err
        assert said == f"torchcaps: memory does not suffice ({error}); smaller images or batches need less\n"


def test_predict(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = Image.fromarray(load("digits").test.images[0, 0].numpy())
    image.resize((90, 120)).convert("RGB").save(tmp_path / "a.png")
    image.save(tmp_path / "b.jpg")
    assert main(["predict", str(run), str(tmp_path / "a.png"), str(tmp_path / "b.jpg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"{tmp_path / 'a.png'}: ") and lines[0].count("(0.") == 3
    ImageOps.invert(image).save(tmp_path / "negative.png")
    image.save(tmp_path / "c.png")
    for name, more in (("c.png", []), ("negative.png", ["--invert"]), ("negative.png", [])):
        assert main(["predict", str(run), str(tmp_path / name), *more]) == 0
    one, two, three = (line.split(": ", 1)[1] for line in capsys.readouterr().out.splitlines())
    assert one == two != three


def test_list_takes_what_says_nothing_of_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODELS, "mine", lambda image_shape, n_classes: None)
    assert main(["list"]) == 0 and "\n  mine\n" in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("mnist-cnn", "capsnet_small", "fashion-mnist"))


def test_the_options_of_one_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "capsnet_small"]) == 0
    said = capsys.readouterr().out
    assert "8 types" in said and "  d_class = 16\n" in said and "those of the class" in said
    assert main(["list", "smallnorb"]) == 0
    said = capsys.readouterr().out
    assert 'eyes: "both"' in said and "  fold = None\n" in said and "held_out" not in said
    assert main(["list", "capsnet_smal"]) == 2
    assert "name must be one of" in capsys.readouterr().err


def test_options_of_another_routing_are_one_mapping(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--smoke", "--model.options.routing", "em"]) == 2
    assert "unless all are given as one mapping" in capsys.readouterr().err


def test_a_terminal_of_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as where Windows sends what is printed into a file."""
    bytes_ = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_, encoding="ascii"))
    assert main(["list"]) == 0
    sys.stdout.flush()
    assert b"capsnet_small" in bytes_.getvalue() and b"?" in bytes_.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "train needs a recipe, such as digits: torchcaps list shows all"),
        (["train", "mnits"], "recipe must be one that torchcaps list shows, such as mnist.*; got 'mnits'"),
        (["train", "digits", "--epochs=0"], "epochs must be an integer of at least 1, got 0"),
        (["train", "digits", "--model.name=vgg"], "model.name must be one of affine_autoencoder, .*; got 'vgg'"),
        (["train", "mnist", "--data.root=/nowhere"], "data.root must hold train-images-idx3-ubyte.gz"),
        (
            ["train", "digits", "--data.root=/nowhere"],
            "data.root must be left alone for digits, which has no files; got /nowhere",
        ),
        (["train", "mnist", "--model.name=vgg", "--data.root=/nowhere"], "model.name must be one of .*; got 'vgg'"),
        (["evaluate", "nowhere"], "nowhere must be a run folder, but it has no config.json"),
        (
            ["train", "digits", "--data.n_train=100000"],
            "data.n_train must be at most the 1,257 training images, got 100,000",
        ),
        (["train", "digits", "--seed=4294967296"], r"seed must be 0 … 4294967295 and finite, got 4294967296"),
        (["train", "digits", '--model.options={"channels": 0}'], "channels must be an integer of at least 1, got 0"),
        (
            ["train", "digits", '--model.options={"channels": "x"}'],
            "channels must be an integer of at least 1, got 'x'",
        ),
        (
            ["train", "digits", '--model.options={"weight_std": 1e999}'],
            "model.options must hold finite numbers, texts, .*; got weight_std=inf",
        ),
        (["train", "digits", '--model.options={"weight_std": "a"}'], "weight_std must be positive, got 'a'"),
        (["train", "digits", '--model.options={"hidden": [5]}'], r"hidden\[0\] must be a HiddenCaps or .*, got 5"),
        (["train", "digits", '--model.options={"decoder": 5}'], "decoder must list layers, got 5"),
        (["train", "digits", "--out="], "out must name a folder, got an empty text"),
        (["train", "digits", "--threads=100000"], "threads must be 0 … 1024 and finite, got 100000"),
        (
            ["train", "digits", "--data.shift=30000"],
            "data.shift must be below 28, the images' size in pixels, got 30000",
        ),
        (
            ["train", "digits-pairs", "--data.n_eval=1"],
            "data must have two classes to make pairs of: data.n_eval, if given, and its val images leave one or none",
        ),
        (
            ["train", "digits", '--model.options={"kernel_size": 0}'],
            "kernel_size must be an integer of at least 1, got 0",
        ),
        (["predict", "nowhere", "a.png"], "nowhere must hold a finished run"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.startswith("torchcaps: ") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--optim.rate=3", "optim.rate"),
        ("--optim.lr=fast", "optim.lr wants a number, got fast;"),
        ("--loss=hinge", "or cross_entropy or dice or dice_cross_entropy or squared_error or own, got hinge;"),
        ("--epochs=2.5", "epochs wants an integer, got 2.5;"),
        ("--data.image_size=32", "data.image_size wants [an integer, an integer] or null, such as '[2, 3]', got 32;"),
        ("--data.n_pairs=[5,a]", "data.n_pairs wants [an integer, an integer], such as '[2, 3]', got a;"),
        ("--trial=maybe", "trial wants true or false, got maybe;"),
        ("--data.options=5", "data.options wants a mapping, got 5;"),
        ("--n_iters=2", "n_iters"),
        ("--config=missing.yaml", "missing.yaml"),
        ("--data.nam=digits", "unrecognized arguments: --data.nam=digits"),  # no beginning of --data.name
    ],
)
def test_unknown_fields_and_values(
    argument: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", argument]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("torchcaps: ") and error.count("\n") == 1
    assert "torchcaps train digits --help lists what can be set" in error
    assert not list(tmp_path.iterdir())


def test_a_misspelt_option_is_not_another_ones_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "runs/a", "--data.ro", "2"])
    assert "unrecognized arguments: --data.ro 2" in capsys.readouterr().err


def test_predict_refuses_what_is_no_image(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.png").write_text("no image")
    Image.new("L", (28, 28)).save(tmp_path / "b.png")
    assert main(["predict", str(run), str(tmp_path / "a.png"), str(tmp_path / "b.png")]) == 2
    said = capsys.readouterr()
    assert "a.png cannot be read as an image" in said.err and said.err.endswith(": 1 of 2 files could not be read\n")
    assert said.out.startswith(f"{tmp_path / 'b.png'}: ")


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchcaps.training.module import TrainingModule

    step = TrainingModule.training_step

    def interrupted(self: TrainingModule, batch: Any, k: int) -> Any:
        if self.global_step == 2:
            raise KeyboardInterrupt
        return step(self, batch, k)

    arguments = ["train", "digits", "--out", str(tmp_path / "a"), *TINY]
    monkeypatch.setattr(TrainingModule, "training_step", interrupted)
    assert main(arguments) == 130
    assert "stopped; the same command goes on from what was last saved" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(arguments) == 0
