"""Every measure, on networks as they were born: its numbers are the model's, and its file says whose they are."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")

from study.analysis import (
    SameClassOverlap,
    accuracy_under_attack,
    bim,
    fgsm,
    intersection_over_union,
    logistic,
    margin_gap,
    pgd,
    pose_follows,
    random_targets,
    responses,
    robust_accuracy,
    same_class_overlap,
)
from study.analysis.attacks import predict
from study.data.disarrange import shift_halves
from study.data.faces import ARRANGEMENTS, draw_faces
from study.data.transform import TRANSFORMATIONS
from study.measures import equivariance, matched, pairs, picasso, record, robustness, routing, transfer
from study.measures.sample import spaced
from study.tests.measures.measured import DIGITS, measured
from tests.report.test_report import CAPSULES, CNN, finished
from torchcaps.data import DATASETS, Dataset, Images, Pairs, load
from torchcaps.data.augment import CROPS_13, central_crop
from torchcaps.data.images import fixed_order, to_float
from torchcaps.explain import extract_features, segment
from torchcaps.models import build
from torchcaps.report import evaluate_run
from torchcaps.training import Data, Experiment
from torchcaps.training.build import make_model
from torchcaps.training.checkpoint import save_model
from torchcaps.training.files import read_json, write_json
from torchcaps.training.run import Run
from torchcaps.training.train import train


def test_robustness(folder, monkeypatch):
    """On images that the capsules read as said, at an ε at which some stand: so that it shows whose attack it was."""
    n, epsilon = 12, 0.004
    caps, cnn = (evaluate_run(Run(folder / name)).model for name in ("caps", "cnn"))
    images = evaluate_run(Run(folder / "caps")).images[spaced(20, n, n)]
    given = images, predict(caps, images)
    monkeypatch.setattr(robustness, "sample", lambda *_: given)
    monkeypatch.setattr(robustness, "EPSILONS", (0.0, epsilon))
    monkeypatch.setattr(robustness, "CHECKED", (epsilon,))
    monkeypatch.setattr(robustness, "JUDGED", epsilon)
    found = measured("robustness", folder / "caps", beside=folder / "cnn", n=n)
    values, targets = found["values"], random_targets(given[1], 10)

    def left(model: nn.Module, attacks: Any, **options: Any) -> list[float]:
        return [float(x) for x in accuracy_under_attack(model, *given, [0.0, epsilon], attacks, **options).accuracy]

    for name, attack in (("fgsm", fgsm), ("bim", bim)):
        both = (attack, partial(attack, loss=margin_gap))
        assert values["transferred"][name] == pytest.approx(left(caps, both, source=cnn), abs=1e-4)
        for part, model in (("run", caps), ("beside", cnn)):
            assert values[part][name]["accuracy"] == pytest.approx(left(model, both), abs=1e-4)
            aimed = accuracy_under_attack(model, *given, [0.0, epsilon], both, targets=targets).success
            assert values[part][name]["success"] == pytest.approx(aimed.tolist(), abs=1e-4)
    strong = [attack for kind in (fgsm, bim) for attack in (kind, partial(kind, loss=margin_gap))]
    strong += [pgd, partial(pgd, loss=margin_gap, seed=1)]
    for part, model in (("run", caps), ("beside", cnn)):
        checked = robust_accuracy(model, *given, [epsilon], strong).accuracy
        assert values[part]["robust"] == pytest.approx(checked.tolist(), abs=1e-4)
        assert values[part]["zero_gradients"] == 0 and values[part]["masked"] is False
    # Were they all alike, a mistake in the above would not show.
    assert values["run"]["fgsm"]["accuracy"][0] == 1 > values["beside"]["fgsm"]["accuracy"][0]
    assert values["transferred"]["bim"][1] > values["run"]["bim"]["accuracy"][1] > 0
    # Whose numbers these are.
    assert (found["measure"], found["recipe"], found["seed"], found["n"]) == ("robustness", "tiny", 5, n)
    assert found["run"]["test_error"] == 0.1234 and found["run"]["commit"] == "0123456789abcdef-dirty"
    assert found["beside"]["folder"] == "cnn" and {"device", "versions", "commit", "seconds"} <= set(found)


def test_every_attack_is_made_with_both_losses_against_the_right_network(folder, monkeypatch):
    """Near one image all attacks come to the same: so they are counted instead."""
    monkeypatch.setattr(robustness, "EPSILONS", (0.0, 0.1))
    monkeypatch.setattr(robustness, "CHECKED", (0.1,))
    caps, cnn = (evaluate_run(Run(folder / name)) for name in ("caps", "cnn"))
    labels = caps.labels[:, 0].clone()
    labels[::2], labels[1::2] = predict(caps.model, caps.images)[::2], predict(cnn.model, cnn.images)[1::2]
    monkeypatch.setattr(robustness, "sample", lambda *_: (caps.images, labels))  # so that each has some left to lose
    seen = Counter()

    def stub(name: str) -> Any:
        def attack(model, images, labels, epsilon, *, targeted=False, loss=None, seed=None):
            del labels, epsilon
            seen[name, "caps" if model is caps.model else "cnn", loss.__name__, targeted, seed] += 1
            return images

        return attack

    for name in ("fgsm", "bim", "pgd"):
        monkeypatch.setattr(robustness, name, stub(name))
    robustness.measure(caps, beside=cnn)
    losses, once = ("cross_entropy", "margin_gap"), Counter()
    for name in ("fgsm", "bim"):
        for loss in losses:
            once[name, "caps", loss, False, None] = 2 + 1  # two ε; the check
            once[name, "cnn", loss, False, None] = 2 + 1 + 2  # and what the capsules are shown
            once[name, "caps", loss, True, None] = once[name, "cnn", loss, True, None] = 2
    for seed, loss in enumerate(losses):
        once["pgd", "caps", loss, False, seed] = once["pgd", "cnn", loss, False, seed] = 1
    assert seen == once


@pytest.mark.parametrize(
    ("robust", "without", "masked"), [(0.45, 0.0, False), (0.39, 0.0, True), (0.45, 0.01, False), (0.45, 0.02, True)]
)
def test_curves_are_masked_by_the_protocols_rule(robust: float, without: float, masked: bool) -> None:
    """More than 10 points below BIM somewhere (here at ε = 0.1, where BIM leaves 0.5), or 1 % without a gradient."""
    bim_accuracy = [1.0, 0.9, 0.8, 0.5, 0.4, 0.3, 0.2]  # at 0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4
    found = {"bim": {"accuracy": bim_accuracy}, "robust": [0.9, 0.8, robust, 0.4, 0.3], "zero_gradients": without}
    assert robustness._masked(found) is masked


@pytest.mark.parametrize("k", range(11, 100))
def test_just_ten_points_are_not_more(k: int) -> None:
    """Of 100 images, whatever their shares are in binary."""
    found = {"bim": {"accuracy": [k / 100] * 7}, "robust": [k / 100 - 0.1] * 5, "zero_gradients": 0.0}
    exact = found | {"robust": [(k - 10) / 100] * 5}
    assert not robustness._masked(found) and not robustness._masked(exact)
    assert robustness._masked(found | {"robust": [(k - 11) / 100] * 5})


def test_equivariance(folder, monkeypatch):
    few = {"rotate": (-180, -30, 30), "shift": (-2, 2), "scale": (0.8, 1.2), "thicken": (-0.25, 0.5)}
    monkeypatch.setattr(equivariance, "VALUES", few)
    values = measured("equivariance", folder / "caps", beside=folder / "cnn")["values"]
    tested = evaluate_run(Run(folder / "caps"))
    with torch.no_grad():
        upside_down = TRANSFORMATIONS["rotate"](tested.images, 0).flip(2, 3)
        lengths = tested.model(upside_down).scores.gather(1, tested.labels)
    assert values["n"] == 20 and values["n_components"] == 4
    assert values["run"]["rotate"]["values"][0] == -180
    assert values["run"]["rotate"]["confidence"][0] == pytest.approx(float(lengths.mean()), abs=1e-4)
    assert values["run"]["rotate"]["r2"]["pose"] is None  # two images a class are too few
    assert set(values["beside"]) == {"rotate", "shift", "scale", "thicken"}


def test_picasso(folder):
    values = measured("picasso", folder / "caps", beside=folder / "cnn")["values"]
    tested = evaluate_run(Run(folder / "caps"))
    assert list(values["run"]) == [*["as it is"], *[f"halves {k} px" for k in (2, 4, 6, 8)], "2×2 tiles", "4×4 tiles"]
    assert values["run"]["as it is"]["still"] == pytest.approx(float(1 - tested.wrong.float().mean()), abs=1e-4)
    assert values["beside"]["as it is"] != values["beside"]["4×4 tiles"]
    moved = extract_features(tested.model, shift_halves(tested.images, 6))
    assert values["run"]["halves 6 px"]["strongest"] == pytest.approx(float(moved.confidence.amax(1).mean()), abs=1e-4)


def test_picasso_of_faces(tmp_path):
    """What is asked of an exchanged figure is whether it is still called a face, the class 0."""
    finished(tmp_path / "caps", Data("faces", n_eval=20), CAPSULES)
    values = measured("picasso", tmp_path / "caps", n=12)["values"]["run"]
    assert list(values) == list(ARRANGEMENTS)
    model = evaluate_run(Run(tmp_path / "caps")).model
    for name in ARRANGEMENTS:
        found = extract_features(model, to_float(draw_faces(12, picasso.FACES_SEED, name)))
        assert values[name]["still"] == pytest.approx(float((found.predicted == 0).float().mean()), abs=1e-4)
        assert values[name]["confidence"] == pytest.approx(float(found.confidence[:, 0].mean()), abs=1e-4)


def test_what_equivariance_probes(folder, monkeypatch):
    """The pose, or its change, within the range that is probed; of two classes, so that there are enough images."""
    few = {"rotate": (-180, -30, 0, 30), "shift": (-2, 0, 2), "scale": (0.8, 1, 1.2), "thicken": (-0.25, 0, 0.5)}
    monkeypatch.setattr(equivariance, "VALUES", few)
    tested = evaluate_run(Run(folder / "caps"))
    twos = tested._replace(labels=tested.labels % 2)
    found = equivariance.measure(twos)["run"]["rotate"]["r2"]
    turn = TRANSFORMATIONS["rotate"]
    probed = responses(tested.model, tested.images, twos.labels[:, 0], turn, (-30, 0, 30), neutral=0)
    for what, change in (("pose", False), ("change", True)):
        assert found[what] == pytest.approx(float(pose_follows(probed, change=change).nanmean()), abs=1e-4)
    assert found["pose"] != found["change"]
    monkeypatch.setattr(equivariance, "N_COMPONENTS", 2)
    cnn = evaluate_run(Run(folder / "cnn"))
    twos = cnn._replace(labels=cnn.labels % 2)
    found = equivariance.measure(twos)["run"]["rotate"]
    probed = responses(cnn.model, cnn.images, twos.labels[:, 0], turn, (-30, 0, 30), neutral=0)
    wanted = {"pose": None, "pose_reduced": 2}
    for what, n in wanted.items():
        follows = float(pose_follows(probed, change=False, n_components=n).nanmean())
        assert found["r2"][what] == pytest.approx(follows, abs=1e-4)
    assert found["r2"]["pose"] != found["r2"]["pose_reduced"]
    assert found["accuracy"][1:] == pytest.approx(probed.right.float().mean(dim=1).tolist(), abs=1e-4)


def test_a_pair_that_never_matched_is_not_called_matched() -> None:
    errors = {"test_error": 0.1, "novel_error": 0.2}
    values = {
        "again": "run",
        "run": {"matched": {"val_error": 0.1957, **errors}, "whole": {"val_error": 0.1, **errors}},
        "beside": {"matched": {"val_error": 0.1272, **errors}, "whole": {"val_error": 0.1272, **errors}},
    }
    assert str(matched.headline(values, "run")["at one validation error"][0]).startswith("no: 19.57 % instead of 12.72")
    values["run"]["matched"]["val_error"] = 0.1272
    assert matched.headline(values, "run")["at one validation error"][0] == "yes"


def test_matched(folder, tmp_path, monkeypatch):
    images = Images(torch.randint(0, 256, (40, 1, 16, 16), dtype=torch.uint8), torch.arange(40) % 10)
    data = Dataset("digits", tuple("0123456789"), images, images, images, {"novel": images.take(slice(8))})
    monkeypatch.setitem(DATASETS, "digits", lambda root, image_size: data)
    small: dict[str, Any] = {"data": Data("digits"), "epochs": 3, "batch_size": 20, "threads": 1, "device": "cpu"}
    caps = Experiment(recipe="tiny", model=CAPSULES, **small)
    cnn = Experiment(recipe="tiny-cnn", model=CNN, loss="cross_entropy", **small)
    runs = {config.recipe: (config, tmp_path / config.recipe) for config in (caps, cnn)}
    for (config, path), error in zip(runs.values(), (0.9, 0.95), strict=True):
        result = train(config, path, progress="none")
        write_json(path / "result.json", result | {"val_error": error, "novel_error": error / 2})
    (_, ours), (_, other) = runs.values()
    found = measured("matched", ours, beside=other)["values"]
    again = read_json(ours / "matched-at-0.95-by-tenths" / "result.json")
    assert (found["again"], found["n"], found["epochs"]) == ("run", 40, again["epochs"] / 2)
    # Of an epoch's two steps each is followed by a look; else all is as it was.
    wanted = replace(caps, stop_at=0.95, device="auto", epochs=6, data=replace(caps.data, n_shown=20))
    assert again["config"] == json.loads(json.dumps(wanted.to_dict()))
    rows = csv.DictReader((ours / "matched-at-0.95-by-tenths" / "metrics.csv").read_text().splitlines())
    assert [row["step"] for row in rows] == [str(k + 1) for k in range(again["steps"])]
    assert found["beside"]["matched"] == found["beside"]["whole"] == {
        "val_error": 0.95, "test_error": pytest.approx(read_json(other / "result.json")["test_error"], abs=1e-5),
        "novel_error": 0.475,
    }  # fmt: skip
    assert found["run"]["whole"]["val_error"] == 0.9
    assert found["run"]["matched"]["novel_error"] == pytest.approx(again["novel_error"], abs=1e-5)
    write_json(other / "result.json", read_json(other / "result.json") | {"val_error": 0.91})
    assert measured("matched", ours, beside=other)["values"]["again"] == "run"  # as another run would ask for
    assert read_json(ours / "matched-at-0.91-by-tenths" / "result.json")["config"]["stop_at"] == 0.91
    write_json(other / "result.json", read_json(other / "result.json") | {"val_error": 0.9})
    whole = read_json(ours / "result.json")
    write_json(ours / "result.json", whole | {"epochs": 1, "steps": 2})  # as if stop_at had ended it
    write_json(other / "result.json", read_json(other / "result.json") | {"val_error": 0.92})
    measured("matched", ours, beside=other)
    assert read_json(ours / "matched-at-0.92-by-tenths" / "result.json")["config"]["epochs"] == 6  # as for all three
    write_json(ours / "result.json", whole)
    write_json(other / "result.json", read_json(other / "result.json") | {"val_error": 0.9})
    found = measured("matched", ours, beside=other)["values"]  # as good as each other
    assert found["again"] is None and found["run"]["matched"] == found["run"]["whole"]


@pytest.mark.parametrize("name", ["caps", "pairs"])
def test_routing(folder, monkeypatch, name):
    monkeypatch.setattr(routing, "N_ITERS", (1, 3))
    values = measured("routing", folder / name)["values"]
    tested = evaluate_run(Run(folder / name))
    assert values["run"]["trained_with"] == 3 and values["run"]["entropy"][0] == 1.0 > values["run"]["entropy"][1]
    assert values["run"]["error"][1] == pytest.approx(float(tested.wrong.float().mean()), abs=1e-4)


def test_the_first_pairs_are_looked_at_in_batches_of_any_size(folder, monkeypatch):
    monkeypatch.setattr("torchcaps.report.evaluated.N_PAIRS", 5)
    some = evaluate_run(Run(folder / "pairs"))
    assert len(some.images) == len(some.wrong) == 5
    with pytest.raises(ValueError, match="n must be at most 1000 pairs, got 1001"):
        record.record("pairs", folder / "pairs", n=1001)


def test_pairs(folder):
    values = measured("pairs", folder / "pairs", n=5)["values"]
    tested = evaluate_run(Run(folder / "pairs"))
    assert values["run"]["error"] == pytest.approx(float(tested.wrong[spaced(12, 5, 5)].float().mean()), abs=1e-4)
    assert 0 < values["run"]["iou"]["input"] < 1 and values["threshold"] == 0.5
    images, labels, parts = (x[spaced(12, 5, 5)] for x in (tested.images, tested.labels, tested.parts))
    twins = Pairs(tested.data.test, seed=pairs.SEED, same=True).batch(0, 5)
    with torch.no_grad():
        painted = tested.model.decoder.each(tested.model(images).capsules[-1].pose, labels)
        predicted = segment(tested.model, images, labels, parts).reconstructions
        same = same_class_overlap(tested.model, twins.images, twins.labels[:, 0], twins.parts, 0.5)
    for name, made in (("true", painted), ("predicted", predicted)):
        wanted = intersection_over_union(made, parts, 0.5).mean()
        assert values["run"]["iou"][name] == pytest.approx(wanted.item(), abs=1e-4)
    assert values["run"]["iou"]["true"] != values["run"]["iou"]["predicted"]
    assert values["run"]["same_class"] == pairs._same(same)


def test_pairs_of_one_class_by_hand():
    found = SameClassOverlap(
        length_pair=torch.tensor([0.9, 0.6]),
        length_single=torch.tensor([[0.8, 0.3], [0.7, 0.4]]),
        strongest_other=torch.tensor([0.7, 0.4]),
        overlap=torch.tensor([[0.2, 0.6], [0.5, 0.1]]),
        overlap_single=torch.tensor([[0.4, 0.6], [0.4, 0.6]]),
    )
    said = pairs._same(found)
    assert said.pop("iou") == pytest.approx({"better": 0.55, "worse": 0.15, "single": 0.5}, abs=1e-4)
    wanted = {"length": 0.75, "single": 0.55, "first": 1.0, "only": 0.5, "told_apart": 0.75}
    assert said == pytest.approx(wanted, abs=1e-4)


def test_transfer(tmp_path, monkeypatch):
    """The untrained network is that of the run's seed, which here is not the one that drew its weights."""
    folder = finished(tmp_path / "seven", DIGITS, CAPSULES, seed=7)
    monkeypatch.setitem(transfer.OTHER, "digits", "digits")
    monkeypatch.setattr("study.analysis.probes.PENALTIES", (0.01,))
    values = measured("transfer", folder, n=300)["values"]
    assert values["n"] == [300, 60, 120] and values["run"]["n_features"] == 10 * 4
    assert values["pixels"] > 0.7
    tested, data = evaluate_run(Run(folder)), load("digits", image_size=(16, 16))
    sizes = ((data.train, 300), (data.val, 60), (data.test, 120))
    some = [part.take(spaced(len(part), n, n)) for part, n in sizes]
    torch.manual_seed(7)
    born = build(CAPSULES.name, (1, 16, 16), 10, **CAPSULES.options)
    for what, model in (("trained", tested.model), ("untrained", born)):
        fit, _, test = (
            (extract_features(model, to_float(part.images)).features.flatten(1), part.labels) for part in some
        )
        right = logistic(*fit, 10, 0.01)(test[0]).argmax(dim=1) == test[1]
        assert values["run"][what] == pytest.approx(right.float().mean().item(), abs=1e-4)
    assert values["run"]["trained"] != values["run"]["untrained"]


