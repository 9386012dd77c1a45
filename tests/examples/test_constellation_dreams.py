"""Constellations by dreams: EM in closed form, dreams true to their capsules, and learning that solves them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples import constellation_dreams as dreams
from examples.constellations import SQUARE, TRIANGLE, Points, draw, error


def knowing(seed: int = 0) -> dreams.DreamingCapsules:
    """Make capsules of the true shapes, in float64; the triangle has one corner twice."""
    torch.manual_seed(seed)
    model = dreams.DreamingCapsules(width=32, n_layers=2).double()
    with torch.no_grad():
        model.shape.copy_(torch.tensor([SQUARE, [*TRIANGLE, TRIANGLE[0]], SQUARE]))
    return model


def poses(n: int, generator: torch.Generator) -> dreams.Guess:
    """Draw poses as those of the points are drawn, all capsules there."""
    angle, size = (
        2 * math.pi * torch.rand(n, 3, generator=generator),
        0.1 + 0.25 * torch.rand(n, 3, generator=generator),
    )
    turn = torch.stack((angle.cos() * size, angle.sin() * size), dim=2).double()
    shift = (torch.rand(n, 3, 2, generator=generator) - 0.5).double()
    return dreams.Guess(turn, shift, torch.full((n, 3), 0.02).double(), torch.full((n, 3), 8.0).double())


def memories(guess: dreams.Guess) -> list[dreams.Memory]:
    return [dreams.Memory(guess.turn[:, k], guess.shift[:, k]) for k in range(3)]


def test_a_capsule_moves_onto_the_points_that_it_explains() -> None:
    model, truth = knowing(), poses(20, torch.Generator().manual_seed(1))
    x = model.place(truth).detach().flatten(1, 2)
    share = torch.eye(12).double().unflatten(1, (3, 4)).expand(20, -1, -1, -1)
    guess = poses(20, torch.Generator().manual_seed(2))
    for _ in range(8):  # the place before counts as _PRIOR points, and fades
        guess = model.fit(x, share, guess)
    torch.testing.assert_close(guess.turn, truth.turn, atol=1e-6, rtol=0)
    torch.testing.assert_close(guess.shift, truth.shift, atol=1e-6, rtol=0)
    assert guess.scale.detach().max() < 0.011


def test_search_finds_a_single_object_from_a_poor_guess() -> None:
    model = knowing()
    with torch.no_grad():  # a guess that reads nothing: in the middle, of medium size
        model.last.zero_()
        model.bias.copy_(torch.tensor([0.7, 0, 0, 0, 0, 0]))
    x, mask = dreams.single(200, torch.Generator().manual_seed(0))
    score = model.explain(x.double(), mask, dreams.search(model, x.double(), mask, n_iters=10))[0].sum(dim=1)
    kind = mask.sum(dim=1) == 3
    right = torch.where(kind, score[:, 1] > score[:, 0], score[:, 0] > score[:, 1])
    assert right.float().mean() > 0.9


def test_dreams_are_true_to_their_capsules() -> None:
    model, generator = knowing(), torch.Generator().manual_seed(0)
    memory = memories(poses(50, generator))
    assert dreams.distinct_votes(model).sum(dim=1).tolist() == [4, 3, 4]
    x, mask, there, owner = dreams.dream(model, memory, 300, generator)
    assert owner.tolist() == [0] * 4 + [1] * 3 + [2] * 4 and x.shape == (300, 11, 2)
    assert torch.equal(mask, there[:, owner]) and bool(there.any(dim=1).all())
    sides = (x[:, :4] - x[:, :4].roll(1, dims=1)).norm(dim=2)
    torch.testing.assert_close(sides, sides[:, :1].expand(-1, 4))
    sizes = memory[0].turn.norm(dim=1)
    assert bool(torch.cdist(sides[:, :1] / 2, sizes.unsqueeze(1)).amin(dim=1).detach().max() < 1e-6)


def test_capsules_share_sets_out_evenly() -> None:
    score = 5 * torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).double()
    share = dreams.balanced(score, n_iters=200)
    torch.testing.assert_close(share.sum(dim=1), torch.ones(30).double())
    torch.testing.assert_close(share.sum(dim=0), torch.full((3,), 10.0).double(), atol=1e-3, rtol=0)


def solved(model: dreams.DreamingCapsules, points: Points) -> float:
    return error(dreams.solve(model, points)[1], points)


def test_shapes_are_found_without_labels() -> None:
    torch.manual_seed(0)
    model = dreams.DreamingCapsules(width=32, n_layers=1)
    before = dreams.shape_likelihood(model)
    dreams.find_shapes(model, torch.Generator().manual_seed(0), 150, batch=64)
    assert dreams.shape_likelihood(model) > before + 1


def test_an_encoder_learns_from_dreams_what_is_in_true_sets() -> None:
    model, generator = knowing().float(), torch.Generator().manual_seed(0)
    guess = poses(500, generator)
    memory = memories(dreams.Guess(*(each.float() for each in guess)))
    points = draw(300, torch.Generator().manual_seed(5))
    before = solved(model, points)
    shape: Tensor = model.shape.detach().clone()
    dreams.learn_from_dreams(model, memory, generator, 300, batch=64, lr=4e-3)
    assert torch.equal(model.shape, shape)
    assert solved(model, points) < 0.25 < before


def test_runs_write_a_new_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "found.json"
    arguments = ["--seeds=2", "--tries=1", "--shape-steps=2", "--steps=2", "--every=2", f"--out={out}"]
    errors = dreams.main(arguments)
    assert len(errors) == 2 and all(0 <= each <= 1 for each in errors)
    found = json.loads(out.read_text())
    assert [row["error"] for row in found["seeds"]] == errors
    assert "chosen by likelihood: seed " in capsys.readouterr().out
    with pytest.raises(ValueError, match="--out must be a new file, got .*found.json"):
        dreams.main(arguments)
