"""What every measure shares: its images, its file, what is kept, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from study import records
from study.cli import main
from study.measures import Measure, record
from study.measures.said import Said, in_words, mean, per_cent
from study.measures.sample import choose, networks, sample, spaced
from study.measures.write import as_markdown
from study.recipes import RECIPES
from study.tests.measures.measured import DIGITS, measured
from tests.report.test_report import CAPSULES, CNN, finished
from torchcaps.report import evaluate_run
from torchcaps.training.files import write_json
from torchcaps.training.run import Run


def test_a_measure_names_the_code_that_began_it(folder, monkeypatch):
    commits = iter(("first", "later"))

    def takes_hours(tested: Any, **_: Any) -> dict[str, Any]:
        assert next(commits, None) == "later"  # the first was asked for before
        return {"n": 1, "run": {}, "beside": None}

    monkeypatch.setattr(record, "commit", lambda: next(commits))
    monkeypatch.setitem(record.MEASURES, "routing", Measure(takes_hours, lambda *_: Figure(), lambda *_: {}))
    assert json.loads(record.record("routing", folder / "caps").read_text())["commit"] == "first"


def test_what_another_process_kept_meanwhile_is_not_replaced(folder, monkeypatch, tmp_path):
    def overtaken(tested: Any, **_: Any) -> dict[str, Any]:
        records.write("measures", "tiny-5/routing", {"another": "process"}, tmp_path)
        return {"n": 1, "run": {}, "beside": None}

    monkeypatch.setitem(record.MEASURES, "routing", Measure(overtaken, lambda *_: Figure(), lambda *_: {}))
    monkeypatch.setitem(RECIPES, "tiny", Run(folder / "caps").experiment)
    with pytest.raises(ValueError, match=r"tiny-5/routing is another record: remove that line"):
        record.record("routing", folder / "caps", keep_in=tmp_path)
    assert records.read("measures", "tiny-5/routing", tmp_path) == {"another": "process"}


def test_a_measure_of_another_experiment_than_the_recipe_is_not_kept(folder, monkeypatch, tmp_path):
    """Else its numbers would stand under the recipe's name, as those of a run from before it was changed would."""
    config = Run(folder / "caps").experiment()
    for changed, message in (
        ({}, "keep wants a recipe as it is except for seed and epochs, got another experiment of tiny"),
        ({"tiny": lambda: replace(config, reconstruction=0.5)}, "keep wants a recipe as it is"),
    ):
        for name, recipe in changed.items():
            monkeypatch.setitem(RECIPES, name, recipe)
        with pytest.raises(ValueError, match=message):
            record.record("routing", folder / "caps", keep_in=tmp_path)
    assert not any(tmp_path.iterdir())


