"""Compiled products number by number against the library's in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.backends import needs_cpu
from torchcaps.ops import elementwise_sum
from torchcaps.ops.backends import native
from torchcaps.ops.fixed import elementwise as module

pytestmark = needs_cpu
#: B, I, J, D: one of each; several tiles of rows and columns and what is left over; numbers that fill no vector.
SIZES = [(1, 1, 1, 1), (3, 5, 4, 7), (9, 13, 11, 33), (2, 1, 23, 64)]


def given(sizes: tuple[int, ...] = SIZES[1], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    b, i, j, d = sizes
    return torch.randn(b, i, d, dtype=dtype).requires_grad_(), torch.randn(i, j, d, dtype=dtype).requires_grad_()


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls of compiled code."""
    found, load = [], module.load
    monkeypatch.setattr(module, "load", lambda name: found.append(1) or load(name))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sum_and_gradients(sizes: tuple[int, ...], dtype: torch.dtype, called: list[int]) -> None:
    u, weight = given(sizes, dtype)
    y = elementwise_sum(u, weight)
    dy = torch.randn_like(y)
    exact = [x.detach().double().requires_grad_() for x in (u, weight)]
    wanted = (exact[0][:, :, None] * exact[1]).sum(dim=1)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(y, (u, weight), dy)
    for x, gradient in zip(found, torch.autograd.grad(wanted, exact, dy.double()), strict=True):
        torch.testing.assert_close(x.double(), gradient, rtol=tolerance, atol=tolerance)
    assert len(called) == 3


def test_derivatives_of_any_order(called: list[int]) -> None:
    assert torch.autograd.gradcheck(elementwise_sum, given((2, 3, 2, 3)))
    assert torch.autograd.gradgradcheck(elementwise_sum, given((2, 3, 2, 3)))
    assert called


@pytest.mark.parametrize("frozen", range(2))
def test_what_needs_no_gradient(frozen: int, called: list[int]) -> None:
    tensors = [x.detach().requires_grad_(k != frozen) for k, x in enumerate(given())]
    elementwise_sum(*tensors).sum().backward()
    assert [x.grad is None for x in tensors] == [k == frozen for k in range(2)]
    assert len(called) == 2


def test_strides_do_not_matter() -> None:
    tensors = given()
    strided = [x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for x in tensors]
    found = [torch.autograd.grad(elementwise_sum(*x).square().sum(), x) for x in (tensors, strided)]
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


def test_threads_change_nothing() -> None:
    tensors, before, found = given(SIZES[2], torch.float32), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            y = elementwise_sum(*tensors)
            found.append((y, *torch.autograd.grad(y.sum(), tensors)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_gradients_of_many_outputs_at_once() -> None:
    tensors = given()
    y = elementwise_sum(*tensors)
    directions = torch.randn(4, *y.shape, dtype=y.dtype)
    found = torch.autograd.grad(y, tensors, directions, is_grads_batched=True, retain_graph=True)
    for x, wanted in zip(found, torch.autograd.grad(y, tensors, directions[0]), strict=True):
        torch.testing.assert_close(x[0], wanted)


def test_where_it_is_one_expression(called: list[int]) -> None:
    """Within transforms and compilers, of nothing, and where nothing is compiled."""
    u, weight = given()
    wanted = (u[:, :, None] * weight).sum(dim=1)
    torch.testing.assert_close(torch.func.vmap(lambda x: elementwise_sum(x[None], weight)[0])(u), wanted)
    compiled = torch.compile(elementwise_sum, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(u, weight), wanted)
    _, moved = torch.func.jvp(elementwise_sum, (u, weight), (u, weight))
    torch.testing.assert_close(moved, 2 * wanted)
    assert elementwise_sum(u[:0], weight).shape == wanted[:0].shape
    assert not called
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "why_not", lambda _: "no compiler")
        torch.testing.assert_close(elementwise_sum(u, weight), wanted)
    assert not called
