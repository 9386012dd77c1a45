"""Attacks on models whose gradient one knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from study.analysis import (
    accuracy_under_attack,
    bim,
    fgsm,
    margin_gap,
    pgd,
    random_targets,
    robust_accuracy,
    zero_gradients,
)
from study.analysis.attacks import gradient
from torchcaps.explain import extract_features
from torchcaps.models import CapsNet, MatrixCapsNet, ModelOutput
from torchcaps.models.baselines import BaselineCNN
from torchcaps.ops import Capsules, margin_loss

ATTACKS = (fgsm, bim, pgd)


class Linear(nn.Module):
    """Two classes of four pixels: scores (0, w·x − b), with known weights."""

    def __init__(self, wrap: Callable[[Tensor], Any] = lambda scores: scores) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.0, 4.0]))
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        one = x.flatten(1) @ self.weight - 1.0
        return self.wrap(torch.stack((torch.zeros_like(one), one), dim=1))


def image(*pixels: float) -> Tensor:
    return torch.tensor(pixels).view(1, 1, 2, 2)


def capsules() -> CapsNet:
    return CapsNet((1, 20, 18), 3, channels=4, n_types=2, decoder=None)


def as_capsules(scores: Tensor) -> Capsules:
    return Capsules(scores.unsqueeze(2), scores)


@pytest.mark.parametrize("wrap", [torch.clone, ModelOutput, as_capsules])
def test_one_step_on_a_linear_model_is_worked_by_hand(wrap):
    x = image(0.5, 0.5, 0.5, 0.05)
    # Raising the loss of class 1 lowers w·x: against the sign of w, and nothing where w is 0.
    moved = fgsm(Linear(wrap), x, torch.tensor([1]), 0.1)
    torch.testing.assert_close(moved, image(0.4, 0.6, 0.5, 0.0))  # the last is cut off at 0
    towards = fgsm(Linear(wrap), x, torch.tensor([1]), 0.1, targeted=True)
    torch.testing.assert_close(towards, image(0.6, 0.4, 0.5, 0.15))


def test_attacks_work_in_inference_mode():
    images, labels = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
    model = Linear()
    wanted = bim(model, images, labels, 0.1)
    with torch.inference_mode():
        assert torch.equal(bim(model, images + 0, labels + 0, 0.1), wanted)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_an_attack_makes_hangs_on_no_graph(attack):
    images = torch.rand(3, 1, 2, 2, requires_grad=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    found = attack(model, images, torch.arange(3), 0.1)
    assert not found.requires_grad and images.grad is None


def test_steps_add_up_to_the_ball_and_no_further():
    x, label = image(0.5, 0.5, 0.5, 0.5), torch.tensor([0])
    torch.testing.assert_close(bim(Linear(), x, label, 0.1, n_steps=2, step=0.03), image(0.56, 0.44, 0.5, 0.56))
    torch.testing.assert_close(bim(Linear(), x, label, 0.1, n_steps=4), image(0.6, 0.4, 0.5, 0.6))
    found = pgd(Linear(), x, label, 0.1)
    torch.testing.assert_close(found.flatten()[[0, 1, 3]], torch.tensor([0.6, 0.4, 0.6]))


class Pixels(nn.Module):
    """Scores that are the pixels; remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.shown.append(x.detach())
        return x.flatten(1)


def test_a_step_of_bim_is_a_share_of_one_and_a_quarter_epsilon():
    """To 0.55 and back and forth around it: after three steps it stands one of them away."""
    x = torch.full((1, 1, 1, 2), 0.5)
    found = bim(Pixels(), x, torch.tensor([0]), 0.2, n_steps=3, loss=lambda scores, _: -(scores - 0.55).abs().sum())
    torch.testing.assert_close(found, x + 1.25 * 0.2 / 3)


def test_every_attack_climbs_the_loss_it_is_given():
    """This one rises with w·x where the cross-entropy of class 1 falls."""
    x, label, rising = image(0.5, 0.5, 0.5, 0.5), torch.tensor([1]), lambda scores, _: scores[:, 1].sum()
    for attack in ATTACKS:
        found = attack(Linear(), x, label, 0.1, loss=rising).flatten()
        torch.testing.assert_close(found[[0, 1, 3]], torch.tensor([0.6, 0.4, 0.6]))


def test_pgd_starts_twice_in_the_ball_and_the_pixels_range_and_takes_forty_steps():
    x, label = torch.tensor([0.02, 0.97]).view(1, 1, 1, 2), torch.tensor([1])  # nothing of 0.1 makes it class 0
    starts = []
    for seed in (0, 1):
        model = Pixels()
        pgd(model, x, label, 0.1, seed=seed)
        assert len(model.shown) == 2 * (40 + 1) and all(0 <= each.min() <= each.max() <= 1 for each in model.shown)
        assert all((each - x).abs().max() <= 0.1 + 1e-6 for each in model.shown)
        starts += [model.shown[0], model.shown[41]]
    assert len(torch.cat(starts).unique(dim=0)) == 4


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        capsules,
        lambda: MatrixCapsNet((1, 24, 24), 3, A=4, B=2, C=2, D=2),
        lambda: BaselineCNN((1, 9, 8), 3, (4,), (6,)),
    ],
)
def test_no_attack_leaves_the_ball_or_the_pixels_range(attack, targeted, make):
    model = make()
    x, labels = torch.rand(3, *model.image_shape), torch.tensor([0, 1, 2])
    x[0] = x[0].round()
    few = {} if attack is fgsm else {"n_steps": 4, "step": 0.2}
    found = partial(attack, **few)(model, x, labels, 0.3, targeted=targeted)
    assert (found - x).abs().max() <= 0.3 + 1e-6
    assert found.min() >= 0 and found.max() <= 1
    assert (found - x).abs().max() > 0.1
    assert torch.equal(partial(attack, **few)(model, x, labels, 0.0), x)


