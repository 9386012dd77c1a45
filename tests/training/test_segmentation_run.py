"""Segmentation from images and masks to masks as files: examples, losses, training, prediction, report."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.scans import require_medical, write_dicom, write_nifti, write_volumes
from torchcaps import build
from torchcaps.cli import main
from torchcaps.data import Dataset, Images
from torchcaps.data.mask_file import read_mask
from torchcaps.ops import dice_loss, dice_score, pixel_margin_loss, reconstruction_loss, weighted_cross_entropy
from torchcaps.playground import load_network
from torchcaps.playground.load import load_playground
from torchcaps.playground.segmenter import Segmenter, load_segmenter
from torchcaps.training import Data, Experiment, Model, Optim
from torchcaps.training.batches import Batches
from torchcaps.training.callbacks import OutOfTime
from torchcaps.training.checkpoint import data_for, load_model
from torchcaps.training.dice import count_overlaps, dice_scores
from torchcaps.training.examples import Batch
from torchcaps.training.predict_masks import predict_masks, write_masks
from torchcaps.training.recipes import recipe
from torchcaps.training.run import Run
from torchcaps.training.tasks import Segmentation
from torchcaps.training.train import train
from torchcaps.training.tuning import tune

CLASSES = ("bright", "dim")


def made(n: int, seed: int) -> Images:
    """A bright and a dim square at random places of 16×16, each with its mask."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(n, 1, 16, 16, dtype=torch.uint8)
    masks = torch.zeros(n, 2, 16, 16, dtype=torch.bool)
    for k in range(n):
        for j, value in enumerate((250, 110)):
            row, column = torch.randint(11, (2,), generator=generator).tolist()
            images[k, 0, row : row + 6, column : column + 6] = value
            masks[k, :, row : row + 6, column : column + 6] = False  # the later one hides the other
            masks[k, j, row : row + 6, column : column + 6] = True
    return Images(images, masks.flatten(2).any(dim=2), masks=masks)


def dataset(n: int = 64) -> Dataset:
    return Dataset("squares", CLASSES, made(n, 0), made(16, 1), made(16, 2))


TINY = Experiment(
    recipe="tiny",
    data=Data("squares", masks=True, shift=1),
    model=Model("matched_unet", {"n_parameters": 5000}),
    optim=Optim(lr=1e-2, schedule="constant"),
    loss="dice_cross_entropy",
    epochs=2,
    batch_size=16,
    threads=1,
    device="cpu",
)
SMALL_CAPS = Model("segcaps_small", {"n_types": [2, 2, 2], "d_pose": [4, 4, 8], "d_class": 4, "n_iters": 1})


@pytest.mark.parametrize("model", [TINY.model, SMALL_CAPS], ids=lambda model: model.name)
def test_squares_that_can_be_seen_are_learned(tmp_path: Path, model: Model) -> None:
    config = replace(TINY, model=model, epochs=20, optim=Optim(lr=1e-2, schedule="cosine"))
    result = train(config, tmp_path, dataset=dataset(128), progress="none")
    assert result["test_dice"] > 0.75, result["test_dice_per_class"]  # 0.67 where all that is not black is both
    assert set(result["test_dice_per_class"]) == set(CLASSES) and "test_error" not in result
    assert result["test_dice"] == pytest.approx(sum(result["test_dice_per_class"].values()) / 2)
    assert result["images_per_class"]["test"]["bright"] <= 16
    trained, test = load_model(tmp_path).model, dataset(128).test
    assert test.masks is not None
    with torch.no_grad():
        each = dice_score(trained(test.images / 255).scores, test.masks.float())
    assert list(result["test_dice_per_class"].values()) == pytest.approx(each.tolist(), abs=1e-6)


def test_the_best_dice_is_kept(tmp_path: Path) -> None:
    result = train(replace(TINY, keep_best=True, epochs=4), tmp_path, dataset=dataset(), progress="none")
    with (tmp_path / "metrics.csv").open() as file:
        found = [float(row["val_dice"]) for row in csv.DictReader(file)]
    assert result["kept_epoch"] == 1 + found.index(max(found))
    assert result["val_dice"] == pytest.approx(max(found), abs=1e-6)


