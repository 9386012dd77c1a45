"""squash and the norm under it, by numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.autograd import gradcheck

from torchcaps.ops import safe_norm, squash
from torchcaps.ops.squash import squash_with_length


@pytest.mark.parametrize(
    ("s", "v"),
    [
        ((1.0, 0.0), (0.5, 0.0)),  # length 1 becomes 1/2
        ((0.0, -2.0), (0.0, -0.8)),  # 4/5
        ((3.0, 4.0), (15 / 26, 20 / 26)),  # 25/26 along (3/5, 4/5)
        ((0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_literal_values(s: tuple[float, float], v: tuple[float, float]) -> None:
    torch.testing.assert_close(squash(torch.tensor(s, dtype=torch.float64)), torch.tensor(v, dtype=torch.float64))


def test_lists_are_no_tensors() -> None:
    with pytest.raises(ValueError, match=r"s must be a torch.Tensor, got a list"):
        squash([3.0, 4.0])  # type: ignore[arg-type]


def test_works_along_the_named_axis() -> None:
    s = torch.randn(3, 5, 4)
    torch.testing.assert_close(squash(s, dim=1), squash(s.transpose(1, 2)).transpose(1, 2))
    assert bool((squash(s, dim=1).norm(dim=1) < 1).all())


def test_value_and_gradient_are_zero_at_zero() -> None:
    s = torch.zeros(2, 8, requires_grad=True)
    squash(s).sum().backward()
    assert s.grad is not None
    assert torch.equal(s.grad, torch.zeros(2, 8))


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-12, 1.0, 1e12, 1e30, 3e38])
def test_finite_and_right_at_every_scale(size: float) -> None:
    s = torch.tensor([[size, 0.0]], requires_grad=True)
    v = squash(s)
    v.sum().backward()
    assert s.grad is not None and bool(s.grad.isfinite().all())
    assert v[0, 0].item() == pytest.approx(size * size / (1 + size * size), rel=1e-6, abs=1e-38)


def test_the_largest_vectors_have_length_one() -> None:
    s = torch.full((8,), 3e38, requires_grad=True)  # its norm is beyond float32
    v = squash(s)
    v.sum().backward()
    assert v.norm().item() == pytest.approx(1.0)
    assert s.grad is not None and bool(s.grad.isfinite().all())


def test_derivative_is_right() -> None:
    s = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(squash, (s,))
    assert gradcheck(lambda x: safe_norm(x, keepdim=True), (s,))


def test_the_norm_of_an_infinite_vector_is_infinite() -> None:
    assert safe_norm(torch.tensor([[math.inf, 1.0], [-math.inf, math.inf]])).tolist() == [math.inf, math.inf]


def test_norm_has_no_epsilon() -> None:
    assert safe_norm(torch.tensor([3e-30, 4e-30], dtype=torch.float64)).item() == pytest.approx(5e-30, rel=1e-12)
    assert safe_norm(torch.tensor([0.0, 0.9])).item() == pytest.approx(0.9)


@pytest.mark.parametrize(("dtype", "step"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision_is_computed_wide(dtype: torch.dtype, step: float) -> None:
    """Right to the one rounding at the end."""
    s = torch.randn(64, 8).to(dtype)
    got = squash(s)
    assert got.dtype == safe_norm(s).dtype == dtype
    torch.testing.assert_close(safe_norm(s), safe_norm(s.double()).to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(got, squash(s.double()).to(dtype), rtol=1.01 * step, atol=0)


def test_turning_a_capsule_turns_the_result() -> None:
    angle = math.radians(20)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    capsule = torch.tensor([0.0, 0.9])
    torch.testing.assert_close(squash(turn @ capsule), turn @ squash(capsule))


@pytest.mark.parametrize("of", [squash, safe_norm])
@pytest.mark.parametrize("dim", [2, -3, 1.0, "row", True])
def test_what_is_no_axis_is_refused(of: Callable[..., torch.Tensor], dim: object) -> None:
    with pytest.raises(ValueError, match=f"^dim must be an axis of 2, from -2 to 1, got {dim!r}$"):
        of(torch.rand(3, 4), dim=dim)


@pytest.mark.parametrize("of", [squash, safe_norm])
def test_what_has_no_length_is_refused(of: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=r"^s must be a torch\.Tensor, got a list$"):
        of([1.0, 2.0])
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match=f"^s must be floating point, got {dtype}$"):
            of(torch.ones(3, 4, dtype=dtype))
    with pytest.raises(ValueError, match=r"^dim must be an axis of size 1 or more, got -1 of shape \[2, 0\]$"):
        of(torch.ones(2, 0))
    assert of(torch.ones(0, 2), dim=1).shape[0] == 0


@pytest.mark.parametrize("size", [1e-14, 0.01, 1.0, 3.9])
def test_ordinary_lengths_take_fewer_steps_to_the_same(size: float) -> None:
    """A vector of another size beside them makes all take the careful ones."""
    s = (torch.randn(5, 6).double().clamp(-1, 1) * size).requires_grad_()
    upstream = torch.randn(5, 6).double(), torch.randn(5).double()

    def outcome(*beside: torch.Tensor) -> list[torch.Tensor]:
        made = [x[:5] for x in squash_with_length(torch.cat((s, *beside)))]
        return [*made, *torch.autograd.grad(made, s, upstream)]

    for found, wanted in zip(outcome(), outcome(torch.full((1, 6), 1e9).double()), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