def test_attacks_lower_the_true_score_and_raise_the_target():
    model, x, labels = capsules().eval(), torch.rand(4, 1, 20, 18), torch.tensor([0, 1, 2, 0])
    for attack in ATTACKS:
        share = model(x).scores.softmax(dim=1)
        against = model(attack(model, x, labels, 0.1)).scores.softmax(dim=1)
        towards = model(attack(model, x, labels, 0.1, targeted=True)).scores.softmax(dim=1)
        rows = torch.arange(4)
        assert (against[rows, labels] < share[rows, labels]).all()
        assert (towards[rows, labels] > share[rows, labels]).all()


def test_the_model_stays_as_it_was():
    model = BaselineCNN((1, 9, 8), 3, (4,), (6,))
    model.convs.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, labels = torch.rand(2, 1, 9, 8), torch.tensor([0, 1])
    assert torch.equal(gradient(model, x, labels), gradient(model, x, labels))  # no dropout
    bim(model, x, labels, 0.1)
    assert model.training and not model.convs.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_restart_is_only_for_what_withstood():
    seen = []

    class Step(nn.Module):
        """Class 1 from a mean of 0.5 on, and no gradient that says so."""

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            one = (x.flatten(1).mean(dim=1) > 0.5).float() + 0 * x.flatten(1).sum(dim=1)
            return torch.stack((1 - one, one), dim=1)

    model = Step()
    x = torch.tensor([0.49, 0.2]).view(2, 1, 1, 1)
    assert torch.equal(bim(model, x, torch.tensor([0, 0]), 0.1), x)  # no gradient, no way
    assert zero_gradients(model, x, torch.tensor([0, 0])) == 1.0
    seen.clear()
    found = pgd(model, x, torch.tensor([0, 0]), 0.1, n_steps=1, n_restarts=20)
    assert model(found).argmax(dim=1).tolist() == [1, 0]  # by luck of the start
    assert seen[0] == 2 and seen[-2] == 1  # (the last is the line above)


@pytest.mark.parametrize("targeted", [False, True])
def test_restarts_go_on_with_each_image_that_withstood(targeted):
    """The first succeeds at once, the second never, the third by a lucky start: each keeps what came of itself."""
    seen = []

    class Step(nn.Module):
        """Class 1 from 0.5 on, and no gradient that says so."""

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            one = (x.flatten() > 0.5).float() + 0 * x.flatten()
            return torch.stack((1 - one, one), dim=1)

    x = torch.tensor([0.7, 0.2, 0.41]).view(3, 1, 1, 1)
    labels = torch.full((3,), int(targeted))
    found = pgd(Step(), x, labels, 0.1, targeted=targeted, n_steps=1, n_restarts=100)
    assert seen[:4] == [3, 3, 2, 2] and seen[-1] == 1 and len(seen) == 200  # two calls a restart
    assert (found.flatten() > 0.5).tolist() == [True, False, True]
    assert (found - x).abs().max() <= 0.1 + 1e-6


def test_a_step_of_pgd_is_a_share_of_two_and_a_half_epsilon():
    x, model = torch.full((1, 1, 1, 50), 0.5), Pixels()
    pgd(model, x, torch.tensor([0]), 0.1, n_steps=4, n_restarts=1, loss=lambda scores, _: scores.sum())
    for before, after in pairwise(model.shown):
        torch.testing.assert_close(after, (before + 2.5 * 0.1 / 4).clamp_max(0.6))


def test_margin_loss_is_flat_where_the_margin_is_kept_and_cross_entropy_is_not():
    class Sure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            one = 0.95 + 0.01 * x.mean(dim=(1, 2, 3))
            return torch.stack((one, 1 - one), dim=1)

    x, labels = torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64)
    assert zero_gradients(Sure(), x, labels, margin_loss) == 1.0
    assert zero_gradients(Sure(), x, labels) == 0.0


def test_the_gap_of_scores():
    scores = torch.tensor([[0.9, 0.1, 0.3], [0.2, 0.5, 0.1]])
    assert float(margin_gap(scores, torch.tensor([0, 2]))) == pytest.approx(0.3 - 0.9 + 0.5 - 0.1)


