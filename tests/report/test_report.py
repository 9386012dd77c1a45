"""A report of runs that were never trained, but look as if: tiny, with numbers that one knows."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from torchcaps import explain
from torchcaps.data import load
from torchcaps.layers import Decoder
from torchcaps.models import MODELS, ModelOutput
from torchcaps.ops import Capsules, squash
from torchcaps.training import Data, Experiment, Model
from torchcaps.training.build import make_model
from torchcaps.training.checkpoint import save_model
from torchcaps.training.config import smoke
from torchcaps.training.files import read_json, write_json
from torchcaps.training.run import Run

pytest.importorskip("matplotlib")

from torchcaps.report import write_report
from torchcaps.report.evaluated import evaluate_run
from torchcaps.report.report import headline
from torchcaps.training import files

CAPSULES = Model("capsnet_small", {"channels": 4, "n_types": 2, "kernel_size": 5, "d_class": 4, "decoder": [6]})
CNN = Model("matched_cnn", {"n_parameters": 3000})
ROW = "1,2,0.001,0.5,0.4,0.25,1.5\n"


def finished(path: Path, data: Data, model: Model, **options: Any) -> Path:
    """A run folder with a model as it was born."""
    torch.manual_seed(0)
    run, config = Run(path), Experiment(recipe="tiny", data=data, model=model, batch_size=2, **options)
    run.open(config)
    dataset = load(data.name, data.root, data.image_size)
    save_model(run, make_model(config, dataset), config, dataset)
    run.metrics.write_text(f"epoch,step,lr,train_loss,val_loss,val_error,seconds\n{ROW}")
    result = {"val_error": 0.25, "test_error": 0.1234, "seconds": 3725.0, "n_parameters": 4321, "epochs": 1, "seed": 5}
    result |= {"device": "Abacus <wood>", "commit": "0123456789abcdef-dirty", "versions": {"torch": "2"}}
    write_json(run.result, result | {"recipe": "tiny", "config": config.to_dict()})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs "caps", "cnn & co" and "pairs" on red and green rectangles."""
    folder = tmp_path_factory.mktemp("report")
    for name, colour in (("green", (0, 200, 0)), ("red", (200, 0, 0))):
        (folder / "data" / name).mkdir(parents=True)
        for k in range(12):
            Image.new("RGB", (14 + k, 12), colour).save(folder / "data" / name / f"{k}.png")
    data = Data("folder", root=str(folder / "data"), image_size=(13, 15))
    finished(folder / "caps", data, CAPSULES)
    finished(folder / "cnn & co", data, CNN, loss="cross_entropy")
    finished(folder / "pairs", replace(data, pairs=True, n_pairs=(4, 6)), CAPSULES)
    return folder


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    """The report of the run "caps" beside the other two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "DPI", 30)
        return write_report(folder / "caps", (folder / "cnn & co", folder / "pairs")).read_text(encoding="utf-8")


#: Sections that every classifier of one label an image has.
CLASSES = ("Confusion matrix", "Classes one by one", "Calibration")


def titles(html: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", html)


def test_every_section_is_there(html):
    assert titles(html) == [
        "Side by side",
        "Training",
        "Confusion matrix",
        "Classes one by one",
        "Calibration",
        "Reconstructions",
        "What the dimensions of a capsule encode",
        "Where the votes come from",
        "Parse tree",
        "Segmentation of overlapping images (pairs)",
        "Where the votes come from (pairs)",
        "Parse tree (pairs)",
        "How it was made",
    ]


def test_the_numbers_are_those_of_the_result(html):
    assert "<h1>caps</h1>" in html
    for name, value in (("test error", "12.34 %"), ("validation error", "25.00 %"), ("training time", "1 h 2 min")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in html
    assert "Seed 5, commit 0123456789-dirty, on Abacus &lt;wood&gt;." in html
    cells = re.sub(r"\s*</?(?:td|th|tr)[^>]*>\s*", "|", html)
    assert re.search(r"run\|+test error\|+validation error", cells) and re.search(r"\|12\.34 %\|+25\.00 %\|", cells)


def test_parameters_are_counted_with_and_without_decoder(html, folder):
    weights = torch.load(folder / "caps" / "model.pt", weights_only=True)["state_dict"]
    weights = {name: weight for name, weight in weights.items() if not name.endswith((".scale", "_extra_state"))}
    every = sum(weight.numel() for weight in weights.values())
    decoder = sum(weight.numel() for name, weight in weights.items() if name.startswith("decoder."))
    assert 0 < decoder < every
    assert f"<td>{every - decoder:,}</td><td>{every:,}</td><td>3,725</td>" in html
    assert "<td>cnn &amp; co (matched_cnn)</td>" in html


def test_the_page_asks_for_nothing_else(html):
    sources = re.findall(r'src="(.{22})', html)
    assert len(sources) == 11
    assert set(sources) == {"data:image/png;base64,"}
    rest = re.sub(r'base64,[^"]*', "", html)
    assert not re.search(r"https?:|<script|<link|@import|url\(", rest)


def test_pictures_are_files_too_and_nothing_half_written_stays(html, folder):
    names = sorted(path.name for path in (folder / "caps" / "pictures").iterdir())
    assert names == [
        "calibration.png",
        "confusion.png",
        "couplings.png",
        "curves.png",
        "dimensions-0.png",
        "pairs-pairs-couplings.png",
        "pairs-pairs-parse-tree.png",
        "pairs-segmentation.png",
        "parse-tree.png",
        "perturbations.png",
        "reconstructions.png",
    ]
    for name in names:
        with Image.open(folder / "caps" / "pictures" / name) as picture:
            picture.verify()
    assert not list((folder / "caps").rglob("*.partial"))


def test_a_cnn_has_its_mistakes_shown_and_the_same_run_gives_the_same_page(folder, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    first = write_report(folder / "cnn & co").read_text(encoding="utf-8")
    assert titles(first) == ["Training", *CLASSES, "Mistakes", "How it was made"]
    assert write_report(folder / "cnn & co").read_text(encoding="utf-8") == first


def test_two_folders_of_one_name_are_refused(folder, tmp_path):
    """In curves and tables one would stand for the other."""
    finished(tmp_path / "caps", Data("digits"), CAPSULES)
    with pytest.raises(ValueError, match=r"beside must be runs in folders of other names, got caps, cnn & co, caps"):
        write_report(folder / "caps", (folder / "cnn & co", tmp_path / "caps"))


def test_metrics_without_what_is_drawn(tmp_path):
    path = finished(tmp_path / "cut", Data("digits"), CAPSULES)
    Run(path).metrics.write_text("epoch,step\n1,2\n")
    with pytest.raises(
        ValueError, match=r"runs must have epoch, lr, train_loss, val_loss in every row, got epoch, step"
    ):
        write_report(path)


def test_one_run_beside_is_a_list_too(folder):
    with pytest.raises(ValueError, match=r"beside must be several, such as \['runs/cnn'\], got one"):
        write_report(folder / "caps", beside="runs/cnn")


def test_that_networks_were_tested_on_other_images_is_said(html, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    finished(tmp_path / "digits", Data("digits", n_eval=4), CAPSULES)
    beside = write_report(folder / "cnn & co", (tmp_path / "digits",)).read_text(encoding="utf-8")
    assert re.search(r"Their test images differ: 360 images, labels \w{8}; 4 images, labels", beside)
    assert "Their test images differ" not in html


def test_fewer_of_the_same_test_images_are_not_the_same(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    data = Data("digits", image_size=(13, 15))
    for name, n in (("all", 360), ("some", 20)):
        run = Run(finished(tmp_path / name, data, CNN, loss="cross_entropy"))
        write_json(run.result, read_json(run.result) | {"images": {"test": n}})
    beside = write_report(tmp_path / "all", (tmp_path / "some",)).read_text(encoding="utf-8")
    assert re.search(r"test images differ: 20 of 360 images, labels (\w{8}); 360 images, labels \1\.", beside)
    assert "their errors are comparable" in beside and "overfits" in beside


def test_errors_on_what_was_trained_on_are_not_to_be_compared(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    drawn: list[list[str]] = []
    draw = explain.draw_curves
    monkeypatch.setattr(explain, "draw_curves", lambda runs: drawn.append(list(runs)) or draw(runs))
    run = Run(finished(tmp_path / "seen", Data("digits", image_size=(13, 15)), CNN, loss="cross_entropy"))
    write_json(run.result, read_json(run.result) | {"held_out": False})
    alone = write_report(run.path).read_text(encoding="utf-8")
    assert drawn == [["seen (trained on too)"]]
    assert "are comparable" not in alone and "overfits" not in alone and "do not measure generalization" in alone


def test_of_several_windows_it_is_said_that_pictures_show_one(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    said = []
    for n in (1, 13):
        data = Data("digits", n_eval=4, crop=(20, 20), test_crops=n)
        said.append(write_report(finished(tmp_path / str(n), data, CAPSULES)).read_text(encoding="utf-8"))
    assert ["average the scores of all 13 windows" in text for text in said] == [False, True]


@pytest.mark.parametrize("learned", [False, True])
def test_first_couplings_are_even_unless_they_were_learned(folder, tmp_path, monkeypatch, learned):
    monkeypatch.setattr(files, "DPI", 30)
    model = replace(CAPSULES, options=CAPSULES.options | {"learned_logits": learned, "decoder": None})
    path = finished(tmp_path / "caps", replace(Data("digits"), n_eval=4), model)
    said = write_report(path).read_text(encoding="utf-8")
    assert ("divides its vote equally" in said) == ("all classes are equal" in said) == (not learned)
    assert ("by learned initial logits" in said) == learned


@pytest.mark.parametrize(
    ("commit", "said"),
    [
        (f"{'a' * 40}", "a" * 10),
        (f"{'a' * 40} {'b' * 40}-dirty", f"{'a' * 10}, {'b' * 10}-dirty"),
        (f"{'a' * 40}-dirty {'b' * 40}", f"{'a' * 10}-dirty, {'b' * 10}"),
        (f"unknown {'b' * 40}", f"unknown, {'b' * 10}"),
        (None, "unknown"),
    ],
)
def test_every_commit_that_took_part_is_named(folder, tmp_path, commit, said):
    run = Run(finished(tmp_path / "caps", Data("digits", n_eval=4), CAPSULES))
    write_json(run.result, read_json(run.result) | {"commit": commit})
    assert f"Seed 5, commit {said}, on Abacus" in headline(run)


def test_a_smoke_run_is_called_one(tmp_path):
    run = Run(finished(tmp_path / "caps", Data("digits", n_eval=4), CAPSULES))
    assert "trained for 1 epoch on" in headline(run) and "--smoke" not in headline(run)
    write_json(run.config, replace(run.experiment(), recipe="cigarette-smoke").to_dict())
    assert "--smoke" not in headline(run)
    write_json(run.config, smoke(run.experiment()).to_dict())
    assert "smoke test (--smoke): two steps on eight images, whose numbers mean nothing" in headline(run)


def test_one_iteration_is_shown_beside_one_more_and_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    for n, said in ((1, 2), (2, 0)):  # of the couplings and of the parse tree
        model = replace(CAPSULES, options=CAPSULES.options | {"n_iters": n})
        html = write_report(finished(tmp_path / f"caps{n}", Data("digits", n_eval=10), model)).read_text(
            encoding="utf-8"
        )
        assert len(re.findall(r"<p>[^<]*This network predicts after the first iteration", html)) == said


def test_what_was_trained_on_is_said_to_be(tmp_path):
    run = Run(finished(tmp_path / "caps", Data("digits"), CAPSULES))
    assert "<dt>validation error</dt>" in headline(run)
    write_json(run.result, run.finished() | {"held_out": False})
    assert "<dt>validation error (trained on too)</dt>" in headline(run) and "images held out of training" in headline(
        run
    )
    note = "; 3 of its 9 test images are copies of training images"
    write_json(run.result, run.finished() | {"data": note})
    assert note in headline(run) and "held out of training" not in headline(run)


def test_a_name_is_no_formula(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    for name, colour in (("$b^{$", (0, 200, 0)), ("$", (200, 0, 0))):
        (tmp_path / "data" / name).mkdir(parents=True)
        for k in range(12):
            Image.new("RGB", (14 + k, 12), colour).save(tmp_path / "data" / name / f"{k}.png")
    data = Data("folder", root=str(tmp_path / "data"), image_size=(13, 15))
    assert "$b^{$" in write_report(finished(tmp_path / "a$b^{$", data, CAPSULES)).read_text(encoding="utf-8")


def test_a_run_on_pairs_has_its_own_report(folder, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    html = write_report(folder / "pairs").read_text(encoding="utf-8")
    assert titles(html)[1:-1] == ["Segmentation of overlapping images", "Where the votes come from", "Parse tree"]


def test_capsules_without_a_decoder_have_a_report(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    config = json.loads((folder / "caps" / "config.json").read_text())
    data = Data("folder", root=config["data"]["root"], image_size=(13, 15))
    run = finished(tmp_path / "bare", data, Model(CAPSULES.name, CAPSULES.options | {"decoder": None}))
    html = write_report(run).read_text(encoding="utf-8")
    assert titles(html)[4:-1] == ["Mistakes", "Where the votes come from", "Parse tree"]


class Own(nn.Module):
    """A network of one's own: one linear layer to the class capsules, and the library's decoder."""

    def __init__(self, image_shape: tuple[int, int, int], n_classes: int, capsules: bool = True) -> None:
        super().__init__()
        self.capsules = capsules
        self.n_classes, self.linear = n_classes, nn.Linear(math.prod(image_shape), 3 * n_classes)
        self.decoder = Decoder(n_classes, 3, image_shape, (6,))

    def forward(self, x: Tensor) -> ModelOutput:
        pose = squash(self.linear(x.flatten(1)).unflatten(1, (self.n_classes, 3)))
        return ModelOutput(pose.norm(dim=-1), (Capsules(pose, pose.norm(dim=-1)),) if self.capsules else ())


def test_a_network_of_ones_own_shows_what_its_decoder_paints(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DPI", 30)
    monkeypatch.setitem(MODELS, "mine", Own)
    config = json.loads((folder / "caps" / "config.json").read_text())
    data = Data("folder", root=config["data"]["root"], image_size=(13, 15))
    html = write_report(finished(tmp_path / "mine", data, Model("mine"))).read_text(encoding="utf-8")
    assert titles(html)[4:-1] == ["Reconstructions", "What the dimensions of a capsule encode"]
    bare = finished(
        tmp_path / "bare", data, Model("mine", {"capsules": False}), loss="cross_entropy", reconstruction=0.0
    )
    assert titles(write_report(bare).read_text(encoding="utf-8"))[4:-1] == ["Mistakes"]
    pairs = finished(tmp_path / "pairs", replace(data, pairs=True, n_pairs=(4, 6)), Model("mine"))
    assert titles(write_report(pairs).read_text(encoding="utf-8"))[1:-1] == ["Segmentation of overlapping images"]


@pytest.mark.parametrize(("pose", "d_primary", "d_class"), [("matrix", 16, 16), ("vector", 8, 4)])
def test_a_capsnet_that_routes_by_em_has_a_report(folder, tmp_path, monkeypatch, pose, d_primary, d_class):
    monkeypatch.setattr(files, "DPI", 30)
    em = {"routing": "em", "pose": pose, "d_primary": d_primary, "d_class": d_class}
    run = finished(tmp_path / "em", replace(Data("digits"), n_eval=4), Model(CAPSULES.name, CAPSULES.options | em))
    html = write_report(run).read_text(encoding="utf-8")
    assert {"Where the votes come from", "Parse tree"} <= set(titles(html))
    assert "divides its vote equally" in html


def test_what_a_run_predicts_is_what_its_model_says(folder):
    tested = evaluate_run(Run(folder / "caps"))
    assert tested.classes == ("green", "red")
    assert tested.images.shape == (4, 3, 13, 15)  # a fifth of 12 images of each class
    assert tested.wrong.tolist() == (tested.predicted != tested.labels)[:, 0].tolist()
    assert len(evaluate_run(Run(folder / "pairs")).images) == 6


def test_an_unfinished_run_is_refused_by_name(folder, tmp_path):
    with pytest.raises(ValueError, match="must hold a finished run, but it has no result.json"):
        write_report(tmp_path)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "none"))):
        write_report(folder / "caps", [tmp_path / "none"])


def test_a_picture_that_lies_in_the_folder_is_embedded_as_if_it_were_drawn(tmp_path, monkeypatch):
    from torchcaps.explain import draw_confusion
    from torchcaps.report.page import Album

    album = Album(Run(tmp_path))
    drawn = album.add("confusion", draw_confusion(torch.eye(2, dtype=torch.int64), ("a", "b")), "Two classes.")
    assert album.embed("confusion", "Two classes.") == drawn
    assert album.embed("other", "No picture.") == "<p>No picture.</p>"
