"""How accuracy falls under attack, on models whose answer is worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from study.analysis import (
    accuracy_under_attack,
    bim,
    fgsm,
    margin_gap,
    random_targets,
    robust_accuracy,
    zero_gradients,
)
from study.tests.analysis.test_attacks import Linear, Pixels, image


def test_success_is_the_target_and_no_other_class():
    x, labels = torch.tensor([[0.9, 0.1, 0.2], [0.9, 0.1, 0.2]]).view(2, 1, 1, 3), torch.tensor([0, 0])

    def to_the_last(model: nn.Module, images: Tensor, *_: Any, **__: Any) -> Tensor:
        return images + torch.tensor([0.0, 0.0, 1.0])

    found = accuracy_under_attack(Pixels(), x, labels, [0.1], to_the_last, targets=torch.tensor([1, 2]))
    assert found.accuracy.tolist() == [0.0] and found.success is not None and found.success.tolist() == [0.5]


def test_targets_are_drawn_by_their_seed():
    labels = torch.arange(50) % 10
    one, two = (random_targets(labels, 10, seed=seed) for seed in (0, 1))
    assert torch.equal(one, random_targets(labels, 10, seed=0)) and not torch.equal(one, two)


def test_accuracy_falls_where_the_linear_model_says():
    # w·x − 1 is 0.5 and −0.5; ε changes it by 7 ε (two weights at free pixels, one of four).
    x = torch.cat((image(0.5, 0.5, 0.0, 0.5), image(0.5, 0.5, 0.0, 0.25)))
    labels = torch.tensor([1, 0])
    found = accuracy_under_attack(Linear(), x, labels, [0.0, 0.06, 0.08], fgsm)
    assert found.accuracy.tolist() == [1.0, 1.0, 0.0] and found.success is None
    torch.testing.assert_close(found.epsilon, torch.tensor([0.0, 0.06, 0.08]))
    aimed = accuracy_under_attack(Linear(), x, labels, (0.06, 0.08), bim, targets=1 - labels, batch_size=1)
    assert aimed.success is not None and aimed.success.tolist() == [0.0, 1.0] and aimed.accuracy.tolist() == [1.0, 0.0]


def test_by_transfer_the_images_are_made_against_the_source():
    class Deaf(Linear):
        """Says what the other says, and has no gradient."""

        def forward(self, x: Tensor) -> Tensor:
            return 0 * x.sum() + torch.as_tensor(super().forward(x.detach()))

    x, labels = image(0.5, 0.5, 0.0, 0.5), torch.tensor([1])
    assert accuracy_under_attack(Deaf(), x, labels, [0.2], fgsm).accuracy.tolist() == [1.0]
    assert accuracy_under_attack(Deaf(), x, labels, [0.2], fgsm, source=Linear()).accuracy.tolist() == [0.0]


def test_what_was_lost_at_a_smaller_strength_stays_lost():
    calls = []

    def only_weak(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, *, targeted: bool = False):
        calls.append((epsilon, len(images)))
        return fgsm(model, images, labels, epsilon) if epsilon < 0.1 else images

    x = torch.cat((image(0.5, 0.5, 0.0, 0.5), image(0.5, 0.5, 0.0, 0.35), image(0.0, 0.5, 0.0, 0.0)))
    found = robust_accuracy(Linear(), x, torch.tensor([1, 1, 0]), [0.08, 0.2], only_weak)
    torch.testing.assert_close(found.accuracy, torch.tensor([1 / 3, 1 / 3]))
    assert calls == [(0.08, 2), (0.2, 1)]  # the second is wrong before any attack


def test_of_several_attacks_the_one_that_succeeds_counts():
    def spares(chosen: int):
        def attack(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, *, targeted: bool = False):
            made = fgsm(model, images, labels, epsilon, targeted=targeted)
            made[chosen] = images[chosen]
            return made

        return attack

    x, labels = torch.cat([image(0.5, 0.5, 0.0, 0.5)] * 2), torch.tensor([1, 1])
    for attacks, right in (([spares(0)], 0.5), ([spares(1)], 0.5), ([spares(0), spares(1)], 0.0)):
        assert accuracy_under_attack(Linear(), x, labels, [0.2], attacks).accuracy.tolist() == [right]
        aimed = accuracy_under_attack(Linear(), x, labels, [0.2], attacks, targets=1 - labels)
        assert aimed.success is not None and aimed.success.tolist() == [1 - right]
    with pytest.raises(ValueError, match="attack must be one or several, got none"):
        accuracy_under_attack(Linear(), x, labels, [0.2], [])


def test_a_gradient_that_no_attack_can_follow_is_not_called_robust():
    class Broken(Linear):
        """The same scores, and gradients of NaN."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(super().forward(x)) + (0 * x.sum()).sqrt()

    x, labels = image(0.5, 0.5, 0.0, 0.5), torch.tensor([1])
    for call in (lambda: zero_gradients(Broken(), x, labels), lambda: fgsm(Broken(), x, labels, 0.1)):
        with pytest.raises(ValueError, match="model must have a finite gradient with respect to the images, got nan"):
            call()


def test_no_batch_is_larger_than_was_asked_for():
    seen = []

    class Watched(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return torch.as_tensor(super().forward(x))

    x, labels = torch.rand(7, 1, 2, 2), torch.randint(2, (7,))
    robust_accuracy(Watched(), x, labels, [0.1], [fgsm], batch_size=3)
    assert max(seen) == 3


def test_images_are_stuck_where_no_loss_has_a_gradient():
    x, labels = image(0.5, 0.5, 0.0, 0.5), torch.tensor([1])
    flat = lambda scores, labels: 0 * margin_gap(scores, labels)  # noqa: E731
    found = [zero_gradients(Linear(), x, labels, loss) for loss in (margin_gap, flat, [flat, margin_gap], [flat, flat])]
    assert found == [0.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="loss must be one or several, got none"):
        zero_gradients(Linear(), x, labels, [])


def test_targets_are_other_classes_and_repeat():
    labels = torch.arange(3).repeat(100)
    targets = random_targets(labels, 3, seed=1)
    assert (targets != labels).all() and torch.equal(targets, random_targets(labels, 3, seed=1))
    assert {(int(a), int(b)) for a, b in zip(labels, targets, strict=True)} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }


def test_how_many_images_are_taken_at_a_time_hides_no_gradient():
    """In half precision a share of a mean over the batch would vanish."""
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).half(), torch.rand(64, 1, 2, 2).half()
    with torch.no_grad():
        model[1].weight.mul_(1e-5)
    labels = torch.arange(64) % 3
    found = [zero_gradients(model, x, labels, batch_size=size) for size in (1, 64)]
    assert found[0] == found[1] < 1


def test_true_labels_beside_targets_are_classes_too():
    x = torch.rand(3, 1, 2, 2)
    for labels, message in ((torch.full((3,), 7), "classes 0 … 1, got 7 … 7"), (torch.zeros(3), "int64")):
        with pytest.raises(ValueError, match=f"labels must .*{message}"):
            accuracy_under_attack(Linear(), x, labels, [0.1], fgsm, targets=torch.ones(3, dtype=torch.int64))