def test_a_resumed_run_is_as_an_unbroken_one(tmp_path: Path) -> None:
    config, data = replace(TINY, epochs=3), dataset()
    with pytest.raises(OutOfTime):
        train(config, tmp_path / "a", dataset=data, progress="none", until=0)
    resumed = train(config, tmp_path / "a", dataset=data, progress="none")
    unbroken = train(config, tmp_path / "b", dataset=data, progress="none")
    assert resumed["test_dice_per_class"] == unbroken["test_dice_per_class"]
    weights = [load_model(tmp_path / name).model.state_dict() for name in "ab"]
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_masks_move_with_their_images() -> None:
    images = torch.randint(1, 256, (20, 2, 12, 9), dtype=torch.uint8)
    # Masks that follow from the image, so that both can be compared after any move.
    source = Images(images, torch.zeros(20, dtype=torch.int64), masks=images[:, :1].int() > 128)
    moves: list[dict[str, Any]] = [{"shift": 3}, {"flip": True}, {"shift": 2, "flip": True, "crop": (8, 6)}]
    for move in (*moves, {"shift": 2, "fill": "reflection"}, {"shift": 0, "brightness": 0.5, "contrast": (0.5, 2.0)}):
        data = Data("squares", masks=True, **{"shift": 0, **move})
        (batch,) = Batches(data, source, 20, seed=3, train=True)
        assert batch.masks is not None and batch.masks.shape == (20, 1, *batch.images.shape[2:])
        seen = batch.parts[:, 0, :1]  # before the light was changed
        assert torch.equal(batch.masks, (seen * 255 > 128.5).float()), move
        assert torch.equal(batch.images, batch.parts[:, 0]) != ("brightness" in move)
        plain = next(iter(Batches(replace(data, masks=False), replace(source, masks=None), 20, seed=3, train=True)))
        assert torch.equal(batch.images, plain.images), move  # as without masks
    (whole,) = Batches(Data("squares", masks=True, crop=(8, 6)), source, 20, seed=0, train=False)
    assert whole.masks is not None and torch.equal(whole.masks, (whole.images[:, :1] * 255 > 128.5).float())


def test_eyes_change_places_in_a_mirror_and_masks_do_not() -> None:
    images = torch.randint(1, 256, (20, 2, 4, 4), dtype=torch.uint8)
    source = Images(images, torch.zeros(20, dtype=torch.int64), masks=images.int() > 128)
    data = Data("squares", masks=True, shift=0, flip=True)
    (batch,) = Batches(data, source, 20, seed=1, train=True, mirrored=(1, 0))
    assert batch.masks is not None
    turned = torch.tensor([not torch.equal(m, (i * 255 > 128.5).float()) for m, i in zip(batch.masks, batch.images)])
    assert 0 < int(turned.sum()) < 20
    swapped = batch.images[turned].flip(1)
    assert torch.equal(batch.masks[turned], (swapped * 255 > 128.5).float())


