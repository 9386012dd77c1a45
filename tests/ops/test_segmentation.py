"""Losses and the measure of masks: numbers worked by hand, and what has no pixel or no class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchcaps.ops import dice_loss, dice_score, margin_loss, pixel_margin_loss, weighted_cross_entropy

#: Two images of two classes on one row of four pixels.
LENGTHS = torch.tensor(
    [
        [[[0.9, 0.5, 0.1, 0.0]], [[0.2, 0.2, 0.8, 0.8]]],
        [[[0.3, 0.3, 0.3, 0.3]], [[0.0, 0.0, 0.0, 0.0]]],
    ],
    dtype=torch.float64,
)
TARGET = torch.tensor([[[[1, 1, 0, 0]], [[0, 0, 1, 0]]], [[[0, 0, 0, 0]], [[0, 0, 0, 0]]]])
LOSSES = (dice_loss, weighted_cross_entropy, pixel_margin_loss)


def test_dice_loss_worked_by_hand() -> None:
    """First image: 1 − 2·1.4/(2 + 1.5) = 0.2 and 1 − 2·0.8/(1 + 2) = 7/15; second: nothing is there."""
    got = dice_loss(LENGTHS, TARGET, smooth=1e-12, reduction="none")
    # Of 1.2 that is found and not there the loss is 1; of nothing found and nothing there it is 0.
    torch.testing.assert_close(got, torch.tensor([(0.2 + 7 / 15) / 2, 0.5], dtype=torch.float64))
    torch.testing.assert_close(dice_loss(LENGTHS, TARGET, smooth=1e-12), got.mean())
    torch.testing.assert_close(dice_loss(LENGTHS, TARGET, smooth=1e-12, reduction="sum"), got.sum())
    # ε = 1: (2.8 + 1)/(3.5 + 1), (1.6 + 1)/(3 + 1), 1/(1.2 + 1), 1
    smooth = dice_loss(LENGTHS, TARGET, smooth=1, reduction="none")
    wanted = [(2 - 3.8 / 4.5 - 2.6 / 4) / 2, (2 - 1 / 2.2 - 1) / 2]
    torch.testing.assert_close(smooth, torch.tensor(wanted, dtype=torch.float64))


def test_cross_entropy_worked_by_hand() -> None:
    """Logarithms of the true class: 0.9, 0.5 · (1 − 0.1), 1 · 0.8², 0.8 · 0.2; second image 0.7⁴."""
    got = weighted_cross_entropy(LENGTHS, TARGET, reduction="none")
    logs = [math.log(0.9 * 0.5 * 0.9) + math.log(0.8 * 0.8 * 0.8 * 0.2), 4 * math.log(0.7)]
    torch.testing.assert_close(got, -torch.tensor(logs, dtype=torch.float64) / 8, rtol=0, atol=1e-6)
    weighted = weighted_cross_entropy(LENGTHS, TARGET, positive_weight=3, reduction="none")
    more = 2 * math.log(0.9 * 0.5 * 0.8)  # of the three pixels that are inside
    torch.testing.assert_close(weighted[0], got[0] - more / 8, rtol=0, atol=1e-6)
    torch.testing.assert_close(weighted[1], got[1])
    inner = LENGTHS.clamp(0.01, 0.99)
    torch.testing.assert_close(
        weighted_cross_entropy(inner, TARGET), F.binary_cross_entropy(inner, TARGET.to(inner.dtype))
    )


def test_pixel_margin_loss_worked_by_hand() -> None:
    """First image, by pixels: 0 + 0.5·0.1², 0.4² + 0.5·0.1², 0.1², 0.5·0.7²; second: four times 0.5·0.2²."""
    got = pixel_margin_loss(LENGTHS, TARGET, reduction="none")
    wanted = torch.tensor([(0.005 + 0.165 + 0.01 + 0.245) / 4, 0.02], dtype=torch.float64)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(pixel_margin_loss(LENGTHS, TARGET), wanted.mean())
    of_first = pixel_margin_loss(LENGTHS, TARGET, weight=torch.tensor([1.0, 0.0]), reduction="none")
    torch.testing.assert_close(of_first, torch.tensor([0.16 / 4, 0.02], dtype=torch.float64))
    one = LENGTHS[:, :, :, :1]
    torch.testing.assert_close(
        pixel_margin_loss(one, TARGET[..., :1], positive=0.8, negative=0.2, absent_weight=1),
        margin_loss(one.flatten(1), TARGET[..., 0, 0], positive=0.8, negative=0.2, absent_weight=1),
    )


def test_dice_score_worked_by_hand() -> None:
    """0.5 is not above ½: one of two pixels is found, of class 0; one and one too many, of class 1."""
    got = dice_score(LENGTHS, TARGET, per_image=True)
    torch.testing.assert_close(got, torch.tensor([[2 / 3, 2 / 3], [1, 1]], dtype=torch.float64))
    torch.testing.assert_close(dice_score(LENGTHS, TARGET), got[0])
    low = dice_score(LENGTHS, TARGET, threshold=0.25)
    # Class 0: 2 of 2, and four of the second image, 2·2/(2 + 6); class 1 as before.
    torch.testing.assert_close(low, torch.tensor([0.5, 2 / 3], dtype=torch.float64))
    assert not dice_score(LENGTHS.requires_grad_(), TARGET).requires_grad
    LENGTHS.requires_grad_(False)


@pytest.mark.parametrize("loss", LOSSES)
def test_derivatives_are_right_and_finite_everywhere(loss: Callable[..., Any]) -> None:
    lengths = torch.rand(2, 3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = (torch.rand(2, 3, 2, 4, generator=torch.Generator().manual_seed(1)) > 0.5).long()
    assert torch.autograd.gradcheck(lambda x: loss(x, target), (lengths.requires_grad_(),))
    for dtype in (torch.float32, torch.bfloat16):
        for value in (0.0, 1.0):
            x = torch.full((1, 2, 2, 2), value, dtype=dtype, requires_grad=True)
            for there in (torch.zeros(1, 2, 2, 2), torch.ones(1, 2, 2, 2)):
                got = loss(x, there)
                got.backward()
                assert got.dtype == torch.float32 and bool(got.isfinite())
                assert x.grad is not None and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("loss", LOSSES)
def test_masks_of_any_type_and_empty_batches(loss: Callable[..., Any]) -> None:
    for kind in (torch.bool, torch.uint8, torch.float32):
        torch.testing.assert_close(loss(LENGTHS, TARGET.to(kind)), loss(LENGTHS, TARGET))
    assert loss(LENGTHS[:0], TARGET[:0]) == 0
    assert loss(LENGTHS[:0], TARGET[:0], reduction="none").shape == (0,)
    learned = TARGET.double().requires_grad_()  # of a network that teaches; torch warns where its values are looked at
    loss(LENGTHS, learned).backward()
    batch = [float(loss(LENGTHS[k : k + 1], TARGET[k : k + 1])) for k in (0, 1)]
    assert loss(LENGTHS, TARGET, reduction="none").tolist() == pytest.approx(batch)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("lengths", "target", "options", "message"),
    [
        (LENGTHS, TARGET[:, :1], {}, r"target must be \[B, J, H, W\] with J=2 as in lengths, got shape \[2, 1, 1, 4\]"),
        (LENGTHS[0], TARGET[0], {}, r"lengths must be \[B, J, H, W\], got shape \[2, 1, 4\]"),
        (LENGTHS.long(), TARGET, {}, "lengths must be floating point, got torch.int64"),
        (LENGTHS[..., :0], TARGET[..., :0], {}, "lengths must have a class and a pixel at least"),
        (LENGTHS, 2 * TARGET, {}, "target must hold 0 … 1, got 0 … 2"),
        (LENGTHS, TARGET.double() * math.nan, {}, "target must hold 0 … 1, got nan"),
        (LENGTHS, TARGET, {"reduction": "all"}, "reduction must be one of mean, sum, none; got 'all'"),
    ],
)
def test_what_does_not_fit_is_refused(
    loss: Callable[..., Any], lengths: Any, target: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        loss(lengths, target, **options)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="smooth must be positive, got 0"):
        dice_loss(LENGTHS, TARGET, smooth=0)
    with pytest.raises(ValueError, match="positive_weight must be positive, got -1"):
        weighted_cross_entropy(LENGTHS, TARGET, positive_weight=-1)
    with pytest.raises(ValueError, match="threshold must be a number, got 'half'"):
        dice_score(LENGTHS, TARGET, threshold="half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scores must be floating point"):
        dice_score(TARGET, TARGET)
    with pytest.raises(ValueError, match="per_image must be True or False, got 2"):
        dice_score(LENGTHS, TARGET, per_image=2)  # type: ignore[arg-type]
