"""Compiled weights by agreement against plain PyTorch, by the pairing rule, and where they are not taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import Tensor

from tests.backends import needs_cpu
from tests.pairing import Inputs, assert_paired, distance, double, largest, outcome
from torchcaps.ops import Capsules, agreement, degree_routing, self_attention_routing
from torchcaps.ops.backends import native

pytestmark = needs_cpu
B, I, J, D, E = 19, 5, 7, 3, 6  # noqa: E741
ROUTINGS: dict[str, Callable[..., Capsules]] = {"degree": degree_routing, "self_attention": self_attention_routing}
every = pytest.mark.parametrize("name", [*ROUTINGS, "prior"])


def routing(name: str) -> Callable[[str, Inputs], Sequence[Tensor]]:
    def function(backend: str, tensors: Inputs) -> Sequence[Tensor]:
        plain = mock.patch.object(agreement, "_is_compiled", return_value=False)
        with plain if backend == "reference" else nullcontext():
            route = ROUTINGS.get(name, self_attention_routing)
            return [x for x in route(**tensors, return_coupling=True) if x is not None]

    return function


def inputs(name: str, sizes: tuple[int, int, int, int, int] = (B, I, J, D, E)) -> Inputs:
    b, i, j, d, e = sizes
    tensors: Inputs = {"u": torch.randn(b, i, d), "weight": torch.randn(i, j, d, e) / 2}
    return tensors | ({"prior_bias": torch.randn(i, j)} if name == "prior" else {})


def pose(name: str) -> Callable[..., Tensor]:
    route = ROUTINGS.get(name, self_attention_routing)
    return lambda u, weight, *prior: route(u, weight, **({"prior_bias": prior[0]} if prior else {})).pose


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many upper capsules each call of compiled code is for."""
    found, call = [], agreement._call
    monkeypatch.setattr(agreement, "_call", lambda *x: found.append(x[1].shape[1]) or call(*x))
    return found


@every
@pytest.mark.parametrize("sizes", [(B, I, J, D, E), (1, 1, 3, 1, 1), (250, 3, 2, 4, 16)], ids=str)
def test_is_paired(name: str, sizes: tuple[int, int, int, int, int], called: list[int]) -> None:
    function, tensors = routing(name), inputs(name, sizes)
    assert_paired(function, tensors, "cpu")
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for result, wanted in exact.items():
        assert distance(ours[result], wanted) <= 1e-12 * (1 + largest(wanted)), result
    assert called


@limits(max_examples=20, deadline=None)
@given(st.sampled_from([*ROUTINGS, "prior"]), st.tuples(*(st.integers(1, 18) for _ in range(5))), st.integers(0, 2**31))
def test_any_sizes(name: str, sizes: tuple[int, int, int, int, int], seed: int) -> None:
    torch.manual_seed(seed)
    function, tensors = routing(name), double(inputs(name, sizes))
    exact, ours = outcome(function, tensors, "reference"), outcome(function, tensors, "cpu")
    for result, wanted in exact.items():
        assert distance(ours[result], wanted) <= 1e-9 * (1 + largest(wanted)), result


@every
def test_short_votes(name: str) -> None:
    """Whose squares are below the least that counts."""
    function, tensors = routing(name), double(inputs(name))
    tensors["u"] = tensors["u"] * torch.logspace(-9, 0, I, dtype=torch.float64)[:, None]  # type: ignore[operator]
    exact, ours = outcome(function, tensors, "reference"), outcome(function, tensors, "cpu")
    for result, wanted in exact.items():
        assert distance(ours[result], wanted) <= 1e-9 * (1 + largest(wanted)), result


def test_parts_are_all(monkeypatch: pytest.MonkeyPatch, called: list[int]) -> None:
    """Upper capsules that do not compete are cut into parts, others are not; images of both are."""
    for name, upper in (("degree", [3, 3, 1]), ("prior", [7])):
        function, tensors = routing(name), double(inputs(name, (33, I, J, D, E)))
        whole = outcome(function, tensors, "cpu")
        with monkeypatch.context() as patch:
            patch.setattr(agreement, "_AT_ONCE", 3 * 16 * I * E)
            patch.setattr(agreement, "_IMAGES", 16)
            called.clear()
            parts = outcome(function, tensors, "cpu")
        assert called == upper * 3 * 2
        for result, wanted in whole.items():
            torch.testing.assert_close(parts[result], wanted)


@every
def test_threads_change_nothing(name: str) -> None:
    tensors, before, found = inputs(name, (40, I, J, D, E)), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(outcome(routing(name), tensors, "cpu"))
    finally:
        torch.set_num_threads(before)
    for result, x in found[0].items():
        torch.testing.assert_close(x, found[1][result], rtol=0, atol=0, msg=result)


@every
def test_derivatives_of_any_order(name: str, called: list[int]) -> None:
    tensors = [x.requires_grad_() for x in double(inputs(name, (2, 3, 2, 2, 2))).values() if x is not None]
    assert torch.autograd.gradcheck(pose(name), tensors)
    assert torch.autograd.gradgradcheck(pose(name), tensors)
    assert called


@every
@pytest.mark.parametrize("frozen", range(2))
def test_what_needs_no_gradient(name: str, frozen: int) -> None:
    tensors = [x for x in inputs(name).values() if x is not None]
    leaves = [x.requires_grad_(k != frozen) for k, x in enumerate(tensors)]
    (gradient,) = torch.autograd.grad(pose(name)(*leaves).square().sum(), leaves[1 - frozen], create_graph=True)
    gradient.sum().backward()
    assert [x.grad is None for x in leaves] == [k == frozen for k in range(len(leaves))]


@every
def test_gradients_of_many_outputs_at_once(name: str) -> None:
    tensors = [x.requires_grad_() for x in double(inputs(name)).values() if x is not None]
    y = pose(name)(*tensors)
    directions = torch.randn(4, *y.shape, dtype=y.dtype)
    found = torch.autograd.grad(y, tensors, directions, is_grads_batched=True, retain_graph=True)
    for x, wanted in zip(found, torch.autograd.grad(y, tensors, directions[0]), strict=True):
        torch.testing.assert_close(x[0], wanted)


@every
def test_autocast_rounds_nothing(name: str) -> None:
    tensors = [x.requires_grad_() for x in inputs(name).values() if x is not None]
    wanted = torch.autograd.grad(pose(name)(*tensors).sum(), tensors)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(pose(name)(*tensors).sum(), tensors)
    for x, y in zip(found, wanted, strict=True):
        assert torch.equal(x, y)


@every
def test_where_plain_pytorch_is_taken(name: str, called: list[int]) -> None:
    """Within transforms and compilers, for large votes, which are measured in units, and where nothing is compiled."""
    tensors = [x for x in double(inputs(name)).values() if x is not None]
    u, *rest = tensors
    wanted, function = pose(name)(*tensors), pose(name)
    called.clear()
    torch.testing.assert_close(torch.func.vmap(lambda x: function(x[None], *rest)[0])(u), wanted)
    torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="eager")(u, *rest), wanted)
    torch.func.jvp(lambda x: function(x, *rest), (u,), (u,))
    with mock.patch.object(native, "why_not", return_value="no compiler"):
        torch.testing.assert_close(function(*tensors), wanted)
    for factor in (1e9, float("nan")):
        function(factor * u, *rest)
    assert not called