def test_a_warped_mask_is_where_the_warped_square_is() -> None:
    image = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    image[:, :, 8:24, 8:24] = 255
    source = Images(image.expand(30, -1, -1, -1).clone(), torch.zeros(30, dtype=torch.int64))
    source = replace(source, masks=source.images > 128)
    data = Data("squares", masks=True, shift=2, degrees=30.0, scale=0.2, shear=0.2)
    (batch,) = Batches(data, source, 30, seed=0, train=True)
    assert batch.masks is not None and set(batch.masks.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(batch.masks, (batch.images > 0.5).float())


def test_the_losses_by_hand() -> None:
    torch.manual_seed(0)
    model = build("segcaps_small", (1, 8, 8), 2, decoder=[5]).eval()
    images, masks = torch.rand(3, 1, 8, 8), (torch.rand(3, 2, 8, 8) > 0.7).float()
    batch, output = Batch(images, torch.zeros(3, 1), images.unsqueeze(1), masks=masks), model(images)
    cross_entropy, dice = weighted_cross_entropy(output.scores, masks), dice_loss(output.scores, masks)
    wanted = {
        "dice": dice,
        "cross_entropy": cross_entropy,
        "dice_cross_entropy": dice + cross_entropy,
        "margin": pixel_margin_loss(output.scores, masks),
    }
    for loss, value in wanted.items():
        config = replace(TINY, loss=loss, reconstruction=0)  # type: ignore[arg-type]
        torch.testing.assert_close(Segmentation().loss(config, model, output, batch, None), value)
    inside = masks.max(dim=1, keepdim=True).values
    images_again = model.decoder(output.capsules[-1], masks) * inside
    both = dice + 0.01 * reconstruction_loss(images_again, images * inside)
    config = replace(TINY, loss="dice", reconstruction=0.01)
    torch.testing.assert_close(Segmentation().loss(config, model, output, batch, None), both)


def test_overlaps_add_up_over_batches() -> None:
    torch.manual_seed(0)
    scores, masks = torch.rand(7, 3, 4, 4), (torch.rand(7, 3, 4, 4) > 0.6).float()
    scores[:, 2], masks[:, 2] = 0.1, 0  # neither there nor predicted
    parts = [count_overlaps(*both) for both in zip(scores.split(3), masks.split(3), strict=True)]
    sums = {name: sum(part[name] for part in parts) for name in parts[0]}
    assert dice_scores(sums) == pytest.approx(dice_score(scores, masks).tolist())
    assert dice_scores(sums)[2] == 1.0


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    for wrong, says in (
        (
            {"loss": "spread"},
            "loss must be dice, dice_cross_entropy, cross_entropy, margin, own with data.masks = True",
        ),
        ({"stop_at": 0.1}, "stop_at must be None with data.masks, which knows no error; got 0.1"),
        ({"data": Data(masks=True, pairs=True)}, "data.pairs must be False with data.masks, got True"),
        ({"data": Data(masks=True, balance=True)}, "data.balance must be False with data.masks, got True"),
        ({"data": Data("digits")}, "data.masks must be True for the loss dice_cross_entropy, got False"),
    ):
        with pytest.raises(ValueError, match=says):
            replace(TINY, **wrong)  # type: ignore[arg-type]
    digits = replace(TINY, data=Data("digits", masks=True))
    with pytest.raises(ValueError, match="data.masks must be False for digits, whose images have no masks"):
        train(digits, tmp_path, progress="none")
    for model in ("capsnet_small", "baseline_cnn"):
        config = replace(TINY, model=Model(model))
        with pytest.raises(ValueError, match="model.name must be of a network that segments, such as segcaps_small"):
            train(config, tmp_path, dataset=Dataset("toy", CLASSES, *[shown_larger()] * 3), progress="none")
    plain = Dataset("toy", CLASSES, *[replace(made(20, 0), masks=None, labels=torch.arange(20) % 2)] * 3)
    config = replace(TINY, data=Data("toy"), loss="margin", model=Model("segcaps_small"))
    with pytest.raises(ValueError, match="data.masks must be True for the model segcaps_small, which segments"):
        train(config, tmp_path, dataset=plain, progress="none")
    config = replace(TINY, reconstruction=0.1)
    with pytest.raises(ValueError, match="reconstruction must be 0 .* for matched_unet"):
        train(config, tmp_path, dataset=dataset(), progress="none")


def shown_larger() -> Images:
    """Of a size that classifiers take too."""
    masks = torch.rand(20, 2, 28, 28) > 0.5
    return Images(torch.zeros(20, 1, 28, 28, dtype=torch.uint8), masks.flatten(2).any(dim=2), masks=masks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own") / "scans"
    squares = made(24, 5)
    assert squares.masks is not None
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    for k in range(24):
        Image.fromarray(squares.images[k, 0].numpy()).resize((24, 20)).save(root / "images" / f"{k}.png")
        numbers = (squares.masks[k] * torch.tensor([1, 2])[:, None, None]).sum(dim=0).to(torch.uint8)
        Image.fromarray(numbers.numpy()).resize((24, 20), Image.Resampling.NEAREST).save(root / "masks" / f"{k}.png")
    return root


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A run on the folder, from the command line."""
    out = folder.parent / "run"
    arguments = ["train", "digits-segmentation", "--data.name", "mask-folder", "--data.root", str(folder)]
    arguments += ["--data.options.classes", "[bright, dim]", "--data.image_size", "[16, 16]", "--out", str(out)]
    arguments += ["--batch_size", "8", "--epochs", "1", "--threads", "1", "--device", "cpu"]
    assert main(arguments) == 0
    return out


def test_from_the_command_line(folder: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["data"]["fill"] == "reflection" and config["model"]["options"]["standardize"] is True
    assert main(["evaluate", str(run)]) == 0
    said = capsys.readouterr().out
    result = Run(run).finished()
    assert f"test Dice {result['test_dice']:.4f}, loss" in said
    assert f"bright  {result['images_per_class']['test']['bright']:>6}  " in said
    again = ["train", "digits-segmentation", "--config", str(run / "result.json"), "--data.root", str(folder)]
    assert main([*again, "--out", str(run)]) == 0
    said = capsys.readouterr().out
    assert "nothing was trained" in said and f"test Dice {result['test_dice']:.4f}, validation Dice" in said
    assert main(["evaluate", str(run), "--folder", str(folder)]) == 2
    assert "must hold a classifier, got a network that segments" in capsys.readouterr().err


def test_a_run_is_shown_on_the_playground(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shown = load_playground([run], run).networks[0]
    assert isinstance(shown, Segmenter) and shown.samples is not None and shown.samples.masks is not None
    trained = load_model(run)
    assert (shown.name, shown.classes, shown.image_shape) == ("run", ("bright", "dim"), (1, 16, 16))
    images = shown.samples.images[:2] / 255
    with torch.no_grad():
        assert torch.equal(shown.see(images[1]), trained.model(images[1:]).scores[0])
    shutil.copytree(run, tmp_path / "gone")
    config = json.loads((run / "config.json").read_text())
    config["data"]["root"] = str(tmp_path / "nowhere")
    (tmp_path / "gone" / "config.json").write_text(json.dumps(config))
    bare = load_segmenter(tmp_path / "gone")
    assert bare.samples is None and "the playground has no test images of" in caplog.text
    with pytest.raises(ValueError, match="must hold a classifier, got a network that segments"):
        load_network(run)


def test_whole_images_are_drawn_for_a_network_of_crops(tmp_path: Path) -> None:
    config = replace(TINY, data=replace(TINY.data, crop=(8, 12)), epochs=1)
    train(config, tmp_path, dataset=dataset(), progress="none")
    assert load_segmenter(tmp_path).image_shape == (*load_model(tmp_path).image_shape[:1], *dataset().image_shape[1:])


@pytest.mark.parametrize("form", ["pt2", "safetensors"])
def test_scores_of_pixels_are_exported(
    form: str, folder: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    file = tmp_path / f"model.{form}"
    assert main(["export", str(run), "--format", form, "--out", str(file), "--data.root", str(folder)]) == 0
    assert re.search(r"its scores of \d+ images of mask-folder differ by at most", capsys.readouterr().out)
    if form == "pt2":
        images, extra = torch.rand(3, 1, 16, 16), {"torchcaps": ""}
        found = torch.export.load(file, extra_files=extra).module()(images)
        with torch.no_grad():
            wanted = load_model(run).model(images).scores
        assert found.shape == (3, 2, 16, 16)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        said = json.loads(extra["torchcaps"])
        assert said["classes"] == ["bright", "dim"] and said["scores"].startswith("of each class at each pixel")


def test_int8_says_the_dice_score_before_and_after(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    for name in ("onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    import onnxruntime

    file, before = tmp_path / "int8.onnx", tmp_path / "float32.onnx"
    assert main(["export", str(run), "--format", "onnx", "--out", str(before)]) == 0
    assert main(["export", str(run), "--format", "onnx", "--int8", "--out", str(file)]) == 0
    said = capsys.readouterr().out
    test = data_for(Run(run).experiment(), load_model(run), run).test
    assert test.masks is not None
    images, found = test.images.float().div(255).numpy(), {}
    for path in (file, before):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found[path] = torch.from_numpy(session.run(None, {"images": images})[0])
    (dice, wrong), (dice_before, wrong_before) = (
        (dice_score(each, test.masks.float()), ((each > 0.5) != test.masks).any(dim=1).double().mean())
        for each in found.values()
    )
    assert (
        f"test Dice {dice.mean():.4f} instead of {dice_before.mean():.4f}, {wrong:.2%} of pixels wrong instead of "
        f"{wrong_before:.2%}, on {len(test)} images; "
        f"scores differ by at most {(found[file] - found[before]).abs().max():.2f}"
    ) in said
    for k, name in enumerate(("bright", "dim")):
        assert f"{name}: Dice {dice[k]:.4f} instead of {dice_before[k]:.4f}\n" in said
    assert not torch.equal(found[file], found[before])
    proto = onnx.load(str(file))
    told = json.loads(next(each.value for each in proto.metadata_props if each.key == "torchcaps"))["int8"]
    for scores, error, there in ((dice, wrong, told), (dice_before, wrong_before, told["in_float32"])):
        assert there["test_dice"] == pytest.approx(dict(zip(("bright", "dim"), scores.tolist())))
        assert there["wrong_pixels"] == pytest.approx(float(error))
    assert told["of_images"] == len(test) and "test_error" not in told
    floats = {each.name for each in proto.graph.initializer if each.data_type == onnx.TensorProto.FLOAT}
    weighed = [node for node in proto.graph.node if node.op_type in ("Conv", "ConvTranspose")]
    assert weighed and not any(floats & {*node.input} for node in weighed)  # all are of 8 bits


def test_tuning_chooses_by_the_dice_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, tried = iter((0.2, 0.5, 0.9, 0.4, 0.9, 0.1)), list[Experiment]()

    def scripted(config: Experiment, *_: object, **__: object) -> dict[str, Any]:
        tried.append(config)
        facts = ("epochs", "seconds", "data", "device", "versions", "commit")
        return {"val_dice": next(scores), **dict.fromkeys(facts, "")}

    monkeypatch.setattr("torchcaps.training.tuning.train", scripted)
    said = list[str]()
    found = tune("digits-segmentation", runs=tmp_path, say=said.append)
    assert found["best"] == {"optim.lr": 0.03, "optim.weight_decay": 2e-7}
    assert [trial["val_error"] for trial in found["trials"]] == pytest.approx([0.8, 0.5, 0.1, 0.6, 0.1, 0.9])
    assert "validation Dice error 10.00%" in said[2] and all(config.trial for config in tried)


def test_tuning_trains_and_sees_no_test_image(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data.name", "mask-folder", "--data.root", str(folder), "--data.image_size", "[16, 16]"]
    options += ["--data.options.classes", "[bright, dim]", "--runs", str(tmp_path), "--smoke", "--threads", "1"]
    assert main(["tune", "digits-segmentation-unet", *options, "--grid", "optim.lr=1e-3,1e-2"]) == 0
    assert "validation Dice error, %" in capsys.readouterr().out
    table = json.loads((tmp_path / "tuning" / "digits-segmentation-unet-smoke-grid" / "table.json").read_text())
    for row in table["rows"]:
        assert len(row["val_error"]) == 1 and 0 <= row["val_error"][0] <= 1
    (first, _) = sorted((tmp_path / "tuning" / "digits-segmentation-unet-smoke-grid").glob("*/result.json"))
    assert not any(key.startswith("test") for key in json.loads(first.read_text()))
    assert main(["tune", "digits-segmentation", *options]) == 0
    assert capsys.readouterr().out.count("validation Dice error") == 6


def test_masks_are_written_and_never_overwritten(
    folder: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = folder / "images"
    command = ["predict", str(run), str(images / "3.png"), str(images / "4.png"), "--masks", str(tmp_path / "out")]
    assert main(command) == 0
    assert f"wrote 2 masks into {tmp_path / 'out'}" in capsys.readouterr().out
    found = read_mask(tmp_path / "out" / "3.png", 2)
    assert found.shape == (20, 24)  # as the image
    ((path, numbers),) = predict_masks(run, [images / "3.png"])
    assert path == str(images / "3.png") and isinstance(numbers, torch.Tensor)
    assert np.array_equal(numbers.numpy(), found)
    before = (tmp_path / "out" / "3.png").read_bytes()
    assert main(command) == 2
    assert f"new files, got {tmp_path / 'out' / '3.png'}, which is there" in capsys.readouterr().err
    assert (tmp_path / "out" / "3.png").read_bytes() == before
    assert main(command[:-2]) == 2
    assert "--masks must name a folder for the masks" in capsys.readouterr().err
    assert main([*command, "--csv", "a.csv"]) == 2
    assert "--csv must be left out for a run that segments" in capsys.readouterr().err


def test_files_that_cannot_be_segmented(folder: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"nothing")
    (tmp_path / "a" / "0.png").write_bytes((folder / "images" / "0.png").read_bytes())
    written, wrong = write_masks(run, [tmp_path / "a"], tmp_path / "out")
    assert [path.name for path in written] == ["0.png"]
    assert len(wrong) == 1 and "broken.png cannot be read as an image" in wrong[0]
    with pytest.raises(ValueError, match=r"images must have different names, got 2 whose mask would be .*0.png"):
        write_masks(run, [tmp_path / "a" / "0.png", folder / "images" / "0.png"], tmp_path / "more")
    assert not (tmp_path / "more").exists()
    with pytest.raises(ValueError, match="masks must be written to a folder, got .*, which is a file"):
        write_masks(run, [folder], tmp_path / "a" / "0.png")


def test_a_classifier_writes_no_masks(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["predict", "pretrained:mnist-small", str(folder / "images" / "0.png"), "--masks", str(tmp_path / "out")]
    assert main(command) == 2
    assert "must hold a network that segments to write masks, got a classifier" in capsys.readouterr().err


def test_inverted_images_are_seen_inverted(folder: Path, run: Path, tmp_path: Path) -> None:
    image = Image.open(folder / "images" / "7.png")
    Image.fromarray(255 - np.array(image)).save(tmp_path / "7.png")
    ((_, plain),) = predict_masks(run, [folder / "images" / "7.png"])
    ((_, inverted),) = predict_masks(run, [tmp_path / "7.png"], invert=True)
    assert isinstance(plain, torch.Tensor) and isinstance(inverted, torch.Tensor)
    assert (plain != inverted).float().mean() < 0.05  # resizing rounds both ways


def test_the_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "unet"
    train(replace(TINY, epochs=1), other, dataset=dataset(), progress="none")
    assert main(["report", str(run), "--beside", str(other)]) == 0
    html = (run / "report.html").read_text()
    result = Run(run).finished()
    for text in ("Dice score of each class", "Examples", "Worst examples", "test Dice score", "2 classes"):
        assert text in html
    for score in (result["test_dice"], *result["test_dice_per_class"].values(), Run(other).finished()["test_dice"]):
        assert f"{score:.4f}" in html
    for picture in ("masks", "worst-masks", "curves"):
        assert (run / "pictures" / f"{picture}.png").is_file()


def test_recipes_are_of_the_same_size() -> None:
    sizes = {}
    for name in ("digits-segmentation", "digits-segmentation-unet"):
        model = recipe(name).model
        sizes[name] = sum(p.numel() for p in build(model.name, (1, 32, 32), 3, **model.options).parameters())
    assert recipe("digits-segmentation-unet").model.options["n_parameters"] == sizes["digits-segmentation"]
    assert sizes["digits-segmentation-unet"] == pytest.approx(sizes["digits-segmentation"], rel=0.15)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_medical()
    return write_volumes(tmp_path_factory.mktemp("medical") / "scans", 12)


@pytest.fixture(scope="module")
def scans_run(scans: Path) -> Path:
    """A run on volumes, from the command line."""
    out = scans.parent / "run"
    arguments = ["train", "digits-segmentation-unet", "--data.name", "mask-folder", "--data.root", str(scans)]
    arguments += ["--data.image_size", "[16, 16]", "--data.options.window", "[40, 400]", "--epochs", "20"]
    arguments += ["--data.options.empty", "drop", "--batch_size", "4", "--threads", "1", "--device", "cpu"]
    assert main([*arguments, "--out", str(out)]) == 0
    return out


def test_volumes_are_learned_and_reported(scans: Path, scans_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = Run(scans_run).finished()
    assert result["test_dice"] > 0.9
    assert main(["report", str(scans_run), "--data.root", str(scans)]) == 0
    assert "Worst examples" in (scans_run / "report.html").read_text()


@pytest.mark.parametrize("turned", [False, True])
def test_masks_of_volumes_are_volumes(
    turned: bool, scans: Path, scans_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The box is found where it is, whatever order the file's axes have."""
    import nibabel

    values = np.asarray(nibabel.load(scans / "images" / "p2.nii.gz").dataobj)
    truth, affine = values > 0, np.diag([1.0, 1, 2, 1])
    if turned:  # axes: to the head, to the left, to the front
        values, truth = (x.transpose(2, 0, 1)[:, ::-1] for x in (values, truth))
        affine = np.array([[0, -1.0, 0, 0], [0, 0, 1, 0], [2, 0, 0, 0], [0, 0, 0, 1]])
    (tmp_path / "new").mkdir()
    image = write_nifti(tmp_path / "new" / "case.nii.gz", values, affine)
    command = ["predict", str(scans_run), str(tmp_path / "new"), "--masks", str(tmp_path / "out")]
    assert main(command) == 0
    assert f"wrote 1 mask into {tmp_path / 'out'}" in capsys.readouterr().out
    mask = nibabel.load(tmp_path / "out" / "case.nii.gz")
    found = np.asarray(mask.dataobj)
    assert found.shape == values.shape and np.array_equal(mask.affine, nibabel.load(image).affine)
    dice = 2 * (found & truth).sum() / (found.sum() + truth.sum())
    assert dice > 0.8
    before = (tmp_path / "out" / "case.nii.gz").read_bytes()
    assert main(command) == 2
    assert "which is there" in capsys.readouterr().err
    assert (tmp_path / "out" / "case.nii.gz").read_bytes() == before


def test_masks_of_dicom_files_are_pictures(scans_run: Path, tmp_path: Path) -> None:
    values = np.full((20, 16), 24, np.uint16)
    values[5:11, 4:10] = 1084
    path = write_dicom(tmp_path / "new" / "a.dcm", values, RescaleSlope="1", RescaleIntercept="-1024")
    written, wrong = write_masks(scans_run, [path.parent], tmp_path / "out")
    assert [file.name for file in written] == ["a.png"] and not wrong
    found = read_mask(written[0], 1)
    assert found.shape == (20, 16) and found[6:10, 5:9].all() and not found[14:].any()
    (path.parent / "notes").write_text("no image")
    path.rename(path.with_name("1.2.840.7"))  # as scanners name files
    written, wrong = write_masks(scans_run, [path.parent], tmp_path / "again")
    assert [file.name for file in written] == ["1.2.840.7.png"] and not wrong
    assert np.array_equal(read_mask(written[0], 1), found)
