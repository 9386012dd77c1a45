"""The examples of stacked auto-encoders: their points, their measures, and runs of a few steps that go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from examples import constellations, digits_without_labels
from examples.constellations import draw, error
from torchcaps.data import Images
from torchcaps.models import scae_small


def test_points_are_of_squares_and_triangles() -> None:
    points = draw(300, torch.Generator().manual_seed(0))
    assert points.x.shape == (300, 11, 2) and points.owner.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert points.x.abs().max() < 1
    for first in (0, 7):  # of a square, each side is as long as the next, and the diagonals are √2 as long
        corners = points.x[:, first : first + 4]
        sides = (corners - corners.roll(1, dims=1)).norm(dim=2)
        torch.testing.assert_close(sides, sides[:, :1].expand(-1, 4))
        torch.testing.assert_close((corners[:, 0] - corners[:, 2]).norm(dim=1), 2**0.5 * sides[:, 0])
    there = points.mask.float()
    assert bool(points.mask.any(dim=1).all()) and 0.5 < there[:, 0].mean() < 0.6
    assert bool((there[:, 0] == there[:, 3]).all()) and not bool((there[:, 0] == there[:, 4]).all())
    again = draw(300, torch.Generator().manual_seed(0))
    assert torch.equal(points.x, again.x)


def test_the_error_counts_points_after_the_best_matching() -> None:
    points = draw(50, torch.Generator().manual_seed(0))
    truth = torch.nn.functional.one_hot(points.owner, 3).float().expand(50, 11, 3)
    assert error(truth, points) == 0
    assert error(truth[:, :, [2, 0, 1]], points) == 0
    points = points._replace(mask=torch.ones_like(points.mask))
    wrong = truth.clone()
    wrong[:, 4] = torch.tensor([1.0, 0.0, 0.0])  # a corner of the triangle goes to a square
    assert error(wrong, points) == pytest.approx(1 / 11)
    assert error(torch.ones(50, 11, 1).expand(-1, -1, 3), points) == pytest.approx(7 / 11)


def test_constellations_run(capsys: pytest.CaptureFixture[str]) -> None:
    errors = constellations.main(["--seeds=2", "--steps=3", "--batch=4", "--sparsity=1"])
    assert len(errors) == 2 and all(0 <= each <= 1 for each in errors)
    assert "seed 1: " in capsys.readouterr().out


def test_clusters_are_matched_without_the_test() -> None:
    generator = np.random.default_rng(0)
    centres = 10 * np.eye(4)

    def features(labels: np.ndarray) -> np.ndarray:
        return centres[labels] + generator.normal(size=(len(labels), 4))

    train, test = np.arange(80) % 4, np.arange(40) % 4
    given = features(train), train, features(test)
    for measure in (digits_without_labels.cluster_accuracy, digits_without_labels.probe_accuracy):
        assert measure(*given, test) == 1
        assert measure(*given, (test + 1) % 4) == 0  # another truth moves neither clusters nor their classes
    noise = generator.normal(size=(80, 4)), train, generator.normal(size=(40, 4))
    assert digits_without_labels.cluster_accuracy(*noise, test) < 0.6


def test_digits_run_and_go_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(folder: str) -> dict[str, torch.Tensor]:
        options = {"out": tmp_path / folder, "part-steps": 2, "object-steps": 2, "sets": 2}
        options |= {"batch": 4, "images": 40, "every": 1}
        measures = digits_without_labels.main([f"--{name}={value}" for name, value in options.items()])
        assert set(measures) == {f"val_{a}_{b}" for a in ("match", "probe") for b in ("prior", "posterior")}
        return torch.load(tmp_path / folder / "checkpoint.pt", weights_only=True)["model"]

    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    whole = run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(digits_without_labels, "evaluate", stop)  # after three of six steps, which are saved
        with pytest.raises(Stopped):
            run("parts")
    gone_on = run("parts")
    assert all(torch.equal(whole[name], gone_on[name]) for name in whole)
    for picture in ("parts", "objects"):
        assert (tmp_path / "parts" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    options = [f"--out={tmp_path / 'parts'}", "--part-steps=2", "--object-steps=2", "--batch=4"]
    for wrong, message in {
        "--sets=3": "--sets must be 2, as of the run in .*, got 3",
        "--sets=0": "--sets must be at least 1, got 0",
    }.items():
        with pytest.raises(ValueError, match=message):
            digits_without_labels.main([*options, wrong])


def test_each_set_of_objects_learns_by_itself_on_the_same_parts(tmp_path: Path) -> None:
    settings = {"part_steps": 1, "object_steps": 2, "sets": 2, "batch": 4, "lr": 1e-3, "seed": 0, "objects": 4}
    run = digits_without_labels.Run(tmp_path, (1, 28, 28), **settings)
    images = (255 * torch.rand(20, 1, 28, 28)).to(torch.uint8)
    stages, numbers, parts = [], [len(run.models())], []
    while run.step < run.steps:
        stages.append(run.stage())
        run.train_step(images)
        numbers.append(len(run.models()))
        parts.append([p.clone() for n, p in run.model.named_parameters() if not n.startswith(("encoder", "objects"))])
    assert stages == [(-1, 0), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert numbers == [1, 1, 1, 1, 2, 2]
    assert all(torch.equal(a, b) for later in parts[1:] for a, b in zip(parts[0], later, strict=True))
    first, second = run.models()
    assert torch.equal(first.decoder.templates, second.decoder.templates)
    assert all(torch.equal(first.state_dict()[name], each) for name, each in run.finished[0].items())
    names = [name for name in run.finished[0] if name.endswith("weight")]
    assert names and not any(torch.equal(run.finished[0][name], run.finished[1][name]) for name in names)
    # The second set is what it would be without the first.
    torch.manual_seed(1)
    alone = scae_small(n_objects=4, **digits_without_labels.OPTIONS).state_dict()
    run.renew_objects(1)
    assert all(torch.equal(run.objects()[name], alone[name]) for name in run.finished[0])
    found, _ = digits_without_labels.features([first, second], Images(images, torch.zeros(20, dtype=torch.int64)), 7)
    whole = second.eval()(images[:7].float() / 255)
    assert found["prior"].shape == (7, 8)
    for name in found:
        torch.testing.assert_close(torch.from_numpy(found[name][:, 4:]), getattr(whole, name))


def test_views_are_of_the_same_images() -> None:
    images = torch.zeros(5, 1, 28, 28, dtype=torch.uint8)
    images[torch.arange(5), :, 10:18, 10:18] = (50 * torch.arange(1, 6, dtype=torch.uint8))[:, None, None, None]
    first, second = digits_without_labels.views(images, 3, 4, 2, 0).split(4)
    torch.testing.assert_close(first.flatten(1).amax(1), second.flatten(1).amax(1))
    assert not torch.equal(first, second)
    assert torch.equal(digits_without_labels.views(images, 3, 4, 2, 0), torch.cat((first, second)))
    assert not torch.equal(digits_without_labels.views(images, 4, 4, 1, 0), first)


def test_each_stage_has_its_own_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"part_steps": 4, "object_steps": 2, "sets": 2, "batch": 2, "lr": 1.0}
    run = digits_without_labels.Run(tmp_path, (1, 28, 28), **settings, seed=0, objects=2)
    monkeypatch.setattr(run.optimizer, "step", lambda: None)
    rates = []
    for _ in range(run.steps):
        run.train_step(torch.zeros(5, 1, 28, 28, dtype=torch.uint8))
        rates.append({group["times"]: group["lr"] for group in run.optimizer.param_groups})
    assert [each[1.0] for each in rates] == pytest.approx(
        [1, 0.02 + 0.98 * (0.5 + 0.5**1.5), 0.51, 0.1635, 1, 0.51, 1, 0.51], abs=1e-4
    )
    assert rates[1][digits_without_labels.FAST] == pytest.approx(20 * rates[1][1.0])


def test_parts_learn_first_and_objects_then() -> None:
    torch.manual_seed(0)
    model, x = scae_small(n_objects=4, **digits_without_labels.OPTIONS), torch.rand(6, 1, 28, 28)

    def learning(losses: dict[str, torch.Tensor]) -> set[str]:
        model.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        return {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}

    assert learning(digits_without_labels.part_losses(model, x)) == {"parts", "decoder"}
    assert learning(digits_without_labels.object_losses(model, x)) == {"encoder", "objects"}
    whole, alone = model.eval()(x), model.explain(model.parts(x))
    assert all(torch.equal(alone.losses[name], whole.losses[name]) for name in alone.losses)
    assert set(whole.losses) - set(alone.losses) == {"image_likelihood"} and alone.images is None
