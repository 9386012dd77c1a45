"""Compiled routing by Heinsen's algorithm of 2019 against the reference, by the pairing rule."""

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
from torchcaps import Capsules, DenseCaps
from torchcaps.layers import HeinsenMatrixRouting
from torchcaps.ops import heinsen_matrix_routing
from torchcaps.ops.variational_bayes import cpu as vote_moments

pytestmark = needs_cpu
B, I, J = 3, 23, 5  # noqa: E741


def routing(**options: Any) -> Any:
    def function(backend: str, tensors: Inputs) -> Sequence[Tensor]:
        routed = heinsen_matrix_routing(**tensors, **options, backend=backend)  # type: ignore[arg-type]
        return [x for x in routed if x is not None]

    return function


def inputs(
    sizes: tuple[int, int, int] = (B, I, J), *, shared: bool = True, bias: bool = True, dtype: torch.dtype | None = None
) -> Inputs:
    b, i, j = sizes
    n = 1 if shared else i
    tensors = {
        "pose": torch.randn(b, i, 4, 4),
        "activation": torch.rand(b, i),
        "weight": torch.randn(n, j, 4, 4) / 2,
        "beta_use": torch.randn(n, j) / 4,
        "beta_ign": torch.randn(n, j) / 4,
        "bias": torch.randn(1, j, 4, 4),
    }
    return {name: x.to(dtype) for name, x in tensors.items() if bias or name != "bias"}


@pytest.mark.parametrize("n_iters", [1, 2, 3, 4])
@pytest.mark.parametrize("coupling", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_options(shared: bool, bias: bool, coupling: bool, n_iters: int) -> None:
    function = routing(n_iters=n_iters, return_coupling=coupling)
    tensors = inputs(shared=shared, bias=bias)
    assert_paired(function, tensors, "cpu")
    # In float64 a small mistake is not hidden by rounding.
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for name, wanted in exact.items():
        assert distance(ours[name], wanted) <= 1e-9 * (1 + largest(wanted)), name


def test_masks() -> None:
    mask = torch.tensor([[True] * I, [True] * 3 + [False] * (I - 3), [False] * I])
    assert_paired(routing(mask=mask), inputs(), "cpu")


def test_bfloat16() -> None:
    assert_paired(routing(), inputs(dtype=torch.bfloat16), "cpu")


@pytest.mark.parametrize("sizes", [(0, I, J), (B, I, 0)], ids=str)
def test_nothing_to_route(sizes: tuple[int, int, int]) -> None:
    assert_paired(routing(), inputs(sizes), "cpu")


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_far_votes_are_finite_and_right(scale: float, shift: float) -> None:
    """Where the spread cancels, too."""
    tensors = inputs()
    pose = tensors["pose"]
    assert pose is not None
    tensors["pose"] = scale * (pose + shift)
    found, wanted = (routing(n_iters=2)(b, double(tensors)) for b in ("cpu", "reference"))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9 * float(y.abs().max()))
    assert all(bool(x.isfinite().all()) for x in outcome(routing(), tensors, "cpu").values())


@pytest.mark.parametrize("name", ["pose", "bias"])
def test_auto_leaves_large_votes_to_the_reference(name: str) -> None:
    tensors = inputs() | {name: torch.full_like(inputs()[name], 1e25)}  # type: ignore[arg-type]
    for x, y in zip(routing()("auto", tensors), routing()("reference", tensors), strict=True):
        assert bool(x.isfinite().all()) and torch.equal(x, y)


@limits(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 19), st.booleans(), st.integers(0, 2**31))
def test_any_sizes(b: int, i: int, j: int, shared: bool, seed: int) -> None:
    torch.manual_seed(seed)
    function, tensors = routing(n_iters=2), inputs((b, i, j), shared=shared)
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for name, wanted in exact.items():
        assert distance(ours[name], wanted) <= 1e-8 * (1 + largest(wanted)), name


def test_what_compiled_code_is_not_for() -> None:
    tensors = inputs(shared=False) | {"bias": torch.randn(I, J, 4, 4)}
    routing()("auto", tensors)
    with pytest.raises(ValueError, match=f"backend='cpu' wants one bias for all lower capsules, got {I}"):
        routing()("cpu", tensors)
    tensors = inputs(bias=False) | {"pose": torch.randn(B, I, 3, 4)}
    routing()("auto", tensors)
    with pytest.raises(ValueError, match="backend='cpu' wants 4×4 matrices, got poses"):
        routing()("cpu", tensors)
    with pytest.raises(ValueError, match="backend must be one of auto, reference, cpu, triton; got 'fast'"):
        HeinsenMatrixRouting(backend="fast")


@pytest.mark.parametrize(("shared", "calls"), [(True, 3), (False, 0)])
def test_auto_takes_compiled_code_where_there_is_some(
    shared: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(vote_moments, "_call", lambda name, *_: called.append(name))
    layer = DenseCaps(I, J, 16, 16, routing=HeinsenMatrixRouting(shared=shared))
    layer(Capsules(torch.randn(B, I, 16), torch.rand(B, I)))
    assert called == ["moments"] * calls
