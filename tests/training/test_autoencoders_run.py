"""Auto-encoders by the same commands as the classifiers: training, resuming, evaluation, report, few labels."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")

from study.cli import main as study
from study.few_labels import compare, write
from study.few_labels.draws import draw_labelled
from study.few_labels.finished import Finished
from study.few_labels.write import as_markdown
from torchcaps.cli import main
from torchcaps.data import load
from torchcaps.models import Reconstruction, Transforming, build
from torchcaps.models.pose_recovery import AFFINE_PARAMETERS, RecoveredTransformation
from torchcaps.ops import Capsules, pose_loss, transform_pose, warp
from torchcaps.ops.affine import shift_matrix
from torchcaps.training import Data, Experiment, Model, files
from torchcaps.training.batches import split
from torchcaps.training.examples import Batch
from torchcaps.training.objective import evaluate, total_loss
from torchcaps.training.pose_metrics import _single_capsules, pose_metrics
from torchcaps.training.run import Run

SMALL = ["--data.n_train=96", "--data.n_eval=60", "--batch_size=32", "--threads=1", "--device=cpu"]
UNITS = '--model.options={"n_capsules": 4, "n_recognition": 5, "n_generation": 6}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs "capsules", "templates" and "plain" on a few of the bundled digits."""
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, options in (
        ("capsules", "digits-translation", UNITS),
        ("templates", "digits-templates", '--model.options={"n_capsules": 3, "channels": [2, 3], "width": 8}'),
        ("plain", "digits-plain-autoencoder", '--model.options={"code": 3, "hidden": [8]}'),
    ):
        assert main(["train", recipe, "--out", str(folder / name), "--epochs=2", *SMALL, options]) == 0
    return folder


def test_of_single_capsules_the_lowest_the_median_and_the_highest_are_told() -> None:
    true = torch.randn(200, 6)
    slopes = torch.tensor([2.0, 5.0, 1.0, 3.0])
    active = torch.ones(200, 4, dtype=torch.bool)
    active[1:, 1] = False  # it is asked nowhere
    got = true[:, None] * slopes[:, None]
    active[150:, 0], got[150:, 0] = False, 99.0
    found = _single_capsules(true, got, active, [0])
    assert found["n"] == 4 and found["active"] == 3
    ((slope, r2),) = (found[AFFINE_PARAMETERS[0]].values(),)
    assert slope == pytest.approx([1, 2, 3]) and r2[0] == pytest.approx(-3, abs=0.2) and r2[2] == pytest.approx(1)


def test_the_result_says_how_poses_follow(folder: Path) -> None:
    result = json.loads((folder / "capsules" / "result.json").read_text())
    assert "test_error" not in result and result["test_loss"] > 0
    assert set(result["test_follows"]) == {"shift x", "shift y"}
    assert set(result["test_follows"]["shift x"]) == {"slope", "r2"}
    assert result["test_capsules"]["n"] == 4 and result["test_consistency"] > 0
    templates = json.loads((folder / "templates" / "result.json").read_text())
    assert set(templates["val_follows"]) == {"rotation", "scale x", "scale y", "shear", "shift x", "shift y"}
    plain = json.loads((folder / "plain" / "result.json").read_text())
    assert "test_follows" not in plain and "test_loss" in plain


def test_metrics_have_no_column_of_errors(folder: Path) -> None:
    head, *rows = (folder / "capsules" / "metrics.csv").read_text().splitlines()
    assert head == "epoch,step,lr,train_loss,val_loss,seconds" and len(rows) == 2


def test_what_follows_the_last_checkpoint_can_be_done_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "broken"
    arguments = ["train", "digits-translation", "--out", str(out), *SMALL, UNITS]
    assert main([*arguments, "--epochs=2"]) == 0
    for name in ("result.json", "model.pt"):
        (out / name).unlink()
    assert main([*arguments, "--epochs=2"]) == 0  # from the last checkpoint: nothing is left to train
    one, two = (json.loads((path / "result.json").read_text()) for path in (folder / "capsules", out))
    assert one["test_loss"] == two["test_loss"] and one["test_follows"] == two["test_follows"]


