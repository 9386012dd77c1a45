"""Reports of matrix capsules, on objects whose viewpoints are known, or are not."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from torchcaps.data import DATASETS, Dataset, Images
from torchcaps.training import Data, Model
from torchcaps.training.files import write_json
from torchcaps.training.run import Run

pytest.importorskip("matplotlib")

from tests.report.test_report import finished, titles
from torchcaps.report import write_report
from torchcaps.report.evaluated import evaluate_run
from torchcaps.report.matrix_capsules import _sides_of
from torchcaps.training import files

SIZES = {"A": 2, "B": 2, "C": 2, "D": 2}


def objects(names: tuple[str, ...] = ("instance", "elevation", "azimuth", "lighting"), novel: bool = False) -> Dataset:
    """Two objects of two classes, seen from 2×3 viewpoints (of which the first azimuth alone is familiar, if any
    are novel) under 2 lightings."""
    views = torch.tensor(
        list(product((0, 1), (0, 1), (0, 2, 4), (0, 1), (0, 1)))
    )  # with the class, which varies fastest
    pixels = torch.randint(0, 256, (len(views), 2, 26, 28), dtype=torch.uint8)
    every = Images(pixels, views[:, 4], {name: views[:, k].contiguous() for k, name in enumerate(names)})
    part = every.take(views[:, 2] == 0) if novel else every
    rest = {"novel": every.take(views[:, 2] != 0)} if novel else {}
    return Dataset("smallnorb", ("cat", "dog"), part, part, part, rest)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that gives the folder of a finished run on objects."""
    monkeypatch.setattr(files, "DPI", 30)

    def run(dataset: Dataset, loss: str = "spread", **options: Any) -> Path:
        monkeypatch.setitem(DATASETS, "objects", lambda root, image_size: dataset)
        data = Data("objects", shift=0, crop=(24, 26), test_crops=1)
        return finished(tmp_path / "em", data, Model("matrix_capsnet", SIZES | options), loss=loss)

    return run


def test_every_section_is_there_and_its_picture_too(make):
    path = make(objects())
    html = write_report(path).read_text(encoding="utf-8")
    assert titles(html) == [
        "Training",
        "Confusion matrix",
        "Classes one by one",
        "Calibration",
        "Mistakes",
        "What a class is made of",
        "Votes that agree",
        "Seen from all sides",
        "How it was made",
    ]
    names = {file.name for file in (path / "pictures").iterdir()}
    assert names >= {"confusion.png", "curves.png", "mistakes.png", "parts.png", "votes.png"}
    assert len(names) == 7 and any(re.fullmatch(r"views-[01]\.png", name) for name in names)
    for name in names:
        with Image.open(path / "pictures" / name) as picture:
            grey = picture.convert("L").getextrema()
        assert grey[0] < 100 and grey[1] == 255, f"{name} is empty"
    assert "The margin of the spread loss grows" in html
    assert "new to it" not in html
    assert "which training has, from every azimuth" in html  # these objects are in every split
    assert write_report(path).read_text(encoding="utf-8") == html


def test_angles_of_ones_own_data_are_in_degrees_already(make):
    thing = _sides_of(evaluate_run(Run(make(replace(objects(), name="mine")))), 0)
    assert set(thing.azimuth.tolist()) == {0, 2, 4} and set(thing.elevation.tolist()) == {0, 1}


def test_a_toy_that_was_not_trained_on_is_called_so(make):
    every = objects()
    first = every.train.factors["instance"] == 0
    html = write_report(make(replace(every, train=every.train.take(first), test=every.test.take(~first))))
    assert "which training does not have, from every azimuth" in html.read_text(encoding="utf-8")


def test_of_toys_that_training_does_not_name_nothing_is_said(make):
    every = objects()
    nameless = replace(every.train, factors={})
    assert _sides_of(evaluate_run(Run(make(replace(every, train=nameless)))), 0).known == ""


def test_without_viewpoints_the_section_says_why_it_is_empty(make):
    path = make(objects(("instance", "height", "azimuth", "lighting")), loss="margin")
    html = write_report(path).read_text(encoding="utf-8")
    assert "Not shown: these data lack the elevation of each test image." in html
    assert not list((path / "pictures").glob("views*"))
    assert "spread loss" not in re.sub("<pre>.*</pre>", "", html, flags=re.DOTALL)


def test_dynamic_routing_has_no_clusters_to_show(make):
    path = make(objects(), loss="margin", routing="dynamic")
    html = write_report(path).read_text(encoding="utf-8")
    assert titles(html)[5:-1] == ["What a class is made of", "Votes that agree", "Seen from all sides"]
    assert "Not shown: EM does not route this network&#x27;s class capsules" in html
    assert not (path / "pictures" / "votes.png").exists()


def test_a_toy_is_seen_from_novel_viewpoints_too(make):
    tested = evaluate_run(Run(make(objects(novel=True))))
    k = 5
    thing = _sides_of(tested, k)
    every, here = tested.data.test, tested.data.test.factors["instance"][k]
    assert len(thing.images) == 2 * 3 * 2
    assert thing.familiar.tolist() == [True] * 4 + [False] * 8
    assert thing.azimuth.tolist() == [0] * 4 + [20, 20, 40, 40] * 2
    assert set(thing.elevation.tolist()) == {30, 35}
    mine = (every.labels == tested.labels[k, 0]) & (every.factors["instance"] == here)
    torch.testing.assert_close(thing.images[:4], tested.images[mine])  # cut as the network sees them
    assert thing.images.shape[1:] == (2, 24, 26)


def test_of_few_test_images_the_toy_is_still_that_of_the_image(make):
    """Those that are evaluated are drawn from all, so they are not the first."""
    run = Run(make(objects()))
    config = run.experiment()
    write_json(run.config, replace(config, data=replace(config.data, n_eval=9)).to_dict())
    tested = evaluate_run(run)
    assert len(tested.images) == 9
    for k in range(9):
        thing = _sides_of(tested, k)
        assert any(torch.equal(image, tested.images[k]) for image in thing.images)


def test_the_report_says_what_is_new_where_it_is(make):
    html = write_report(make(objects(novel=True))).read_text(encoding="utf-8")
    assert "Dots mark the viewpoints that training has" in html
