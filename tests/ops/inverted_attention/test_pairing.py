"""Compiled inverted attention against the reference, by the pairing rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import Tensor

from tests.backends import needs_cpu
from tests.pairing import Inputs, assert_paired, distance, double, largest, outcome
from torchcaps import Capsules, ConvCaps
from torchcaps.layers import InvertedAttentionRouting
from torchcaps.ops import inverted_attention_routing
from torchcaps.ops.inverted_attention.compiled import further_passes
from torchcaps.ops.variational_bayes import cpu as vote_moments

pytestmark = needs_cpu
B, I, J = 3, 23, 5  # noqa: E741


def routing(**options: Any) -> Any:
    def function(backend: str, tensors: Inputs) -> Sequence[Tensor]:
        routed = inverted_attention_routing(**tensors, **options, backend=backend)  # type: ignore[arg-type]
        return [x for x in routed if x is not None]

    return function


def inputs(sizes: tuple[int, int, int] = (B, I, J), *, all_of_them: bool = False) -> Inputs:
    b, i, j = sizes
    tensors = {"pose": torch.randn(b, i, 4, 4), "weight": torch.randn(i, j, 4, 4) / 2}
    if all_of_them:
        tensors |= {"norm_weight": torch.rand(16), "norm_bias": torch.randn(16), "score_weight": torch.randn(16)}
        tensors |= {"score_bias": torch.randn(()), "initial": torch.randn(b, j, 4, 4)}
    return tensors


@pytest.mark.parametrize("n_iters", [1, 2, 4])
@pytest.mark.parametrize("coupling", [False, True])
@pytest.mark.parametrize("all_of_them", [False, True])
def test_options(all_of_them: bool, coupling: bool, n_iters: int) -> None:
    function, tensors = routing(n_iters=n_iters, return_coupling=coupling), inputs(all_of_them=all_of_them)
    assert_paired(function, tensors, "cpu")
    # In float64 a small mistake is not hidden by rounding.
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for name, wanted in exact.items():
        assert distance(ours[name], wanted) <= 1e-10 * (1 + largest(wanted)), name


def test_bfloat16() -> None:
    tensors = {name: None if x is None else x.bfloat16() for name, x in inputs().items()}
    assert_paired(routing(n_iters=2), tensors, "cpu")


@pytest.mark.parametrize("sizes", [(0, I, J), (B, I, 0)], ids=str)
def test_nothing_to_route(sizes: tuple[int, int, int]) -> None:
    assert_paired(routing(n_iters=2), inputs(sizes), "cpu")


def test_large_votes_are_right() -> None:
    """As far as the reference goes; their squares overflow."""
    tensors = inputs()
    assert tensors["pose"] is not None
    tensors["pose"] *= 1e19
    found, wanted = (routing(n_iters=3, return_coupling=True)(backend, tensors) for backend in ("cpu", "reference"))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y)
    assert all(bool(x.isfinite().all()) for x in outcome(routing(n_iters=3), tensors, "cpu").values())


@limits(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 19), st.integers(0, 2**31))
def test_any_sizes(b: int, i: int, j: int, seed: int) -> None:
    torch.manual_seed(seed)
    function, tensors = routing(n_iters=2), inputs((b, i, j))
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for name, wanted in exact.items():
        assert distance(ours[name], wanted) <= 1e-9 * (1 + largest(wanted)), name


def test_threads_change_nothing() -> None:
    tensors = inputs((40, I, J), all_of_them=True)  # whose first pass is ours, too
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(outcome(routing(n_iters=2), tensors, "cpu"))
    finally:
        torch.set_num_threads(before)
    for name, x in found[0].items():
        torch.testing.assert_close(x, found[1][name], rtol=0, atol=0, msg=name)


def test_what_compiled_code_is_not_for() -> None:
    for pose, weight in (
        (torch.randn(2, 5, 3, 3), torch.randn(5, 3, 3, 3)),
        (torch.randn(2, 5, 16), torch.randn(5, 3, 16, 16)),
    ):
        inverted_attention_routing(pose, weight, n_iters=2)
        with pytest.raises(ValueError, match="backend='cpu' wants 4×4 matrices, got poses"):
            inverted_attention_routing(pose, weight, n_iters=2, backend="cpu")
    with pytest.raises(ValueError, match="backend must be one of auto, reference, cpu, triton; got 'fast'"):
        InvertedAttentionRouting(backend="fast")


@pytest.mark.parametrize(("d_pose", "calls"), [(16, 2), (9, 0)])
def test_auto_takes_compiled_code_where_there_is_some(d_pose: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(vote_moments, "_call", lambda name, *_: called.append(name))
    layer = ConvCaps(2, 3, d_pose, d_pose, 3, routing=InvertedAttentionRouting(n_iters=3))
    layer(Capsules(torch.randn(B, 2, 4, 4, d_pose), torch.ones(B, 2, 4, 4)))
    assert called == ["moments"] * calls


def test_second_derivatives_are_refused() -> None:
    pose, weight = torch.randn(2, 5, 4, 4, requires_grad=True), torch.randn(5, 3, 4, 4)
    routed = inverted_attention_routing(pose, weight, n_iters=2, backend="cpu")
    (gradient,) = torch.autograd.grad(routed.pose.square().sum(), pose, create_graph=True)
    with pytest.raises(NotImplementedError, match="backend='cpu' has no second derivative"):
        torch.autograd.grad(gradient.sum(), pose)


def test_where_nothing_is_compiled_torch_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program does that was exported elsewhere."""
    pose, weight, upper = torch.randn(B, I, 4, 4), torch.randn(I, J, 4, 4), torch.randn(B, J, 16)
    compiled = further_passes(pose, weight, upper, 2, torch.tanh, True, backend="cpu")
    monkeypatch.setattr(vote_moments, "why_not", lambda _: "not today")
    for x, y in zip(further_passes(pose, weight, upper, 2, torch.tanh, True, backend="cpu"), compiled, strict=True):
        torch.testing.assert_close(x, y)
        assert not torch.equal(x, y)