def test_evaluate_repeats_the_loss(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(folder / "capsules"), "--split", "val"]) == 0
    loss = json.loads((folder / "capsules" / "result.json").read_text())["val_loss"]
    said = capsys.readouterr().out
    assert f"val loss {loss:.5f}, 60 examples" in said and "error" not in said


def test_predict_has_nothing_to_say(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(folder / "capsules"), "any.png"]) == 2
    assert "must hold a classifier, got an auto-encoder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("capsules", ["Poses follow the image", "Reconstructions", "Transformations never seen in training",
                      "Part by part", "Generation units of each capsule"]),
        ("templates", ["Poses follow the image", "Reconstructions", "Transformations never seen in training",
                       "Part by part", "Template of each capsule"]),
        ("plain", ["Reconstructions"]),
    ],
)  # fmt: skip
def test_the_report_shows_what_was_learned(
    folder: Path, name: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "DPI", 30)
    assert main(["report", str(folder / name)]) == 0
    html = (folder / name / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"<h2>(.*?)</h2>", html) == ["Training", *wanted, "How it was made"]
    assert "digits (without labels)" in html and "test error" not in html


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (["--data.shift=0"], {"Poses follow the image", "Transformations never seen in training"}),
        (["--data.n_eval=1"], {"Poses follow the image"}),  # one pair, of which nothing varies
        (["--data.n_eval=2"], set()),
    ],
)
def test_a_report_of_little(
    tmp_path: Path, options: list[str], missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is moved, or there are fewer images than sweeps, or than a capsule by itself needs."""
    monkeypatch.setattr(files, "DPI", 30)
    out, recipe = tmp_path / "run", "digits-translation" if "shift" in options[0] else "digits-templates"
    units = UNITS if "shift" in options[0] else '--model.options={"n_capsules": 3, "channels": [2, 3], "width": 8}'
    assert main(["train", recipe, "--out", str(out), "--epochs=1", *SMALL, units, *options]) == 0
    assert main(["report", str(out)]) == 0
    html = (out / "report.html").read_text(encoding="utf-8")
    shown = re.findall(r"<h2>(.*?)</h2>", html)
    wanted = ["Training", "Poses follow the image", "Reconstructions", "Transformations never seen in training",
              "Part by part", shown[-2], "How it was made"]  # fmt: skip
    assert shown == [title for title in wanted if title not in missing]
    assert ("of that with T ignored</dt><dd>–" in html) == ("shift" in options[0])
    assert not (out / "pictures" / "one-capsule.png").exists()


def test_one_run_beside_is_a_list_too() -> None:
    with pytest.raises(ValueError, match=r"beside must be several, such as \['runs/b'\], got one"):
        write.few_labels("runs/a", "runs/b", compare.Settings())


def test_few_labels_know_before_any_work_where_to_write(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(ValueError, match="out must be a folder that can be written to, got .*a"):
        write.few_labels(folder / "templates", [], compare.Settings(), out=tmp_path / "a")


def test_few_labels_beside_all_alternatives(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "templates"
    arguments = ["--beside", str(folder / "plain"), "--labels", "10", "25", "--draws", "2", "--steps", "1"]
    assert study(["few-labels", str(run), *arguments, "--unlabelled", "300"]) == 0
    found = json.loads((run / "few-labels.json").read_text())
    named = [(row["code"], row["readout"]) for row in found["rows"]]
    assert len(set(named)) == len(named) == 1 + 6 * 3 + 2
    assert ("pixels", "nearest labelled") in named and ("none: labelled images alone", "CapsNet") in named
    for row in found["rows"]:
        assert set(row["errors"]) == {"10", "25"}
        for errors in row["errors"].values():
            assert errors["test_error"] == pytest.approx(sum(errors["test_errors"]) / 2)
            assert errors["test_std"] == pytest.approx(statistics.stdev(errors["test_errors"]))
            assert 0 <= errors["val_error"] <= 1
    by_name = {name: row["errors"]["25"]["test_error"] for name, row in zip(named, found["rows"])}
    assert by_name["pixels", "nearest labelled"] < 0.5  # of ten classes, with two or three examples each
    assert by_name["principal components of pixels", "spread over neighbours"] < 0.4
    table = (run / "few-labels.md").read_text(encoding="utf-8")
    assert table == as_markdown(found) and (run / "pictures" / "few-labels.png").is_file()
    assert table.count("\n| ") == 2 + len(named)
    for row in found["rows"]:
        for errors in row["errors"].values():
            alone = write._cell(errors | {"test_std": None})
            assert alone == f"{100 * errors['test_error']:.2f}"  # of a single draw nothing is known of its spread
        said = (f"{100 * e['test_error']:.2f} ± {100 * e['test_std']:.2f}" for e in row["errors"].values())
        assert f"| {' | '.join((row['code'], row['readout'], *said))} |" in table
    monkeypatch.setattr(files, "DPI", 30)
    assert main(["report", str(run)]) == 0
    assert "<h2>Few labels</h2>" in (run / "report.html").read_text(encoding="utf-8")
    assert "wrote" in capsys.readouterr().out


def test_few_labels_go_on_where_they_were_broken_off(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, asked = folder / "capsules", []
    left, measure = run / "few-labels.partial.json", compare._errors

    def killed_at(n: int, *arguments: Any) -> Any:
        asked.append(n)
        if len(asked) == n:
            raise KeyboardInterrupt
        return measure(*arguments)

    def call(n: int, labels: str = "10", *out: str) -> int:
        asked.clear()
        monkeypatch.setattr(compare, "_errors", partial(killed_at, n))
        return study(["few-labels", str(run), "--labels", labels, "--draws=2", "--steps=1", "--unlabelled=300", *out])

    assert call(4) == 130 and not (run / "few-labels.json").exists()
    three = json.loads(left.read_text())["rows"]
    assert len(three) == 3
    assert call(0) == 0 and len(asked) == 1 + 5 * 3 + 2 - 3
    found = json.loads((run / "few-labels.json").read_text())
    assert found["rows"][:3] == three and len(found["rows"]) == 1 + 5 * 3 + 2 and not left.exists()
    del found["trained"]  # as an older version left it
    (run / "few-labels.json").write_text(json.dumps(found))
    assert call(0) == 0 and not asked  # it is finished
    assert [each["epochs"] for each in json.loads((run / "few-labels.json").read_text())["trained"]] == [2]
    assert call(0, "11") == 2 and "is a comparison of other settings" in capsys.readouterr().err
    (run / "few-labels.json").unlink()
    assert call(2) == 130 and call(0, "11") == 2 and "holds rows of other settings" in capsys.readouterr().err
    assert call(0, "11", "--out", str(tmp_path / "b")) == 0 and len(asked) == len(found["rows"])
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"few-labels.json", "few-labels.md", "pictures"}


def test_few_labels_wants_an_autoencoder_that_is_finished(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(["few-labels", str(tmp_path)]) == 2
    assert "must hold a finished run" in capsys.readouterr().err


def test_few_labels_wants_images_to_choose_rows_by(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the validation images were trained on, the lowest error on them chooses nothing."""
    data = replace(load("digits"), held_out=False)
    monkeypatch.setattr(compare, "data_for", lambda *_: data)
    with pytest.raises(ValueError, match="templates must have validation images that it was not trained on"):
        compare.compare(Run(folder / "templates"), [], compare.Settings(), Finished(folder / "x", "of"))


def test_few_labels_wants_all_runs_on_the_same_data(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    ask = [str(folder / "templates"), "--out", str(tmp_path / "found")]
    resized = "--data.image_size=[20, 20]"
    assert main(["train", "digits-plain-autoencoder", "--out", str(other), "--epochs=1", *SMALL, resized]) == 0
    assert study(["few-labels", *ask, "--beside", str(other)]) == 2
    assert "beside must be runs on the same data" in capsys.readouterr().err
    assert study(["few-labels", *ask, "--beside", str(folder / "templates")]) == 2
    assert "beside must be runs in folders of other names" in capsys.readouterr().err
    for n in ("-1", "0"):
        assert study(["few-labels", *ask, "--unlabelled", n]) == 2
        assert "unlabelled images must be at least one" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["--consistency=1", "--data.shift=2"])
def test_a_plain_one_cannot_follow(changed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits-plain-autoencoder", "--out", str(tmp_path / "a"), *SMALL, changed]) == 2
    name = changed.strip("-").split("=")[0]
    assert f"{name} must be 0 for the model plain_autoencoder, which has no poses" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_where_nothing_is_transformed_nothing_is_recovered() -> None:
    config = replace(CONFIG, data=Data("digits", transformed=True, shift=0, n_eval=50))
    batches = split(config, load("digits"), "test", torch.device("cpu"))
    found = pose_metrics(build("affine_autoencoder", (1, 28, 28), 10, n_capsules=3), batches)
    assert found["follows"] == {} and found["consistency"] is None


def test_half_a_turn_may_be_said_either_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two degrees too far, which leads from 179 to −179, is no error of 358."""
    config = replace(CONFIG, data=replace(CONFIG.data, degrees=180.0))
    batches = list(split(config, load("digits"), "test", torch.device("cpu")))
    angle = torch.tensor(2.0).deg2rad()
    more = torch.eye(3)
    more[:2, :2] = torch.stack((torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos()))))
    said = iter([more @ batch.transformation for batch in batches if batch.transformation is not None])

    def knowing(*_: object) -> RecoveredTransformation:
        together = next(said)
        return RecoveredTransformation(together.unsqueeze(1), torch.ones(len(together), 1), together)

    monkeypatch.setattr("torchcaps.training.pose_metrics.recover_transformation", knowing)
    found = pose_metrics(build("affine_autoencoder", (1, 28, 28), 10, n_capsules=3), batches)
    for slope, r2 in (found["follows"]["rotation"].values(), [x[0] for x in found["capsules"]["rotation"].values()]):
        assert slope == pytest.approx(1, abs=0.01) and r2 > 0.999


def test_draws_have_as_many_of_each_class() -> None:
    labels = torch.arange(100) % 10
    for seed in range(5):
        counts = labels[draw_labelled(labels, 25, 10, seed)].bincount(minlength=10)
        assert sorted(counts.tolist()) == [2] * 5 + [3] * 5
    one, two = (draw_labelled(labels, 25, 10, seed) for seed in (0, 1))
    assert not torch.equal(one, two) and torch.equal(one, draw_labelled(labels, 25, 10, 0))
    with pytest.raises(ValueError, match="labels must be at least one of each of the 10 classes, got 9"):
        draw_labelled(labels, 9, 10, 0)
    with pytest.raises(ValueError, match="class 0 must have 11 examples for 110 labels, got 10"):
        draw_labelled(labels, 110, 10, 0)


CONFIG = Experiment(
    data=Data("digits", transformed=True, shift=1, degrees=5.0, n_eval=50),
    model=Model("affine_autoencoder", {"n_capsules": 3}),
    loss="squared_error",
    batch_size=20,
)


def test_the_loss_is_squared_error_and_inconsistency() -> None:
    config = replace(CONFIG, consistency=3.0)
    batch = next(iter(split(config, load("digits"), "val", torch.device("cpu"))))
    assert batch.transformation is not None
    model = build("affine_autoencoder", (1, 28, 28), 10, n_capsules=3)
    output = model(batch.images, batch.transformation)
    error = (output.images - batch.parts[:, 0]).square().sum() / 20
    after = model.encode(batch.parts[:, 0]).pose
    apart = pose_loss(after, transform_pose(output.capsules.pose, batch.transformation), model.unit)
    torch.testing.assert_close(total_loss(config, model, output, batch), error + 3 * apart)
    torch.testing.assert_close(total_loss(CONFIG, model, output, batch), error)


def test_evaluation_sees_the_same_pairs_every_time() -> None:
    model, device = build("affine_autoencoder", (1, 28, 28), 10, n_capsules=3), torch.device("cpu")
    batches = split(CONFIG, load("digits"), "test", device)
    assert evaluate(CONFIG, model, batches) == evaluate(CONFIG, model, split(CONFIG, load("digits"), "test", device))
    assert set(pose_metrics(model, batches)["follows"]) == {"rotation", "shift x", "shift y"}
    train = split(CONFIG, load("digits"), "train", device)
    first = next(iter(train))
    train.epoch = 1
    assert not torch.equal(first.images, next(iter(train)).images)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "margin"}, "loss must be squared_error with data.transformed = True, got margin"),
        ({"data": Data()}, "loss must be another than squared_error with data.transformed = False, got squared_error"),
        (
            {"data": Data(transformed=True, brightness=0.1)},
            "data.brightness must be 0.0 with data.transformed, got 0.1",
        ),
        ({"data": Data(transformed=True, pairs=True)}, "data.pairs must be False with data.transformed, got True"),
        ({"consistency": -1.0}, "consistency must be at least 0 and finite, got -1.0"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(CONFIG, **change)  # type: ignore[arg-type]


def test_a_classifier_cannot_paint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "digits-translation", "--smoke", "--out", str(tmp_path / "a"), "--model.options={}"]
    assert main([*arguments, "--model.name=matched_cnn"]) == 2
    assert "loss must be another than squared_error for the model matched_cnn" in capsys.readouterr().err


def test_what_follows_is_regressed_on_what_was_done() -> None:
    """Capsules that say half of a shift: slope ½; R² = 1 − Σ(½ s)² / Σ s² = ¾, as shifts have a mean of nearly 0."""

    class Half(Transforming):
        """Sees the centre of mass, of which it says half."""

        def generative_units(self) -> torch.Tensor:
            raise NotImplementedError

        def encode(self, x: torch.Tensor) -> Capsules:
            along = torch.arange(28.0) - 13.5
            mass = x.sum(dim=(1, 2, 3))
            place = torch.stack([(x.sum(dim=(1, k)) * along).sum(dim=1) / mass for k in (2, 3)], dim=1)
            return Capsules(place.unsqueeze(1) / 2, torch.ones(len(x), 1))

        def decode(self, pose: torch.Tensor, presence: torch.Tensor) -> torch.Tensor:
            return pose.sum(dim=(1, 2))[:, None, None, None] * torch.ones(len(pose), 1, 28, 28)

        def forward(self, x: torch.Tensor, transformation: torch.Tensor | None = None) -> Reconstruction:
            found = self.encode(x)
            pose = found.pose if transformation is None else transform_pose(found.pose, transformation)
            return Reconstruction(self.decode(pose, found.activation), found)

    spot = torch.zeros(64, 1, 28, 28)
    spot[:, :, 13:15, 13:15] = 1
    by = torch.stack((torch.arange(64) % 8 - 3.5, torch.arange(64) // 8 - 3.5), dim=1).round()
    transformation = shift_matrix(by)
    moved = warp(spot, transformation)
    batch = Batch(spot, torch.zeros(64, 1).long(), moved.unsqueeze(1), transformation)
    found = pose_metrics(Half(), [batch])
    for axis, name in enumerate(("shift x", "shift y")):
        true = by[:, axis]
        r2 = 1 - float((true / 2).square().sum() / (true - true.mean()).square().sum())
        assert found["follows"][name] == pytest.approx({"slope": 0.5, "r2": r2}, abs=1e-4)
        assert found["capsules"][name]["slope"] == pytest.approx([0.5] * 3, abs=1e-4)
        assert found["capsules"][name]["r2"] == pytest.approx([r2] * 3, abs=1e-4)
    # ConsistencyError (x, y) it paints x + y everywhere, where seeing it would have painted half of that.
    assert found["consistency"] == pytest.approx(1.0, abs=1e-4)
