"""Sums of weighted votes, one upper capsule after the other: the numbers of one expression, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchcaps.ops import weighted_votes as module
from torchcaps.ops.weighted_votes import weighted_votes

B, I, J, D, E = 3, 5, 4, 2, 6  # noqa: E741


def given(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (B, I, J), (B, I, D), (I, J, D, E)
    share, u, weight = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return share, u, weight


def plain(share: Tensor, u: Tensor, weight: Tensor) -> Tensor:
    return (share[..., None] * (u[:, :, None, None] @ weight).squeeze(3)).sum(dim=1)


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take every sum in turn, however small; counts them."""
    called = []
    monkeypatch.setattr(module, "_MANY", 0)
    by_upper = module._by_upper
    monkeypatch.setattr(module, "_by_upper", lambda *x: called.append(1) or by_upper(*x))
    return called


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_and_gradients(in_turn: list[int], dtype: torch.dtype) -> None:
    tensors = given(dtype)
    ours, wanted = weighted_votes(*tensors), plain(*tensors)
    torch.testing.assert_close(ours, wanted)
    d = torch.randn_like(wanted)
    for x, y in zip(torch.autograd.grad(ours, tensors, d), torch.autograd.grad(wanted, tensors, d), strict=True):
        torch.testing.assert_close(x, y)
    assert len(in_turn) == 2


def test_derivatives_of_any_order(in_turn: list[int]) -> None:
    assert torch.autograd.gradcheck(weighted_votes, given())
    assert torch.autograd.gradgradcheck(weighted_votes, given())
    assert in_turn


def test_strides_do_not_matter(in_turn: list[int]) -> None:
    tensors = given()
    strided = [x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for x in tensors]
    found = [torch.autograd.grad(weighted_votes(*x).square().sum(), x) for x in (tensors, strided)]
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("frozen", range(3))
def test_what_needs_no_gradient(in_turn: list[int], frozen: int) -> None:
    tensors = [x.detach().requires_grad_(k != frozen) for k, x in enumerate(given())]
    weighted_votes(*tensors).sum().backward()
    assert [x.grad is None for x in tensors] == [k == frozen for k in range(3)]


def test_where_it_is_one_expression(in_turn: list[int]) -> None:
    """Within transforms and compilers, which do not know what is written in place."""
    tensors = given()
    wanted = plain(*tensors)
    per_image = torch.func.vmap(lambda s, u: weighted_votes(s[None], u[None], tensors[2])[0])
    ways: list[Callable[[], Tensor]] = [
        lambda: per_image(tensors[0], tensors[1]),
        lambda: torch.compile(weighted_votes, fullgraph=True, backend="eager")(*tensors),
    ]
    for way in ways:
        torch.testing.assert_close(way(), wanted)
    _, moved = torch.func.jvp(weighted_votes, tensors, tensors)
    torch.testing.assert_close(moved, 3 * wanted)
    assert not in_turn


def test_gradients_of_many_outputs_at_once(in_turn: list[int]) -> None:
    tensors = given()
    y = weighted_votes(*tensors)
    directions = torch.randn(4, *y.shape, dtype=y.dtype)
    found = torch.autograd.grad(y, tensors, directions, is_grads_batched=True)
    for x, wanted in zip(found, torch.autograd.grad(plain(*tensors), tensors, directions[0]), strict=True):
        torch.testing.assert_close(x[0], wanted)


def test_little_is_one_expression() -> None:
    y = weighted_votes(*given())
    assert "InTurn" not in type(y.grad_fn).__name__