def test_what_is_kept_is_never_replaced(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(RECIPES, "tiny", Run(folder / "caps").experiment)
    arguments = ["measure", "picasso", str(folder / "caps"), "--n", "4", "--keep", str(tmp_path)]
    assert main(arguments) == 0
    assert "| picasso | `caps` |" in capsys.readouterr().out
    kept = tmp_path / "measures.jsonl"
    before = kept.read_bytes()
    assert records.read("measures", "tiny-5/picasso", tmp_path)["n"] == 4
    assert main([*arguments, "--n", "5"]) == 2 and kept.read_bytes() == before
    assert "is kept already" in capsys.readouterr().err


def test_a_run_that_cannot_be_written_to_is_found_before_the_work(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "caps", tmp_path / "caps", ignore=shutil.ignore_patterns("measures"))
    (tmp_path / "caps" / "measures").write_text("somebody's")
    monkeypatch.setattr(record, "evaluate_run", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(ValueError, match=r"run must be a folder that can be written to, got .*measures: .* is none"):
        measured("routing", tmp_path / "caps", n=10)


def test_a_measure_takes_the_place_of_none_that_says_more(folder, tmp_path):
    for name in ("one", "two"):
        finished(tmp_path / name, DIGITS, CAPSULES)
    record.record("picasso", tmp_path / "one", beside=folder / "cnn", n=6)
    path = record.record("picasso", tmp_path / "one", beside=folder / "cnn", n=8)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is of 8 images: n must be as many, or move it; got 7"):
        record.record("picasso", tmp_path / "one", beside=folder / "cnn", n=7)
    finished(tmp_path / "other", DIGITS, CNN, loss="cross_entropy")  # of the same recipe and seed
    with pytest.raises(ValueError, match="is beside cnn, a run of the same recipe and seed: move it"):
        record.record("picasso", tmp_path / "one", beside=tmp_path / "other", n=8)
    assert path.read_bytes() == before
    write_json(path, json.loads(before) | {"n": 5000})
    with pytest.raises(ValueError, match="is of 5000 images: n must be as many, or move it; got 1000"):
        record.record("picasso", tmp_path / "one", beside=folder / "cnn")  # its own number is no more
    write_json(path.with_name("transfer.json"), {"beside": None, "n": [300, 60, 120]})
    with pytest.raises(ValueError, match="transfer.json is of 300 images: n must be as many, or move it; got 299"):
        record.record("transfer", tmp_path / "one", n=299)
    finished(tmp_path / "elsewhere" / "one", DIGITS, CNN, loss="cross_entropy")
    with pytest.raises(ValueError, match="beside must be a run in a folder of another name, got one and one"):
        record.record("picasso", tmp_path / "one", beside=tmp_path / "elsewhere" / "one")


def test_what_does_not_apply_is_named_and_leaves_nothing(folder):
    caps, pairs = folder / "caps", folder / "pairs"
    before = sorted(folder.rglob("*"))
    for name, run, beside, message in (
        ("pairs", caps, None, "run must be of pairs for this measure, got one of single images"),
        ("matched", caps, None, "beside must be another run, to be matched with"),
        ("matched", caps, folder / "cnn", "must be on data split by viewpoint, got a run without novel viewpoints"),
        ("averaged", pairs, None, "run must be of single images for this measure, got one of pairs"),
        ("picasso", pairs, None, "run must be of single images for this measure, got one of pairs"),
        ("routing", folder / "cnn", None, "model must have a routed layer"),
        ("routing", caps, pairs, "beside must be a run with the same test images"),
        ("transfer", pairs, None, "run must be of whole images of one of mnist, fashion-mnist, digits"),
        ("picasso", folder, None, "must hold a finished run, but it has no result.json"),
    ):
        with pytest.raises(ValueError, match=message):
            record.record(name, run, beside=beside)
    assert sorted(folder.rglob("*")) == before


def test_other_images_of_the_same_classes_are_refused(folder, tmp_path):
    """As the folds of one data set have."""
    one = evaluate_run(Run(folder / "caps"))
    with pytest.raises(ValueError, match="beside must be a run with the same test images"):
        networks(one, one._replace(images=one.images.flip(0)))
    assert networks(one, one._replace(model=torch.nn.Identity()))["beside"].images is one.images


def test_images_are_evenly_spaced():
    assert spaced(10, 5, 3).tolist() == [0, 2, 4, 6, 8]
    assert spaced(10, None, 3).tolist() == [0, 3, 6]
    assert spaced(4, None, 99).tolist() == spaced(4, 4, 3).tolist() == [0, 1, 2, 3]


def test_images_in_a_regular_order_are_drawn(folder):
    """Every fifth image of five categories by turns would be of one of them."""
    tested = evaluate_run(Run(folder / "caps"))
    assert torch.equal(choose(tested, 5, 3), spaced(len(tested.images), 5, 3))
    test = tested.data.test
    known = replace(tested.data, test=replace(test, factors={"toy": test.labels}))
    drawn = choose(tested._replace(data=known), 5, 3)
    assert torch.equal(drawn, choose(tested._replace(data=known), 5, 3)) and len(drawn.unique()) == 5
    assert drawn.diff().min() > 0 and drawn.diff().unique().numel() > 2
    assert torch.equal(sample(tested._replace(data=known), 5, 3)[0], tested.images[drawn])


@pytest.mark.parametrize("n", [0, 5])
def test_no_images_and_more_than_there_are_are_refused(n):
    with pytest.raises(ValueError, match=f"n must be among 1 … 4, the images that there are; got {n}"):
        spaced(4, n, 3)


def test_what_to_read_first_by_hand() -> None:
    one, other = ({"trained": 0.8123, "untrained": 0.7}, {"trained": None, "untrained": 0.71})
    one, other = one | {"n_features": 160}, other | {"n_features": 800}
    content = {
        "measure": "transfer",
        "values": {"to": "fashion-mnist", "pixels": 0.795, "run": one, "beside": other},
        "n": [5, 1, 2],
        "device": "a computer",
        "run": {"folder": "caps", "recipe": "mine", "seed": 0},
        "beside": {"folder": "cnn", "recipe": "theirs", "seed": 0},
    }
    table = [
        "| transfer | `caps` | `cnn` |",
        "| --- | --- | --- |",
        "| features: accuracy on fashion-mnist | 81.23 % | – |",
        "| numbers in the features | 160 | 800 |",
        "| the same network untrained | 70.00 % | 71.00 % |",
        "| pixels | 79.50 % | 79.50 % |",
    ]
    assert as_markdown(content) == table


def test_numbers_are_put_together_by_hand() -> None:
    folds = [Said("{:.1%} at {:.2f}", (0.1, 1.0)), Said("{:.1%} at {:.2f}", (0.3, 2.0))]
    assert mean(folds) == Said("{:.1%} at {:.2f}", (0.2, 1.5))
    assert in_words([mean(folds)]) == "20.0 % at 1.50"
    assert in_words(folds) == "20.0 ± 14.1 % at 1.50 ± 0.71"
    assert in_words([per_cent(0.5), per_cent(None)]) == "–" == in_words([mean([per_cent(0.5), per_cent(None)])])
    assert in_words([Said("yes"), Said("yes")]) == "yes" and in_words([Said("yes"), Said("no")]) == "yes, no"


def test_several_labels_an_image_are_refused(folder, tmp_path):
    shutil.copytree(folder / "caps", tmp_path / "caps", ignore=shutil.ignore_patterns("measures"))
    config = tmp_path / "caps" / "config.json"
    content = json.loads(config.read_text())
    content["data"]["multi_label"] = True
    config.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="run must be of one label an image for a measure, got one of several"):
        record.record("robustness", tmp_path / "caps")
    assert not (tmp_path / "caps" / "measures").exists()
