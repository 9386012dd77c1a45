"""Losses and the mask, by numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from torchcaps.ops import margin_loss, mask_capsules, reconstruction_loss, spread_loss, spread_margin

LENGTHS = torch.tensor([[0.7, 0.3, 0.1], [0.95, 0.0, 0.5]])


def test_margin_loss_of_class_indices() -> None:
    # Row 0, class 0: (0.9 − 0.7)² + 0.5 (0.3 − 0.1)² = 0.04 + 0.02; row 1, class 2: 0.4² + 0.5 · 0.85² = 0.52125.
    assert margin_loss(LENGTHS, torch.tensor([0, 2])).item() == pytest.approx((0.06 + 0.52125) / 2)


def test_margin_loss_of_several_labels() -> None:
    # Row 0, classes 0 and 1: 0.04 + 0.36; row 1, none: 0.5 (0.85² + 0.4²) = 0.44125.
    assert margin_loss(LENGTHS, torch.tensor([[1, 1, 0], [0, 0, 0]])).item() == pytest.approx((0.4 + 0.44125) / 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_wide(dtype: torch.dtype) -> None:
    """Sums in half precision would be off by a per cent and more."""
    scores, images = torch.rand(64, 10).to(dtype), torch.rand(2, 8, 1, 28, 28).to(dtype)
    target = torch.arange(64) % 10
    for loss, given in (
        (lambda x: margin_loss(x, target), scores),
        (lambda x: spread_loss(x, target, 0.9), scores),
        (lambda x: reconstruction_loss(*x), images),
    ):
        got = loss(given)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), loss(given.double()), rtol=1e-5, atol=0)


def test_margins_are_arguments() -> None:
    loss = margin_loss(LENGTHS[:1], torch.tensor([0]), positive=1.0, negative=0.0, absent_weight=1.0)
    assert loss.item() == pytest.approx(0.09 + 0.09 + 0.01)


def test_margin_loss_derivative() -> None:
    lengths = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: margin_loss(x, torch.tensor([0, 1, 2, 0])), (lengths,))


def test_reconstruction_loss_sums_pixels_and_averages_images() -> None:
    image = torch.zeros(2, 1, 2, 2)
    made = torch.tensor([[[[1.0, 0.0], [0.0, 0.5]]], [[[0.0, 0.0], [0.0, 0.5]]]])
    assert reconstruction_loss(made, image).item() == pytest.approx((1.25 + 0.25) / 2)


def test_mask_keeps_the_target() -> None:
    pose = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.5, 0.5]]])
    assert mask_capsules(pose, torch.tensor([0])).tolist() == [[[1, 0], [0, 0], [0, 0]]]
    assert mask_capsules(pose).tolist() == [[[0, 0], [0, 2], [0, 0]]]
    assert mask_capsules(pose, torch.tensor([[1, 0, 1]])).tolist() == [[[1, 0], [0, 0], [0.5, 0.5]]]
    broken = torch.tensor([[[1.0, 0.0], [float("inf"), float("nan")]]], requires_grad=True)
    kept = mask_capsules(broken, torch.tensor([0]))
    assert kept.tolist() == [[[1, 0], [0, 0]]]
    assert torch.autograd.grad(kept.sum(), broken)[0].tolist() == [[[1, 1], [0, 0]]]


def test_the_longest_capsule_is_told_in_half_precision() -> None:
    """Both are of length 16 in bfloat16."""
    poses = torch.tensor([[[16.0, 0, 0], [16.0, 1, 1]]])
    assert torch.equal(mask_capsules(poses.bfloat16()).float(), mask_capsules(poses))


def test_a_class_may_be_present_in_part() -> None:
    # 0.25 (0.9 − 0.7)² + 0.5 · 0.75 (0.7 − 0.1)² = 0.01 + 0.135, and 0.36 and 0 of the others.
    target = torch.tensor([[0.25, 1.0, 0.0]])
    assert margin_loss(LENGTHS[:1], target).item() == pytest.approx(0.145 + 0.36)
    pose = torch.tensor([[[4.0, 0.0], [0.0, 2.0], [0.5, 0.5]]])
    assert mask_capsules(pose, target).tolist() == [[[1, 0], [0, 2], [0, 0]]]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (torch.tensor([0, 3]), "target must hold classes 0 … 2, got 0 … 3"),
        (torch.tensor([-1, 0]), "target must hold classes 0 … 2, got -1 … 0"),
        (torch.tensor([0.0, 1.0]), "target must be class indices"),
        (torch.zeros(2, 4), "or multi-hot \\[B, J=3\\], got shape \\[2, 4\\]"),
        (torch.tensor([0, 1, 2]), "target must have B=2 rows"),
        (torch.tensor([[5, 2, 1], [0, 0, 1]]), "multi-hot target must hold 0 … 1, got 0 … 5"),
    ],
)
def test_bad_targets(target: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        margin_loss(LENGTHS, target)
    with pytest.raises(ValueError, match=message):
        mask_capsules(torch.zeros(2, 3, 4), target)


def test_spread_loss() -> None:
    # Row 0, class 0, margin 0.5: (0.5 − 0.4)² + 0 for 0.6 apart; row 1, class 2: (0.5 + 0.45)² + 0 for 0.5 apart.
    loss = spread_loss(LENGTHS, torch.tensor([0, 2]), 0.5)
    assert loss.item() == pytest.approx((0.01 + 0.9025) / 2)


def test_the_spread_losses_margin_may_lie_in_memory() -> None:
    target = torch.tensor([0, 2])
    assert torch.equal(spread_loss(LENGTHS, target, torch.tensor(0.3)), spread_loss(LENGTHS, target, 0.3))
    with pytest.raises(ValueError, match="margin must be positive, got tensor"):
        spread_loss(LENGTHS, target, torch.tensor(-0.3))
    with pytest.raises(ValueError, match=r"margin must be \[\], got shape \[2\]"):
        spread_loss(LENGTHS.to("meta"), target.to("meta"), torch.ones(2, device="meta"))


def test_spread_loss_derivative() -> None:
    activations = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: spread_loss(x, torch.tensor([0, 1, 2, 0]), 0.7), (activations,))


def test_spread_margin() -> None:
    assert [spread_margin(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.55, 0.9])
    # Half way up at step 200,000 of 2,000,000; near 0.2 at the start; capped at 0.2 + 0.79 sigmoid(10).
    assert spread_margin(0.1, "sigmoid") == pytest.approx(0.2 + 0.79 / 2)
    assert spread_margin(0.0, "sigmoid") == pytest.approx(0.2142089)
    assert spread_margin(1.0, "sigmoid") == spread_margin(0.4, "sigmoid") == pytest.approx(0.98996413)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spread_loss(LENGTHS, torch.tensor([0]), 0.5), "target must be .* with B=2"),
        (lambda: spread_loss(LENGTHS, torch.tensor([0, 3]), 0.5), "target must hold classes 0 … 2"),
        (lambda: spread_loss(LENGTHS, torch.tensor([0, 1]), 0.0), "margin must be positive"),
        (lambda: spread_loss(LENGTHS, torch.tensor([0, 1]), None), "margin must be positive, got None"),  # type: ignore[arg-type]
        (lambda: spread_loss(LENGTHS, torch.tensor([0, 1]), "0.2"), "margin must be positive, got '0.2'"),  # type: ignore[arg-type]
        (lambda: spread_margin(None), "progress must be a number, got None"),  # type: ignore[arg-type]
        (lambda: margin_loss(LENGTHS, torch.tensor([0, 1]), positive=None), "positive must be a number, got None"),  # type: ignore[arg-type]
        (lambda: spread_margin(1.1), "progress must be within 0 … 1"),
        (lambda: spread_margin(0.5, "cosine"), "schedule must be one of linear, sigmoid"),
    ],
)
def test_bad_spread(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_an_empty_batch_costs_nothing() -> None:
    assert spread_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 0.5).item() == 0
    assert margin_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).item() == 0
    assert reconstruction_loss(torch.zeros(0, 1, 2, 2), torch.zeros(0, 1, 2, 2)).item() == 0


def test_images_must_fit() -> None:
    with pytest.raises(ValueError, match="image must be"):
        reconstruction_loss(torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 5))
    with pytest.raises(ValueError, match="image must be floats .*, got torch.uint8"):
        reconstruction_loss(torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4, dtype=torch.uint8))


def test_targets_within_transforms_and_graphs() -> None:
    """Where values cannot be looked at, they are not; what the library makes itself never has to be."""
    lengths, target, pose = torch.rand(3, 4), torch.tensor([0, 3, 1]), torch.randn(3, 4, 5)
    each = torch.func.vmap(lambda a, t: margin_loss(a[None], t[None]))(lengths, target)
    torch.testing.assert_close(each.mean(), margin_loss(lengths, target))
    longest = torch.func.vmap(lambda p: mask_capsules(p[None])[0])(pose)
    torch.testing.assert_close(longest, mask_capsules(pose))
    chosen = torch.func.vmap(lambda p, t: mask_capsules(p[None], t[None])[0])(pose, target)
    torch.testing.assert_close(chosen, mask_capsules(pose, target))
    for loss in (margin_loss, lambda a, t: spread_loss(a, t, 0.5)):  # of each example
        found = torch.func.vmap(torch.func.grad(lambda a, t, loss=loss: loss(a[None], t[None])))(lengths, target)
        given = lengths.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(loss(given, target), given)
        torch.testing.assert_close(found, 3 * wanted)
    for function, arguments in ((margin_loss, (lengths, target)), (mask_capsules, (pose,))):
        found = torch.compile(function, backend="aot_eager", fullgraph=True)(*arguments)
        torch.testing.assert_close(found, function(*arguments))


def test_margins_of_compiled_training() -> None:
    """A margin that rises step by step becomes a variable of compiled code, which checks it all the same."""
    lengths, target = torch.rand(3, 4), torch.tensor([0, 3, 1])
    compiled = torch.compile(spread_loss, backend="aot_eager", fullgraph=True)
    for margin in (0.2, 0.3, 0.4, 0.5):
        torch.testing.assert_close(compiled(lengths, target, margin), spread_loss(lengths, target, margin))


def test_weights_and_reductions_by_hand() -> None:
    # Of the first image 0.2² for class 0 and 0.5 · 0.4² for class 1, of the second 0.5 · 0.1² and 0.3².
    lengths, target = torch.tensor([[0.7, 0.5], [0.2, 0.6]]), torch.tensor([0, 1])
    weight = torch.tensor([1.0, 3.0])
    each = torch.tensor([0.04 + 0.08, 0.005 + 0.09])
    torch.testing.assert_close(margin_loss(lengths, target, reduction="none"), each)
    torch.testing.assert_close(margin_loss(lengths, target, reduction="sum"), each.sum())
    torch.testing.assert_close(margin_loss(lengths, target), each.mean())
    heavy = torch.tensor([0.04 + 3 * 0.08, 0.005 + 3 * 0.09])
    torch.testing.assert_close(margin_loss(lengths, target, weight=weight, reduction="none"), heavy)
    torch.testing.assert_close(margin_loss(lengths, target, weight=weight), heavy.mean())
    # Margins 0.5: (0.5 − 0.2)² and (0.5 − 0.4)²; images of class 1 count three times.
    spread = torch.tensor([0.09, 0.01])
    torch.testing.assert_close(spread_loss(lengths, target, 0.5, reduction="none"), spread)
    torch.testing.assert_close(spread_loss(lengths, target, 0.5, reduction="sum"), spread.sum())
    torch.testing.assert_close(
        spread_loss(lengths, target, 0.5, weight=weight, reduction="none"), spread * torch.tensor([1.0, 3.0])
    )
    torch.testing.assert_close(spread_loss(lengths, target, 0.5, weight=weight), torch.tensor((0.09 + 0.03) / 4))
    assert spread_loss(lengths[:0], target[:0], 0.5, weight=weight) == 0
    torch.testing.assert_close(spread_loss(lengths, target, 0.5, weight=torch.ones(2)), spread.mean())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": "average"}, "reduction must be one of mean, sum, none; got 'average'"),
        ({"weight": torch.ones(3)}, "weight"),
    ],
)
def test_bad_weights_and_reductions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        margin_loss(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]), **options)
    with pytest.raises(ValueError, match=message):
        spread_loss(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]), 0.5, **options)
