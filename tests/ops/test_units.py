"""Units of large numbers: nothing changes for others, and squares never overflow."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torchcaps.ops.units import LARGE, LEAST, in_units, layer_norm, per_square_unit

DOUBLE = torch.float64


def test_only_large_numbers_are_divided() -> None:
    x = torch.tensor([[1.0, -LARGE], [2.0, 4 * LARGE]])
    scaled, unit = in_units(x, 0)
    assert torch.equal(unit, torch.tensor([[1.0, 4 * LARGE]]))
    assert torch.equal(scaled, torch.tensor([[1.0, -0.25], [2.0, 1.0]]))
    assert torch.equal(in_units(x, (0, 1))[1], torch.tensor([[4 * LARGE]]))


def test_nothing_is_divided_by_1() -> None:
    scaled, unit = in_units(torch.zeros(2, 0, 3), 1)
    assert scaled.shape == (2, 0, 3) and torch.equal(unit, torch.ones(2, 1, 3))
    x = torch.rand(2, 3)
    assert in_units(x, 1)[0] is x


def test_a_constant_per_square_unit() -> None:
    got = per_square_unit(1.0, torch.tensor([1.0, 1e5, 1e20]))
    torch.testing.assert_close(got, torch.tensor([1.0, 1e-10, LEAST]))


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e5, 1e20])
def test_layer_norm_is_that_of_torch_in_float64(scale: float) -> None:
    s, weight, bias = (torch.randn(shape, dtype=DOUBLE) for shape in ((3, 4, 6), (6,), (6,)))
    wanted = F.layer_norm(scale * s, (6,), weight, bias)
    torch.testing.assert_close(layer_norm(scale * s, weight, bias), wanted, rtol=1e-9, atol=1e-9)
    narrow = layer_norm((scale * s).float(), weight.float(), bias.float())
    torch.testing.assert_close(narrow, wanted.float(), rtol=1e-4, atol=1e-5)


def test_layer_norm_of_equal_large_numbers_is_finite() -> None:
    s = torch.full((2, 6), 1e20, requires_grad=True)
    normed = layer_norm(s)
    (gradient,) = torch.autograd.grad(normed.square().sum(), s)
    assert bool(normed.isfinite().all()) and bool(gradient.isfinite().all())


def test_layer_norm_has_the_gradient_of_torchs() -> None:
    s = torch.randn(3, 6, dtype=DOUBLE, requires_grad=True)
    upper = torch.randn(3, 6, dtype=DOUBLE)
    (mine,) = torch.autograd.grad((layer_norm(s) * upper).sum(), s)
    (theirs,) = torch.autograd.grad((F.layer_norm(s, (6,)) * upper).sum(), s)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
