"""A finished run is given more epochs: nothing is lost, and what happens is said."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from study.tables.kept import is_of
from tests.training.test_train import TINY, metrics, weights
from torchcaps.cli import main
from torchcaps.data import DATASETS, load
from torchcaps.training import Optim, more_epochs
from torchcaps.training.callbacks import Checkpoints
from torchcaps.training.module import TrainingModule, learning_rate
from torchcaps.training.run import Run
from torchcaps.training.train import train

#: With a rate that no number of epochs changes.
STEADY = replace(TINY, optim=Optim(lr=1e-2, decay_steps=8), keep_best=True)


def fit(config: Any, out: Path, **options: Any) -> dict[str, Any]:
    return train(config, out, progress="none", **({"more_epochs": True} | options))


def files(run: Path) -> dict[str, bytes]:
    names = ("config.json", "metrics.csv", "model.pt", "result.json", "checkpoints/last.ckpt")
    return {name: (run / name).read_bytes() for name in names}


def without_seconds(run: Path) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in metrics(run)]


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "steady"
    fit(STEADY, out)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four epochs in one go."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    fit(replace(STEADY, epochs=4), out)
    return out


@pytest.fixture
def run(steady: Path, tmp_path: Path) -> Path:
    """A finished run of two epochs."""
    shutil.copytree(steady, tmp_path / "run")
    return tmp_path / "run"


def require_as(run: Path, whole: Path) -> None:
    for name, value in weights(whole).items():
        assert torch.equal(weights(run)[name], value), name
    assert without_seconds(run) == without_seconds(whole)


def test_with_a_rate_that_asks_for_no_end_it_is_as_in_one_go(run: Path, whole: Path) -> None:
    before = files(run)
    (run / "report.html").write_text("of two epochs")
    (run / "pictures").mkdir()
    (run / "pictures" / "a.png").write_bytes(b"of two epochs")
    fit(replace(STEADY, epochs=4), run)
    require_as(run, whole)
    result = json.loads((run / "result.json").read_text())
    wanted = json.loads((whole / "result.json").read_text())
    same = ("steps", "epochs", "kept_epoch", "val_loss", "test_loss", "test_error", "config")
    assert {name: result[name] for name in same} == {name: wanted[name] for name in same}
    assert result["went_on_from"] == [2] and result["as_in_one_go"] is True
    assert result["seconds"] >= json.loads(before["result.json"])["seconds"]  # rounded to tenths
    # What it was is a run folder of its own, and what was true of it alone is there alone.
    assert files(run / "2-epochs") == before
    assert (run / "2-epochs" / "report.html").is_file() and not (run / "report.html").exists()
    assert (run / "2-epochs" / "pictures" / "a.png").is_file() and not (run / "pictures").exists()
    assert train(STEADY, run / "2-epochs", progress="none") == json.loads(before["result.json"])
    # It is finished now, can go on once more, and says so again.
    assert fit(replace(STEADY, epochs=4), run) == result
    result = fit(replace(STEADY, epochs=5), run)
    assert result["went_on_from"] == [2, 4] and result["epochs"] == 5
    assert (run / "2-epochs").is_dir() and (run / "4-epochs" / "result.json").is_file()


def test_a_rate_that_fell_to_its_end_goes_on_as_that_of_all_epochs(tmp_path: Path) -> None:
    cosine = replace(TINY, epochs=2)  # of 4 steps, with a warm-up
    fit(cosine, tmp_path / "a")
    rates: list[float] = []
    longer = replace(cosine, epochs=3)
    with pytest.MonkeyPatch.context() as patch:
        step = TrainingModule.training_step

        def noted(self: TrainingModule, batch: Any, k: int) -> torch.Tensor:
            rates.append(self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
            return step(self, batch, k)

        patch.setattr(TrainingModule, "training_step", noted)
        result = fit(longer, tmp_path / "a")
    assert rates == pytest.approx([learning_rate(longer.optim, k, 12) for k in range(8, 12)]) and rates[0] > 2e-3
    assert result["went_on_from"] == [2] and result["as_in_one_go"] is False
    assert not is_of(result, longer) and is_of({**result, "as_in_one_go": True}, longer)


@pytest.mark.parametrize("where", ["copy", "rename", "write", "train"])
def test_killed_anywhere_nothing_is_lost_and_it_goes_on(
    run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    before, config = files(run), replace(STEADY, epochs=4)

    class Killed(Exception):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    save = Checkpoints.save

    def saved_and_killed(self: Checkpoints, trainer: Any) -> None:
        save(self, trainer)
        raise Killed

    with monkeypatch.context() as patch:
        if where == "copy":  # in the midst of it
            copy = more_epochs._copy
            patch.setattr(
                more_epochs, "_copy", lambda path, to: killed() if path.name == "model.pt" else copy(path, to)
            )
        elif where == "rename":
            patch.setattr(Path, "rename", killed)
        elif where == "write":  # when the old result is gone already
            patch.setattr(more_epochs, "write_json", killed)
        else:
            patch.setattr(Checkpoints, "save", saved_and_killed)
        with pytest.raises(Killed):
            fit(config, run)
    there = run / "2-epochs" if where in ("write", "train") else run
    assert files(there) == before
    result = fit(config, run)
    require_as(run, whole)
    assert result["went_on_from"] == [2] and files(run / "2-epochs") == before
    assert not list(run.glob(".*unfinished"))


def test_other_settings_and_fewer_epochs_are_still_refused(run: Path) -> None:
    before = files(run)
    with pytest.raises(ValueError, match=r"another experiment \(epochs = 2 there, 1 here\)"):
        fit(replace(STEADY, epochs=1), run)
    with pytest.raises(ValueError, match=r"another experiment \(epochs = 2 there, 3 here, seed = 0 there, 1 here\)"):
        fit(replace(STEADY, epochs=3, seed=1), run)
    with pytest.raises(ValueError, match=r"another experiment \(epochs = 2 there, 3 here\): name another folder"):
        fit(replace(STEADY, epochs=3), run, more_epochs=False)  # as reproduce and tune ask for it
    assert files(run) == before and not (run / "2-epochs").exists()


def test_what_is_not_finished_is_finished_first(run: Path) -> None:
    (run / "result.json").unlink()
    with pytest.raises(
        ValueError, match=r"epochs = 2 there, 3 here.*; once it is finished it can be given more epochs"
    ):
        fit(replace(STEADY, epochs=3), run)
    assert fit(STEADY, run)["epochs"] == 2


def test_what_cannot_go_on(run: Path) -> None:
    Run(run).checkpoint.rename(run / "elsewhere.ckpt")
    with pytest.raises(ValueError, match=r"epochs must be 2 as .*last.ckpt, .* is not there; got 3"):
        fit(replace(STEADY, epochs=3), run)
    Run(run).checkpoint.write_bytes(b"broken")
    Run(run).previous.unlink()  # which would take its place
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        fit(replace(STEADY, epochs=3), run)
    assert (run / "result.json").is_file() and not (run / "2-epochs").exists()


def test_a_run_that_ended_early_has_no_use_for_more(tmp_path: Path) -> None:
    config = replace(STEADY, stop_at=1.0)
    assert fit(config, tmp_path)["epochs"] == 1
    with pytest.raises(ValueError, match=r"epochs must be 2 as .* has, which stop_at, 1.0, ended after epoch 1"):
        fit(replace(config, epochs=3), tmp_path)


def test_it_goes_on_with_its_own_data_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("digits")
    fewer = replace(data, test=data.test.take(slice(100)))
    monkeypatch.setitem(DATASETS, "digits", lambda root, image_size: fewer)
    with pytest.raises(ValueError, match=r"was trained on other data .*360 images.* now .*100 images"):
        fit(replace(STEADY, epochs=3), run)
    assert (run / "result.json").is_file() and not (run / "2-epochs").exists()


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data.n_train=64", "--data.n_eval=20", "--batch_size=32", "--threads=1", "--device=cpu"]
    arguments = ["train", "digits-cnn", *options, f"--out={tmp_path / 'a'}"]
    assert main([*arguments, "--epochs=1"]) == 0
    former = json.loads((tmp_path / "a" / "result.json").read_text())
    capsys.readouterr()
    assert main([*arguments, "--epochs=2"]) == 0
    said = capsys.readouterr().out
    assert f"a holds a finished run of 1 epoch: it goes on to 2, and what it was is kept as {tmp_path}" in said
    assert "Its learning rate ended at" in said and "not what 2 epochs in one go give" in said
    assert "2 epochs, in " in said and "nothing was trained" not in said
    assert json.loads((tmp_path / "a" / "1-epochs" / "result.json").read_text()) == former
    assert main([*arguments, "--epochs=2"]) == 0 and "nothing was trained" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "a" / "1-epochs"), "--split", "val"]) == 0
    assert f"val error {former['val_error']:.2%}" in capsys.readouterr().out
