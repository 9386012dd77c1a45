"""Training: killed and resumed, stopped by NaN, finished and left alone."""

from __future__ import annotations

import csv
import functools
import importlib
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import torchcaps
from torchcaps.data import DATASETS, Dataset, load
from torchcaps.layers import ROUTINGS, Decoder, DynamicRouting
from torchcaps.layers.base import RoutedLayer
from torchcaps.models import MODELS, CapsNet, ModelOutput, Reconstruction, build, capsnet, matched_cnn
from torchcaps.training import Data, Experiment, Model, Optim
from torchcaps.training.batches import Batches, split
from torchcaps.training.build import make_model
from torchcaps.training.callbacks import Checkpoints, OutOfTime
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.environment import choose_device
from torchcaps.training.files import write_atomically, write_json, write_text
from torchcaps.training.module import NonFiniteLoss, TrainingModule, learning_rate
from torchcaps.training.objective import evaluate, total_loss
from torchcaps.training.run import Run
from torchcaps.training.train import default_folder, train

TINY = Experiment(
    recipe="tiny",
    data=Data("digits", n_train=64),
    model=Model("capsnet", {"channels": 4, "n_types": 2, "d_primary": 4, "d_class": 4, "decoder": [8]}),
    optim=Optim(lr=1e-2, schedule="cosine", warmup=0.1),
    epochs=2,
    batch_size=16,
    threads=1,
    device="cpu",
)

CNN = replace(TINY, model=Model("matched_cnn", {"n_parameters": 3000}), loss="cross_entropy")
MUON = replace(TINY, optim=replace(TINY.optim, name="muon"))
PAIRS = replace(TINY, data=Data("digits", pairs=True, n_pairs=(64, 20)))

#: Trains an experiment in another process, which kills itself before the step that is named.
KILLED = """
import os, signal, sys
import tests.training.test_train as here
from torchcaps.training.module import TrainingModule
from torchcaps.training.train import train
step = TrainingModule.training_step
def killing(self, batch, k):
    if self.global_step == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch, k)
TrainingModule.training_step = killing
train(getattr(here, sys.argv[3]), sys.argv[1], progress="none", checkpoint_seconds=float(sys.argv[4]))
"""


def fit(config: Experiment, out: Path, **options: Any) -> dict[str, Any]:
    return train(config, out, progress="none", **options)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "model.pt", weights_only=True)["state_dict"]