def test_attacks_follow_the_gradient_through_all_iterations():
    """The last iteration's alone, with which some layers train, would make a model seem to withstand."""
    torch.manual_seed(0)
    model = capsules().eval()
    x, labels = torch.rand(4, 1, 20, 18), torch.tensor([0, 1, 2, 0])
    with torch.no_grad():
        model.classes.get_parameter("weight").mul_(20)  # such that the iterations differ
    whole = gradient(model, x, labels)
    model.classes.routing = replace(model.classes.routing, backprop="last")
    torch.testing.assert_close(gradient(model, x, labels), whole, rtol=0, atol=0)
    assert model.classes.routing.backprop == "last"
    (truncated,) = torch.autograd.grad(F.cross_entropy(model(x.requires_grad_()).scores, labels), x)
    assert (truncated.sign() != whole.sign()).float().mean() > 0.05


def test_no_score_is_the_largest_of_nan():
    class Silent(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(super().forward(x)) * torch.tensor([[torch.nan], [1.0]])

    x, labels = torch.full((2, 1, 2, 2), 0.5), torch.tensor([0, 0])
    with pytest.raises(ValueError, match="model must return numbers as scores, got NaN for 1 images"):
        accuracy_under_attack(Silent(), x, labels, [0.1], fgsm, source=Linear())
    with pytest.raises(ValueError, match="model must return numbers as scores, got NaN for 1 images"):
        extract_features(Silent(), x)


def test_random_starts_lie_on_all_sides():
    seen = []

    class Watched(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            return torch.as_tensor(super().forward(x))

    x = torch.full((64, 1, 2, 2), 0.5)
    pgd(Watched(), x, torch.ones(64, dtype=torch.int64), 0.1, n_steps=1, n_restarts=1)
    noise = seen[0] - x
    assert noise.min() < -0.09 and noise.max() > 0.09 and abs(float(noise.mean())) < 0.02


def test_what_does_not_fit_is_named():
    x, label = image(0.5, 0.5, 0.5, 0.5), torch.tensor([1])
    with pytest.raises(ValueError, match=r"images must be within 0 … 1, got 0.0 … 2.0"):
        fgsm(Linear(), image(0.0, 2.0, 0.0, 0.0), label, 0.1)
    with pytest.raises(ValueError, match="epsilon must be a number of at least 0, got -0.1"):
        fgsm(Linear(), x, label, -0.1)
    assert torch.equal(fgsm(Linear(), x, label, torch.tensor(0.1)), fgsm(Linear(), x, label, 0.1))  # type: ignore[arg-type]
    for attack in ATTACKS:
        with pytest.raises(ValueError, match=r"epsilon must be a number of at least 0, got \[0.1\]"):
            attack(Linear(), x, label, [0.1])
    with pytest.raises(ValueError, match="step must be a number of at least 0, got nan"):
        bim(Linear(), x, label, 0.1, step=float("nan"))
    with pytest.raises(ValueError, match="n_steps must be an integer of at least 1, got 0"):
        pgd(Linear(), x, label, 0.1, n_steps=0)
    with pytest.raises(ValueError, match="n_restarts must be an integer of at least 1, got 0"):
        pgd(Linear(), x, label, 0.1, n_restarts=0)
    with pytest.raises(ValueError, match=r"labels must be \[B\] with B=1"):
        fgsm(Linear(), x, torch.tensor([0, 1]), 0.1)
    with pytest.raises(ValueError, match="labels must hold classes 0 … 1, got 2 … 2"):
        fgsm(Linear(), x, torch.tensor([2]), 0.1)
    with pytest.raises(ValueError, match="labels must be int64, got torch.float32"):
        bim(Linear(), x, torch.tensor([1.0]), 0.1)
    with pytest.raises(
        ValueError, match=r"model must return scores \[B=1, J\], bare, as .scores or in a Capsules; got shape \[1"
    ):
        fgsm(nn.Flatten(0, 1), x, label, 0.1)
    with pytest.raises(ValueError, match="targets must differ from labels"):
        accuracy_under_attack(Linear(), x, label, [0.1], fgsm, targets=label)
    with pytest.raises(ValueError, match="epsilons must ascend, got 0.1 after 0.2"):
        robust_accuracy(Linear(), x, label, [0.2, 0.1], [fgsm])
    with pytest.raises(ValueError, match="attacks must be one or several, got none"):
        robust_accuracy(Linear(), x, label, [0.1], [])
    wrong = 1 - label  # where no image is left no attack looks at what it is given
    with pytest.raises(ValueError, match=r"labels must hold classes 0 … 1, got 6 … 6"):
        robust_accuracy(Linear(), x, label + 5, [0.1], [fgsm])
    with pytest.raises(ValueError, match="images must be within 0 … 1"):
        robust_accuracy(Linear(), 255 * x, wrong, [0.1], [fgsm])
    with pytest.raises(ValueError, match="epsilon must be a number of at least 0"):
        robust_accuracy(Linear(), x, wrong, [-0.1], [fgsm])
    with pytest.raises(ValueError, match="labels must hold classes 0 … 2, got 3 … 3"):
        random_targets(torch.tensor([3]), 3)
    with pytest.raises(ValueError, match="the number of images must be an integer of at least 1, got 0"):
        accuracy_under_attack(Linear(), x[:0], label[:0], [0.1], fgsm)