def test_a_probes_penalty_is_chosen_on_other_images(monkeypatch):
    """Classes that can be told are fitted and tested on; to choose by there are ones that can not."""
    x = torch.cat((torch.zeros(20, 2), torch.ones(20, 2)))
    y = torch.arange(40) // 20
    seen: list[float] = []

    def choose(fit: Any, score: Any) -> Any:
        probe = fit(0.01)
        seen.append(score(probe))
        return probe

    monkeypatch.setattr(transfer, "choose", choose)
    assert transfer._accuracy(lambda images: images, [(x, y), (x, 1 - y), (x, y)], 2) == 1.0 and seen == [0.0]


def test_profile(folder):
    """Lengths are probabilities as they are, logits after a softmax; of a CNN there are no couplings."""
    values = measured("profile", folder / "caps", beside=folder / "cnn", n=20)["values"]
    noise = 0.2 * torch.randn(20, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    for part, name in (("run", "caps"), ("beside", "cnn")):
        tested = evaluate_run(Run(folder / name))
        images, labels, model = tested.images, tested.labels[:, 0], tested.model
        found = values[part]
        with torch.no_grad():
            scores = model(images).scores
        likely = scores if name == "caps" else scores.softmax(dim=1)
        confidence, said = likely.max(dim=1)
        bins = (confidence * 15).ceil().long()
        gaps = [
            (confidence[bins == k].mean() - (said == labels)[bins == k].float().mean()).abs()
            * (bins == k).float().mean()
            for k in bins.unique()
        ]
        assert found["ece"] == pytest.approx(float(sum(gaps)), abs=1e-5)
        disturbed = {
            "error": images,
            "noise": (images + noise).clamp(0, 1),
            "fgsm": fgsm(model, images, labels, 0.05),
        }
        for key, shown in disturbed.items():
            assert found[key] == pytest.approx(float((predict(model, shown) != labels).float().mean()), abs=1e-6)
    assert 0.9 < values["run"]["entropy"] <= 1 and values["beside"]["entropy"] is None


def test_averaged(tmp_path, monkeypatch):
    """Two seeds of one experiment on cropped digits; beside them what is no third."""
    data, own = replace(DIGITS, image_size=None, crop=(16, 16), n_eval=340), load("digits")
    models = []
    for seed in (0, 1):
        run = Run(finished(tmp_path / f"caps-{seed}", data, CAPSULES, seed=seed))
        write_json(run.result, run.finished() | {"seed": seed, "epochs": 1 + seed})  # as stop_at would end them
        torch.manual_seed(seed)
        models.append(make_model(run.experiment(), own).eval())
        save_model(run, models[-1], run.experiment(), own)
    drawn = fixed_order(360, 0)[:340].sort().values[::2]
    images = to_float(own.test.images[drawn])
    with torch.no_grad():
        scores = torch.stack(
            [torch.stack([m(central_crop(images, (16, 16), at)).scores for at in CROPS_13]) for m in models]
        )  # [seeds, windows, N, J]
    said = {
        "alone": scores[0, 0], "other": scores[1, 0], "windows": scores[0].mean(dim=0),
        "together": scores[:, 0].mean(dim=0), "both": scores.mean(dim=(0, 1)),
    }  # fmt: skip
    # Untrained, they err on nearly all: call right what the first says, and each errs where it says something else.
    labels = own.test.labels.clone()
    labels[drawn] = said["alone"].argmax(dim=1)
    wrong = {
        way: pytest.approx(float((one.argmax(dim=1) != labels[drawn]).float().mean()), abs=1e-4)
        for way, one in said.items()
    }
    again = replace(own, test=Images(own.test.images, labels))
    monkeypatch.setitem(DATASETS, "digits", lambda root, image_size: again)

    finished(tmp_path / "another-loss", data, CAPSULES, loss="cross_entropy")
    longer = Run(finished(tmp_path / "longer", data, CAPSULES, seed=2, epochs=2))
    write_json(longer.result, longer.finished() | {"seed": 2})
    finished(tmp_path / "trial", data, CAPSULES, seed=3, trial=True)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text("{")
    (tmp_path / "no-result").mkdir()
    (tmp_path / "no-result" / "result.json").write_text("[]")
    (tmp_path / "no-result" / "config.json").write_text(Run(tmp_path / "caps-0").config.read_text())
    other_data = Run(finished(tmp_path / "other-data", data, CAPSULES, seed=4))
    save_model(other_data, models[0], other_data.experiment(), replace(own, note="another split"))

    values = measured("averaged", tmp_path / "caps-1", n=170)["values"]
    found = values["run"]
    assert (values["n"], found["n_windows"], found["seeds"]) == (170, 13, [0, 1])
    assert found["alone"] == [wrong["alone"], wrong["other"]] and found["windows"][0] == wrong["windows"]
    assert (found["together"], found["together_windows"]) == (wrong["together"], wrong["both"])
    assert len({found["alone"][0], found["windows"][0], found["together"], found["together_windows"]}) == 4


def test_networks_of_another_folder_of_images_are_no_other_seeds(tmp_path, monkeypatch):
    own = load("digits")
    monkeypatch.setitem(DATASETS, "folder", lambda root, image_size: own)
    for seed, root in enumerate(("a", "a", "b")):
        run = Run(finished(tmp_path / f"{seed}", replace(DIGITS, name="folder", root=root), CAPSULES, seed=seed))
        write_json(run.result, run.finished() | {"seed": seed})
        save_model(run, make_model(run.experiment(), own), run.experiment(), own)
    assert measured("averaged", tmp_path / "0", n=20)["values"]["run"]["seeds"] == [0, 1]


def test_averaged_over_one_network_and_one_window_is_its_error(folder):
    values = measured("averaged", folder / "caps", beside=folder / "cnn")["values"]
    tested = evaluate_run(Run(folder / "caps"))
    (alone,) = values["run"]["alone"]
    assert values["run"]["n_windows"] == 1 and values["run"]["together_windows"] == alone
    assert alone == pytest.approx(float(tested.wrong.float().mean()), abs=1e-4)


def test_transfer_refuses_more_images_than_there_are(folder, monkeypatch):
    monkeypatch.setitem(transfer.OTHER, "digits", "digits")
    with pytest.raises(ValueError, match="n must be among 1 … "):
        measured("transfer", folder / "caps", n=10**6)