def metrics(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    fit(TINY, out)
    return out


@pytest.mark.parametrize(
    ("name", "step", "checkpoint_seconds"),
    [
        ("TINY", 2, 0),  # a checkpoint a step: right behind one in mid-epoch
        ("TINY", 7, 1e9),  # a checkpoint an epoch: three steps are done again
        ("CNN", 6, 0),  # with dropout
        ("PAIRS", 5, 0),
        ("MUON", 5, 0),
    ],
)
def test_killed_in_mid_epoch_and_resumed_is_as_never_killed(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: int, checkpoint_seconds: float
) -> None:
    out, config = tmp_path / "killed", globals()[name]
    arguments = [sys.executable, "-c", KILLED, str(out), str(step), name, str(checkpoint_seconds)]
    done = subprocess.run(arguments, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not (out / "result.json").exists()
    (out / "checkpoints" / ".last.ckpt.1.partial").parent.mkdir(exist_ok=True)
    (out / "checkpoints" / ".last.ckpt.1.partial").write_bytes(b"what a process left that was killed as it wrote")
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("torchcaps.training.session"), "device_in_words", lambda _: "elsewhere")
        result = fit(config, out)
    here, there = result["device"].split("; ")
    assert there == "elsewhere" and here == json.loads((unbroken / "result.json").read_text())["device"]
    whole = unbroken if name == "TINY" else tmp_path / "whole"
    fit(config, whole)
    assert result["steps"] == 8
    assert result["val_loss"] == json.loads((whole / "result.json").read_text())["val_loss"]
    for name, value in weights(whole).items():
        assert torch.equal(weights(out)[name], value), name
    for a, b in zip(metrics(out), metrics(whole), strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    assert not list(out.rglob("*.partial"))


def test_metrics_that_another_program_holds_are_written_when_it_lets_go(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where a file that is shown cannot be replaced: this one until training ends."""
    replace_file, refused = Path.replace, []

    def held(self: Path, target: Path) -> Path:
        if target.name == "metrics.csv" and len(refused) < 2:
            refused.append(target)
            raise PermissionError(13, "Access is denied", str(target))
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", held)
    with pytest.warns(UserWarning, match=r"metrics.csv cannot be written now, and waits: .*Access is denied"):
        fit(TINY, tmp_path / "a")
    assert len(refused) == 2 and len(metrics(tmp_path / "a")) == 2


def test_metrics_that_are_lost_behind_the_last_checkpoint_are_written_again(tmp_path: Path) -> None:
    """Killed between the last epoch and the result, when nothing is left to train."""
    fit(TINY, tmp_path / "a")
    run, before = Run(tmp_path / "a"), metrics(tmp_path / "a")
    for path in (run.result, run.model, run.metrics):
        path.unlink()
    assert fit(TINY, run.path)["steps"] == 8 and metrics(run.path) == before


def test_two_who_write_one_file_at_once_write_all_of_it(tmp_path: Path) -> None:
    """Also where they have one process number, as threads and containers may."""

    def first(temporary: Path) -> None:
        temporary.write_text("first")
        write_text(tmp_path / "a", "second, in between")

    write_atomically(tmp_path / "a", first)
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "first"


def test_result_has_what_it_must(unbroken: Path) -> None:
    result = json.loads((unbroken / "result.json").read_text())
    wanted = "recipe seed val_error test_error epochs seconds n_parameters device versions commit"
    assert set(wanted.split()) <= set(result)
    assert result["recipe"] == "tiny" and 0 <= result["test_error"] <= 1 and result["epochs"] == 2
    assert result["test_error"] * 360 == pytest.approx(round(result["test_error"] * 360))
    learned = (value for name, value in weights(unbroken).items() if not name.endswith(("scale", "_extra_state")))
    assert result["n_parameters"] == sum(value.numel() for value in learned)
    assert result["images"] == {"train": 64, "val": 180, "test": 360}
    assert result["config"] == json.loads((unbroken / "config.json").read_text())


def test_a_run_that_began_with_a_field_that_does_nothing_is_read_and_resumed(tmp_path: Path) -> None:
    """It did nothing then, too."""
    config, run = replace(TINY, epochs=1, margin="sigmoid", data=replace(TINY.data, n_pairs=(8, 8))), Run(tmp_path)
    write_json(run.config, config.to_dict())
    run.metrics.write_text("epoch\n")
    assert fit(config, tmp_path)["steps"] == 4 and run.experiment() == config


def test_other_work_has_its_threads_again(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert fit(replace(TINY, epochs=1), tmp_path)["device"].endswith(", 1 thread")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def subnormal_numbers_count() -> bool:
    return bool(torch.full((), 1e-40).mul(1))


def test_numbers_next_to_nothing_count_as_zero_in_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors multiply them slowly, and weights of dead channels decay to such."""
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor flushes none")
    seen = list[bool]()

    def watching(**options: Any) -> nn.Module:
        model = matched_cnn(**options)
        model.register_forward_hook(lambda *_: seen.append(subnormal_numbers_count()))
        return model

    monkeypatch.setitem(MODELS, "watching", watching)
    train(replace(CNN, model=Model("watching", {"n_parameters": 3000}), epochs=1), tmp_path)
    assert seen and not any(seen) and subnormal_numbers_count()


def test_a_finished_run_is_left_alone(unbroken: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    assert fit(TINY, unbroken) == json.loads((unbroken / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")} == before


def test_training_learns(tmp_path: Path) -> None:
    fit(replace(TINY, epochs=6), tmp_path / "a")
    rows = metrics(tmp_path / "a")
    assert float(rows[-1]["train_loss"]) < 0.8 * float(rows[0]["train_loss"])
    assert [int(row["step"]) for row in rows] == [4, 8, 12, 16, 20, 24]


def test_schedules_follow_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[float] = []

    def noted(*arguments: Any, **options: Any) -> torch.Tensor:
        progress.extend(value for name, value in options.items() if name == "progress")
        return total_loss(*arguments, **options)

    monkeypatch.setattr("torchcaps.training.module.total_loss", noted)
    optim = Optim(lr=0.01, schedule="cosine", warmup=0.25)
    fit(replace(TINY, optim=optim), tmp_path / "a")
    assert progress[:8] == [k / 8 for k in range(8)]
    # The rate of the step to come: 2 of 8 steps warm up, and from step 2 on a cosine falls.
    rates = [float(row["lr"]) for row in metrics(tmp_path / "a")]
    assert rates == pytest.approx([learning_rate(optim, step, 8) for step in (4, 8)])
    assert rates[0] == pytest.approx(1e-6 + (0.01 - 1e-6) * (1 + math.cos(math.pi / 3)) / 2)


@pytest.mark.parametrize(
    ("what", "step", "kept"), [("loss", 6, 4), ("gradient", 3, None), ("gradient", 6, 4), ("gradient", 7, 4)]
)
def test_nan_stops_says_where_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, step: int, kept: int | None
) -> None:
    training_step = TrainingModule.training_step

    def poisoned(self: TrainingModule, batch: Any, k: int) -> torch.Tensor:
        loss = training_step(self, batch, k)
        if self.global_step == step and what == "loss":
            nn.init.constant_(next(self.model.parameters()), float("nan"))
            return training_step(self, batch, k)
        if self.global_step == step:
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss

    monkeypatch.setattr(TrainingModule, "training_step", poisoned)
    message = rf"the {what} became nan at step {step} \(epoch {step // 4 + 1}\); what was saved before is kept"
    with pytest.raises(NonFiniteLoss, match=message):
        fit(TINY, tmp_path / "a")
    run = Run(tmp_path / "a")
    assert not run.result.exists() and not run.model.exists()
    if kept is None:
        assert not run.checkpoint.exists()
        return
    content = torch.load(run.checkpoint, weights_only=True)
    assert content["global_step"] == kept
    assert all(bool(value.isfinite().all()) for value in content["state_dict"].values())
    monkeypatch.undo()
    assert fit(TINY, run.path)["steps"] == 8  # once the cause is gone it goes on


def test_weights_that_are_no_numbers_replace_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Checkpoints.save

    def poisoned(self: Checkpoints, trainer: Any) -> None:
        if trainer.global_step == 6:
            nn.init.constant_(next(trainer.lightning_module.parameters()), float("nan"))
        save(self, trainer)

    monkeypatch.setattr(Checkpoints, "save", poisoned)
    with pytest.raises(NonFiniteLoss, match=r"the weight \S+ became nan at step 6 .*; what was saved before is kept"):
        fit(TINY, tmp_path / "a", checkpoint_seconds=0)
    content = torch.load(Run(tmp_path / "a").checkpoint, weights_only=True)
    assert content["global_step"] == 5
    assert all(bool(value.isfinite().all()) for value in content["state_dict"].values())


@pytest.mark.parametrize("checkpoint_seconds", [0, 1e9])
def test_weights_that_blow_up_in_the_last_step_are_not_a_result(tmp_path: Path, checkpoint_seconds: float) -> None:
    config = replace(TINY, optim=Optim(lr=1e30, schedule="constant"), epochs=1, batch_size=64)
    with pytest.raises(NonFiniteLoss, match=r"at step 1"):
        fit(config, tmp_path / "a", checkpoint_seconds=checkpoint_seconds)
    assert not (tmp_path / "a" / "result.json").exists()


def test_a_checkpoint_that_fails_half_way_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning

    save, calls = lightning.Trainer.save_checkpoint, []

    def failing(self: Any, path: Path, *arguments: Any, **options: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            Path(path).write_bytes(b"half a checkpoi")
            raise OSError("No space left on device")
        save(self, path, *arguments, **options)

    monkeypatch.setattr(lightning.Trainer, "save_checkpoint", failing)
    with pytest.raises(OSError, match="No space left"):
        fit(TINY, tmp_path / "a")
    monkeypatch.undo()
    assert torch.load(Run(tmp_path / "a").checkpoint, weights_only=True)["global_step"] == 4
    assert not list(tmp_path.rglob("*.partial"))
    assert fit(TINY, tmp_path / "a")["steps"] == 8


def test_a_checkpoint_needs_no_room_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert fit(TINY, tmp_path / "a")["steps"] == 8


def test_on_a_cluster_no_job_is_queued_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOB_ID", "NTASKS", "PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "1" if name in ("JOB_ID", "NTASKS") else "0")
    monkeypatch.setenv("SLURM_JOB_NAME", "job")
    before, seen = signal.getsignal(signal.SIGUSR1), []
    monkeypatch.setattr(Checkpoints, "save", lambda *_: seen.append(signal.getsignal(signal.SIGUSR1)))
    fit(TINY, tmp_path / "a")
    assert seen == [before, before]


def test_a_broken_checkpoint_is_not_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path / "a")
    run.open(TINY)
    run.checkpoint.parent.mkdir()
    run.checkpoint.write_bytes(b"half a checkpoi")
    with pytest.raises(ValueError, match=r"last.ckpt is not a whole checkpoint: .* Remove it to start again"):
        fit(TINY, run.path)
    assert run.checkpoint.read_bytes() == b"half a checkpoi"


def test_a_checkpoint_without_all_that_it_takes_is_not_resumed(unbroken: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "a")
    run.open(TINY)
    run.checkpoint.parent.mkdir()
    whole = torch.load(Run(unbroken).checkpoint, weights_only=True)
    torch.save({name: value for name, value in whole.items() if name != "optimizer_states"}, run.checkpoint)
    with pytest.raises(ValueError, match=r"last.ckpt is not a whole checkpoint: it lacks optimizer_states"):
        fit(TINY, run.path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"result.json cannot be read"),
        ("[]", r"result.json must hold recipe, .*, config.*; got a list"),
        ('{"recipe": "tiny"}', r"result.json must hold recipe, .*, config.*; got recipe"),
    ],
)
def test_a_result_that_is_none_is_not_passed_on(unbroken: Path, tmp_path: Path, content: str, message: str) -> None:
    shutil.copytree(unbroken, tmp_path / "a")
    (tmp_path / "a" / "result.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        fit(TINY, tmp_path / "a")
    with pytest.raises(ValueError, match=message):
        Run(tmp_path / "a").finished()


def test_a_result_with_a_broken_configuration(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "a")
    run = Run(tmp_path / "a")
    write_json(run.result, json.loads(run.result.read_text()) | {"config": {"data": {}}})
    with pytest.raises(ValueError, match=r"result.json: not the configuration of a run"):
        run.finished()


class Own(nn.Module):
    """A network of one's own, which returns what it is given."""

    def __init__(self, n_classes: int, returns: Any, decoder: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.returns, self.decoder = nn.Linear(28 * 28, n_classes), returns, decoder

    def forward(self, x: torch.Tensor) -> Any:
        return self.returns(self.linear(x.flatten(1)))


def test_a_network_of_ones_own_is_trained_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(image_shape: tuple[int, int, int], n_classes: int) -> nn.Module:
        return Own(n_classes, lambda scores: ModelOutput(scores, ()))

    monkeypatch.setitem(MODELS, "mine", mine)
    fit(replace(CNN, model=Model("mine"), epochs=1), tmp_path / "a")
    assert isinstance(load_model(tmp_path / "a").model, Own)
    monkeypatch.delitem(MODELS, "mine")
    with pytest.raises(ValueError, match=r"got 'mine'. One of your own is entered in torchcaps.models.MODELS first"):
        load_model(tmp_path / "a")


def test_a_routing_of_ones_own_is_entered_before_its_network_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROUTINGS, "mine", ROUTINGS["dynamic"])
    config = replace(TINY, model=Model(TINY.model.name, {**TINY.model.options, "routing": "mine"}), epochs=1)
    fit(config, tmp_path / "a")
    monkeypatch.delitem(ROUTINGS, "mine")
    with pytest.raises(ValueError, match=r"A routing of your own is entered in torchcaps.layers.ROUTINGS first"):
        load_model(tmp_path / "a")


def test_a_part_made_in_evaluation_mode_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(image_shape: tuple[int, int, int], n_classes: int) -> nn.Module:
        model = capsnet(image_shape, n_classes, channels=4, n_types=1, kernel_size=3)
        model.conv.eval()
        return model

    monkeypatch.setitem(MODELS, "mine", frozen)
    model = make_model(replace(TINY, model=Model("mine")), load("digits"))
    assert [name for name, part in model.named_modules() if not part.training] == ["conv"]


def test_networks_of_ones_own_are_told_what_to_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "mine", lambda image_shape, n_classes: Own(n_classes, lambda scores: [scores]))
    with pytest.raises(ValueError, match=r"mine must return a torchcaps.models.ModelOutput, got a list"):
        fit(replace(CNN, model=Model("mine")), tmp_path / "a")
    monkeypatch.setitem(
        MODELS, "mine", lambda image_shape, n_classes: Own(n_classes, lambda s: ModelOutput(s, ()), nn.Sequential())
    )
    with pytest.raises(
        ValueError, match=r"reconstruction must be 0 .* no torchcaps.Decoder but a Sequential; got 0.0005"
    ):
        fit(replace(CNN, model=Model("mine")), tmp_path / "a")


@pytest.mark.parametrize(
    ("returns", "decoder", "message"),
    [
        (lambda s: ModelOutput(s[:, :2], ()), None, r"must return scores \[B, 10\], .*; of 1 image got \[1, 2\]"),
        (lambda s: ModelOutput(s[:, 0], ()), None, r"must return scores \[B, 10\], .*; of 1 image got \[1\]"),
        (lambda s: ModelOutput([s], ()), None, r"must return scores \[B, 10\], .*; of 1 image got list"),
        (lambda s: ModelOutput(s, ()), Decoder(10, 16, (1, 28, 28)), "reconstruction must be 0 .* returns no capsules"),
    ],
)
def test_what_a_network_of_ones_own_returns_must_fit(
    returns: Any, decoder: nn.Module | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "mine", lambda image_shape, n_classes: Own(n_classes, returns, decoder))
    with pytest.raises(ValueError, match=f"the model mine {message}" if decoder is None else message):
        fit(replace(CNN, model=Model("mine")), tmp_path / "a")


def test_a_network_with_nothing_to_train_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(image_shape: tuple[int, int, int], n_classes: int) -> nn.Module:
        return Own(n_classes, lambda scores: ModelOutput(scores, ())).requires_grad_(False)

    monkeypatch.setitem(MODELS, "mine", frozen)
    with pytest.raises(ValueError, match="the model mine must have parameters to train, got none"):
        fit(replace(CNN, model=Model("mine")), tmp_path / "a")


def test_a_result_without_its_errors_is_refused_where_they_are_shown(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "a")
    run = Run(tmp_path / "a")
    write_json(run.result, {key: value for key, value in run.read_result().items() if key != "test_error"})
    with pytest.raises(ValueError, match=r"result.json must hold .*, val_error, test_error; got recipe, "):
        run.finished()


def test_the_checkpoint_of_another_model_is_not_resumed(unbroken: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "a")
    run.open(CNN)
    run.checkpoint.parent.mkdir()
    run.checkpoint.write_bytes((unbroken / "checkpoints" / "last.ckpt").read_bytes())
    with pytest.raises(ValueError, match=r"last.ckpt is the checkpoint of another model. Remove it to start again"):
        fit(CNN, run.path)


@pytest.mark.parametrize("version", ["this", "older"])
@pytest.mark.parametrize("other", [{"note": "split otherwise"}, {"classes": tuple("abcdefghij")}])
def test_a_run_is_not_resumed_on_other_data(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], version: str
) -> None:
    """Such as another split, whose test images may be those that it has trained on."""
    run, longer = Run(tmp_path / "a"), replace(TINY, epochs=TINY.epochs + 1)
    run.open(longer)
    run.checkpoint.parent.mkdir()
    content = torch.load(unbroken / "checkpoints" / "last.ckpt", weights_only=True)
    if version == "older":
        del content["callbacks"]["Metrics"]["data"]
    torch.save(content, run.checkpoint)
    changed = replace(load("digits"), **other)
    monkeypatch.setattr("torchcaps.training.session.load", lambda *args, **options: changed)
    if version == "older" and "classes" in other:
        fit(longer, run.path)  # which did not say, and had nothing to say of data without a note
        return
    with pytest.raises(
        ValueError, match=r"a was begun on other data \({'note': ''.*}\), now .*('split otherwise'|'j'\])"
    ):
        fit(longer, run.path)
    assert not run.result.exists()


def test_a_run_is_not_resumed_on_more_data(unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose split may be another, and whose epochs are longer."""
    run, longer = Run(tmp_path / "a"), replace(TINY, epochs=TINY.epochs + 1)
    run.open(longer)
    run.checkpoint.parent.mkdir()
    run.checkpoint.write_bytes((unbroken / "checkpoints" / "last.ckpt").read_bytes())
    data = load("digits")
    fewer, other = data.val.take(slice(100)), replace(data.val, labels=data.val.labels.flip(0))
    for val in (fewer, other):
        changed = replace(data, val=val)
        monkeypatch.setattr("torchcaps.training.session.load", lambda *args, changed=changed, **options: changed)
        with pytest.raises(ValueError, match=r"begun on other data \(.*'val': '180 images, labels .*, now .*'val': '1"):
            fit(longer, run.path)


def test_a_run_that_another_process_finished_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one loaded its data, and found the folder free, before the other was done."""
    out, real = tmp_path / "a", load

    def other_process(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr("torchcaps.training.session.load", real)
        fit(TINY, out)
        before.update((path, path.stat().st_mtime_ns) for path in out.iterdir() if path.is_file())
        return real(*args, **options)

    before: dict[Path, int] = {}
    monkeypatch.setattr("torchcaps.training.session.load", other_process)
    fit(TINY, out)
    assert before and {path: path.stat().st_mtime_ns for path in before} == before


def test_seconds_are_those_of_training_and_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not a kill came between them."""
    out = tmp_path / "a"

    def slowly(*args: Any, **options: Any) -> Any:
        now[0] += 1000
        return evaluate(*args, **options)

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr("torchcaps.training.record.evaluate", slowly)
    assert fit(TINY, out)["seconds"] == 2000  # of two splits
    (out / "result.json").unlink()
    assert fit(TINY, out)["seconds"] == 2000


def test_a_training_of_one_step_an_epoch_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, data=replace(TINY.data, n_train=TINY.batch_size), epochs=3)
    now, step = [0.0], TrainingModule.training_step

    def slow(self: TrainingModule, batch: Any, k: int) -> Any:
        now[0] += 10
        return step(self, batch, k)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(TrainingModule, "training_step", slow)
    with pytest.raises(OutOfTime):
        fit(config, tmp_path / "a", until=15)
    assert len(metrics(tmp_path / "a")) == 2
    assert fit(config, tmp_path / "a", until=35)["epochs"] == 3


def test_a_finished_run_is_of_its_own_images(tmp_path: Path) -> None:
    for name, n in (("mine", 20), ("others", 30)):
        for label in ("blue", "red"):
            (tmp_path / name / label).mkdir(parents=True)
            for k in range(n):
                Image.new("L", (12, 12), k).save(tmp_path / name / label / f"{k}.png")
    config = replace(CNN, data=Data("folder", root=str(tmp_path / "mine"), image_size=(12, 12)), epochs=1)
    result = train(config, tmp_path / "run", progress="none")
    (tmp_path / "mine").rename(tmp_path / "moved")
    moved = replace(config, data=replace(config.data, root=str(tmp_path / "moved")))
    assert train(moved, tmp_path / "run", progress="none")["val_loss"] == result["val_loss"]
    others = replace(config, data=replace(config.data, root=str(tmp_path / "others")))
    with pytest.raises(ValueError, match=r"holds the run of other images, .*mine: name another folder by out, got .*"):
        train(others, tmp_path / "run", progress="none")
    gone = replace(config, data=replace(config.data, root=str(tmp_path / "nowhere")))
    with pytest.raises(ValueError, match="nowhere"):
        train(gone, tmp_path / "run", progress="none")


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with Run(tmp_path).locked(), pytest.raises(ValueError, match=r"another process trains in .*: wait for it"):
        fit(TINY, tmp_path)
    assert fit(TINY, tmp_path)["steps"] == 8


def test_loss_and_model_must_fit(tmp_path: Path) -> None:
    for loss in ("margin", "spread"):
        with pytest.raises(ValueError, match=f"loss must be cross_entropy for the model matched_cnn, .* got {loss}"):
            fit(replace(CNN, loss=loss), tmp_path / "a")
    with pytest.raises(ValueError, match="loss must be margin or cross_entropy with data.pairs"):
        replace(PAIRS, loss="spread")
    assert not (tmp_path / "a").exists()
    # Lengths as if they were logits: an ablation of the matrix capsules' paper.
    assert fit(replace(TINY, epochs=1, loss="cross_entropy"), tmp_path / "b")["steps"] == 4


def test_data_that_changed_are_not_tested_on(unbroken: Path) -> None:
    trained = load_model(Run(unbroken))
    assert len(data_for(TINY, trained).test) == 360
    with pytest.raises(ValueError, match=r"the data must have the model's classes \['x'"):
        data_for(TINY, trained._replace(classes=("x",)))
    with pytest.raises(
        ValueError, match=r"the data must have the model's image shape \(1, 28, 28\), got \(1, 30, 28\)"
    ):
        data_for(replace(TINY, data=Data("digits", image_size=(30, 28))), trained)


def test_another_split_of_the_data_is_not_tested_on(unbroken: Path) -> None:
    """small NORB's forms have test images that the other form trains on."""
    trained = load_model(Run(unbroken))
    with pytest.raises(ValueError, match=r"the data must be those of the model \(fold 1\), got "):
        data_for(TINY, trained._replace(data="fold 1"))


def test_images_that_came_or_went_since_training_are_told(unbroken: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = load_model(Run(unbroken))
    assert trained.splits["test"].startswith("360 images, labels ")
    data_for(TINY, trained)
    assert not caplog.messages
    data_for(TINY, trained._replace(splits=trained.splits | {"test": "361 images, labels 00000000"}))
    assert f"(test: 361 images, labels 00000000, now {trained.splits['test']})" in caplog.text


def test_a_copy_that_came_since_is_told_and_locks_no_one_out(
    unbroken: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, trained = load("digits"), load_model(Run(unbroken))
    note = "split by its folders; {} of its 361 test images are copies of training images"
    monkeypatch.setitem(DATASETS, "folder", lambda root, image_size: replace(whole, note=note.format(2)))
    config = replace(TINY, data=Data("folder", root="a"))
    data_for(config, trained._replace(data=note.format(1), splits=trained.splits | {"test": "360 images, labels 0"}))
    assert "the data are not as they were" in caplog.text
    with pytest.raises(ValueError, match="the data must be those of the model"):
        data_for(config, trained._replace(data="split by content, without metadata"))


def test_first_weights_are_those_of_the_seed_and_adams_epsilon_holds_them(tmp_path: Path) -> None:
    still = replace(TINY, epochs=1, optim=Optim(lr=1e-12, floor=0.0))
    held = replace(TINY, epochs=1, optim=Optim(lr=1e-3, eps=1e9))
    for name, config in (("seed 0", still), ("held", held), ("seed 1", replace(still, seed=1))):
        fit(config, tmp_path / name)
    first, held_back, other = (weights(tmp_path / name) for name in ("seed 0", "held", "seed 1"))
    for name, value in first.items():
        torch.testing.assert_close(held_back[name], value, rtol=0, atol=1e-6)
    assert any(not torch.allclose(other[name], value, atol=1e-3) for name, value in first.items())


def test_a_saved_model_is_what_it_was_whatever_the_defaults(unbroken: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = load_model(Run(unbroken)).model.state_dict()
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "meta")):
        try:
            torch.set_default_dtype(dtype)
            with torch.device(device):
                found = load_model(Run(unbroken)).model.state_dict()
            assert torch.get_default_dtype() == dtype
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert not caplog.text


def test_an_empty_split_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("digits")
    for name in ("train", "val", "test"):
        empty = replace(whole, **{name: whole.test.take(torch.arange(0))})
        monkeypatch.setitem(DATASETS, "toys", lambda root, image_size, empty=empty: empty)
        with pytest.raises(ValueError, match=f"data must have {name} images, got none of toys"):
            fit(replace(TINY, data=Data("toys")), tmp_path / name)
        assert not (tmp_path / name).exists()


def test_the_callers_draws_and_log_stay_the_callers(tmp_path: Path) -> None:
    logger = logging.getLogger("lightning.pytorch")
    level, before = logger.level, torch.get_rng_state()
    fit(replace(TINY, epochs=1), tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    assert logger.level == level and "PL_GLOBAL_SEED" not in os.environ


def test_a_finished_run_is_of_its_own_form_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forms(root: Path | None, image_size: tuple[int, int] | None) -> Dataset:
        return replace(load("digits"), note="subset" if root is None or root.name == "a" else "all")

    monkeypatch.setitem(DATASETS, "forms", forms)
    config = replace(CNN, data=Data("forms", root=str(tmp_path / "a")), epochs=1)
    result = fit(config, tmp_path / "run")
    again = fit(replace(config, data=Data("forms")), tmp_path / "run")  # wherever they are
    assert again["val_loss"] == result["val_loss"]
    with pytest.raises(ValueError, match="holds the run of other images, .*a: name another folder by out, got .*b"):
        fit(replace(config, data=Data("forms", root=str(tmp_path / "b"))), tmp_path / "run")


def test_data_that_are_split_at_random_are_split_alike_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("digits").test

    def shuffled(root: Path | None, image_size: tuple[int, int] | None) -> Dataset:
        parts = torch.randperm(len(whole)).split(len(whole) // 3)
        return Dataset("shuffled", tuple("0123456789"), *(whole.take(part) for part in parts[:3]))

    monkeypatch.setitem(DATASETS, "shuffled", shuffled)
    torch.manual_seed(1)
    before, found = torch.get_rng_state(), load("shuffled")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(load("shuffled").test.images, found.test.images)


def test_an_autoencoder_of_ones_own_that_is_no_transforming_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(nn.Module):
        def __init__(self, image_shape: Any, n_classes: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def forward(self, x: torch.Tensor, transformation: torch.Tensor | None = None) -> Reconstruction:
            return Reconstruction(x + self.w, None)  # type: ignore[arg-type]

    monkeypatch.setitem(MODELS, "own", Own)
    config = replace(TINY, data=Data("digits", transformed=True), model=Model("own"), loss="squared_error")
    with pytest.raises(
        ValueError, match="own must be a torchcaps.models.Transforming to return a Reconstruction, got a Own"
    ):
        fit(config, tmp_path / "a")


def test_a_folder_may_have_the_name_of_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = TrainingModule.training_step

    def killed(self: TrainingModule, batch: Any, k: int) -> Any:
        if self.global_step == 2:
            raise InterruptedError
        return step(self, batch, k)

    monkeypatch.setattr(TrainingModule, "training_step", killed)
    with pytest.raises(InterruptedError):
        train(CNN, "http-caps", progress="none", checkpoint_seconds=0)
    monkeypatch.setattr(TrainingModule, "training_step", step)
    assert Run("http-caps").checkpoint.is_file()
    assert train(CNN, "http-caps", progress="none")["epochs"] == CNN.epochs


def test_a_model_is_loaded_from_its_file_alone(unbroken: Path, tmp_path: Path) -> None:
    shutil.copy(unbroken / "model.pt", tmp_path / "mine.pt")
    wanted = load_model(unbroken).model.state_dict()
    for file in (tmp_path / "mine.pt", str(unbroken / "model.pt")):
        found = load_model(file).model.state_dict()
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    with pytest.raises(ValueError, match=r"nowhere must hold a finished run, but it is no folder"):
        load_model("nowhere")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "mine.pt").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cut.pt is not a whole model.pt"):
        load_model(tmp_path / "cut.pt")


def test_classes_that_older_versions_kept_as_numbers_are_texts(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "a")
    run = Run(tmp_path / "a")
    torch.save(torch.load(run.model, weights_only=True) | {"classes": tuple(range(10))}, run.model)
    assert load_model(run).classes == tuple("0123456789")
    checkpoint = torch.load(run.checkpoint, weights_only=True)
    (kept,) = (state["data"] for state in checkpoint["callbacks"].values() if "data" in state)
    assert kept["classes"] == list("0123456789")
    kept["classes"] = list(range(10))
    torch.save(checkpoint, run.checkpoint)
    run.result.unlink()
    assert fit(TINY, run.path)["steps"] == 8


def test_saved_model_needs_no_data(unbroken: Path) -> None:
    trained = load_model(Run(unbroken))
    assert trained.image_shape == (1, 28, 28) and trained.classes == tuple("0123456789")
    data = load("digits").test
    scores = trained.model(data.images.float() / 255).scores
    error = (scores.argmax(dim=1) != data.labels).float().mean().item()
    assert error == pytest.approx(json.loads((unbroken / "result.json").read_text())["test_error"])


def test_checkpoint_of_another_model(unbroken: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "a")
    run.open(replace(TINY, model=Model("matched_cnn")))
    with pytest.raises(ValueError, match="must hold a finished run, but it has no model.pt"):
        load_model(run)
    run.model.write_bytes((unbroken / "model.pt").read_bytes())
    with pytest.raises(ValueError, match=r"model.pt must hold the model matched_cnn as .* says, got capsnet"):
        load_model(run)
    content = torch.load(run.model, weights_only=True)
    torch.save(content | {"model": "matched_cnn"}, run.model)
    with pytest.raises(ValueError, match=r"model.pt must hold the options {} as .* says, got {'channels': 4"):
        load_model(run)
    torch.save(content | {"model": "matched_cnn", "options": {}}, run.model)
    with pytest.raises(ValueError, match="model.pt does not fit the matched_cnn that it names"):
        load_model(run)
    run.model.write_bytes((unbroken / "model.pt").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model.pt is not a whole model.pt"):
        load_model(run)


def test_a_model_that_computes_otherwise_by_now_is_noticed(
    unbroken: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its weights would fit, whatever a default has become."""
    load_model(Run(unbroken))
    assert not caplog.text
    monkeypatch.setitem(MODELS, "capsnet", functools.partial(capsnet, routing=DynamicRouting(leaky=True)))
    load_model(Run(unbroken))
    noticed = f"model.pt computes otherwise than when it was saved, by torchcaps {torchcaps.__version__}"
    assert caplog.text.count(noticed) == 1
    monkeypatch.setattr(CapsNet, "forward", lambda model, x: ModelOutput(x.new_full((len(x), 10), torch.nan), ()))
    load_model(Run(unbroken))
    assert caplog.text.count(noticed) == 2


def test_the_test_split_is_seen_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    iterate = Batches.__iter__
    monkeypatch.setattr(Batches, "__iter__", lambda self: seen.append((self.n, self.train)) or iterate(self))
    fit(TINY, tmp_path / "a")
    assert seen.count((360, False)) == 1 and seen[-1] == (360, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": Data("nothing")}, "data.name must be one of"),
        ({"model": Model("nothing")}, "model.name must be one of"),
        ({"model": Model("capsnet", {"backprop": "x"})}, "backprop must be one of full, last; got 'x'"),
        ({"model": Model("capsnet", {"n_iters": 0})}, "n_iters must be an integer of at least 1, got 0"),
        ({"data": Data("digits", image_size=(12, 12))}, "a 9×9 kernel does not fit into a map of 4×4"),
        ({"batch_size": 100_000}, "batch_size must be at most the 64 training examples"),
        ({"data": Data("digits", pairs=True, shift=6)}, "data.shift must be left at 2 with data.pairs, .* got 6"),
        ({"data": Data("digits", blend="max")}, "data.blend must be left alone without data.pairs, got max"),
        ({"data": Data("digits", n_pairs=(8, 8))}, r"data.n_pairs must be left alone without data.pairs, got \(8, 8\)"),
        (
            {"optim": Optim(schedule="cosine", decay=0.5)},
            "optim.decay must be left alone with the schedule cosine, got 0.5",
        ),
        (
            {"optim": Optim(schedule="constant", floor=5e-4)},
            "optim.floor must be left alone with the schedule constant, got 0.0005",
        ),
        ({"optim": Optim(lr=1e-7)}, "optim.lr must be at least optim.floor, 1e-06, got 1e-07"),
        (
            {
                "data": Data("digits", transformed=True, shift=0),
                "model": Model("plain_autoencoder"),
                "loss": "squared_error",
                "optim": Optim(name="muon"),
            },
            "optim.name must be adam for plain_autoencoder, which has neither convolutions nor capsules; got muon",
        ),
        ({"margin": "sigmoid"}, "margin must be linear with loss margin, as it is the spread loss's; got sigmoid"),
        (
            {"model": CNN.model, "loss": "cross_entropy", "reconstruction": 0.01},
            "reconstruction must be 0 .* for matched_cnn with the loss cross_entropy, .* got 0.01",
        ),
        (
            {"model": CNN.model, "loss": "cross_entropy", "compile": True},
            "compile must be false for matched_cnn, which routes nothing; got True",
        ),
    ],
)
def test_bad_input_costs_no_work(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(replace(TINY, **change), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_what_is_no_experiment_is_not_trained(tmp_path: Path) -> None:
    for config in ("digits", TINY.to_dict()):
        with pytest.raises(ValueError, match=r"config must be an Experiment, such as that of a recipe, got "):
            fit(config, tmp_path / "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"progress must be one of bar, lines, none; got 'line'"):
        train(TINY, tmp_path / "a", progress="line")  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_made_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "digits", lambda root, image_size: pytest.fail("data were loaded"))
    (tmp_path / "file").write_text("somebody's")
    with pytest.raises(ValueError, match=r"out must be a folder that can be written to, got .*below: .*file is none"):
        fit(TINY, tmp_path / "file" / "below")


def test_modes_and_dtypes_around_it_change_no_training(unbroken: Path, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            fit(TINY, tmp_path / "a")
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_inference_mode_enabled() and torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    mine, wanted = weights(tmp_path / "a"), weights(unbroken)
    assert all(torch.equal(mine[name], value) for name, value in wanted.items())


def test_compiling_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ValueError, match="compile needs a C\\+\\+ compiler and found none: .* compile=False"):
        fit(replace(TINY, compile=True), tmp_path / "a")


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device cuda is not there; there is: cpu"):
            choose_device("cuda")


def test_default_folder() -> None:
    assert default_folder(TINY) == Path("runs/tiny")
    assert default_folder(replace(TINY, seed=2)) == Path("runs/tiny-seed2")


def test_precision_is_that_of_training_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, forward = set(), CapsNet.forward

    def noted(self: CapsNet, *arguments: Any, **options: Any) -> Any:
        seen.add((self.training, torch.is_autocast_enabled("cpu")))
        return forward(self, *arguments, **options)

    monkeypatch.setattr(CapsNet, "forward", noted)
    fit(replace(TINY, epochs=1, precision="bf16"), tmp_path / "a")
    assert seen >= {(True, True), (False, False)} and (True, False) not in seen


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_clipping_does_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any) -> None:
    one = replace(TINY, epochs=1, precision=precision)
    fit(one, tmp_path / "a")
    norms: list[float] = []
    step = torch.optim.Adam.step

    def noted(self: torch.optim.Adam, closure: Any = None) -> Any:
        def after() -> Any:  # the gradients are there, and clipped, once the closure has run
            found = closure()
            norms.append(torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm().item())
            return found

        return step(self, after)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    fit(replace(one, optim=replace(one.optim, clip=0.01)), tmp_path / "b")
    assert norms and max(norms) == pytest.approx(0.01, rel=1e-3)
    # Adam is blind to the gradient's scale, but not to one that changes from step to step.
    assert any(not torch.equal(value, weights(tmp_path / "a")[name]) for name, value in weights(tmp_path / "b").items())


def test_compiling_does_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(TINY, epochs=1)
    compiled: list[RoutedLayer] = []

    def noted(self: RoutedLayer, *, dynamic: bool) -> None:
        assert not dynamic
        compiled.append(self)

    monkeypatch.setattr(RoutedLayer, "compile", noted)
    monkeypatch.setattr("torchcaps.training.session.require_compiler", lambda: None)
    fit(replace(one, compile=True), tmp_path / "c")
    assert len(compiled) == 1


def test_weights_decay_and_nothing_else_does() -> None:
    """The gradient of ½ · decay · ‖w‖² joins that of the loss, for weights but not for biases and β."""
    model = build("matrix_capsnet_small", (2, 32, 32), 5)
    batches = split(TINY, load("digits"), "train", torch.device("cpu"))
    task = TrainingModule(replace(TINY, optim=Optim(weight_decay=0.5)), model, batches, batches)
    adam = task.configure_optimizers()["optimizer"]
    decayed = {id(p) for group in adam.param_groups if group["weight_decay"] == 0.5 for p in group["params"]}
    every = {id(p) for group in adam.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert every == {id(p) for p in model.parameters()}
    assert names == {"conv.weight", "primary.weight", "hidden.0.weight", "hidden.1.weight", "classes.weight"}
    assert sorted(group["weight_decay"] for group in adam.param_groups) == [0, 0.5]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = model.conv.weight.detach().clone()
    for group in adam.param_groups:
        group["lr"] = 0.01
    adam.step()  # the gradient is ½·w alone: Adam's first step is the rate along its sign, whatever its size
    large = before.abs() > 1e-3
    moved = (before - model.conv.weight.detach())[large]
    torch.testing.assert_close(moved, 0.01 * before[large].sign(), rtol=1e-2, atol=0)


def test_evaluation_on_fewer_images(tmp_path: Path) -> None:
    config = replace(TINY, epochs=1, data=replace(TINY.data, n_eval=3))
    assert fit(config, tmp_path / "a")["test_error"] * 3 % 1 == pytest.approx(0)


def test_pairs_run(tmp_path: Path) -> None:
    assert fit(replace(PAIRS, epochs=1), tmp_path / "a")["test_error"] * 20 % 1 == pytest.approx(0)
    assert load_model(Run(tmp_path / "a")).image_shape == (1, 36, 36)
