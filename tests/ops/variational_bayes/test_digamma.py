"""The digamma function and its derivative, beside torch's other ways to them."""

from __future__ import annotations

import pytest
import torch

from torchcaps.ops.variational_bayes.digamma import digamma


def test_values_and_gradients_in_float64() -> None:
    """The derivative of ψ is Hurwitz's ζ(2, x), and the second one -2 ζ(3, x)."""
    x = torch.tensor([0.1, 0.5, 1.0, 1.5, 3.0, 8.0, 500.0], dtype=torch.float64, requires_grad=True)
    value = digamma(x)
    torch.testing.assert_close(value, torch.digamma(x), rtol=1e-13, atol=1e-14)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    two, three = (torch.tensor(float(n), dtype=torch.float64) for n in (2, 3))
    torch.testing.assert_close(slope.detach(), torch.special.zeta(two, x.detach()), rtol=1e-13, atol=0)
    torch.testing.assert_close(bend, -2 * torch.special.zeta(three, x.detach()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_shapes_and_dtypes_stay(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64):
        got = digamma(torch.ones(shape, dtype=dtype))
        assert got.shape == shape and got.dtype == dtype
        torch.testing.assert_close(got, torch.full(shape, -0.5772156649015329, dtype=dtype))
