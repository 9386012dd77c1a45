"""Compiled variational-Bayes routing against the reference, by the pairing rule."""

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
from tests.ops.em.test_pairing import GEOMETRIES, inputs
from tests.pairing import Inputs, assert_paired, distance, double, largest, outcome
from torchcaps.ops import conv_variational_bayes_routing, variational_bayes_routing, which_backend
from torchcaps.ops.variational_bayes import cpu as vote_moments
from torchcaps.ops.variational_bayes.compiled import _sum_of_digammas
from torchcaps.ops.variational_bayes.moments import Shares, moments

pytestmark = needs_cpu


def routing(**options: Any) -> Any:
    def function(backend: str, tensors: Inputs) -> Sequence[Tensor]:
        routed = conv_variational_bayes_routing(**tensors, **options, backend=backend)  # type: ignore[arg-type]
        return [x for x in routed if x is not None]

    return function


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_geometries(geometry: tuple[Any, ...]) -> None:
    assert_paired(routing(stride=geometry[-1]), inputs(geometry), "cpu")


@pytest.mark.parametrize("n_iters", [1, 2, 3, 4])
@pytest.mark.parametrize("given", [(), ("coupling",), ("offset",)], ids=str)
def test_options(given: tuple[str, ...], n_iters: int) -> None:
    geometry = (2, (3, 5, 6), (3, 3), 6, (1, 2))
    options = {"offset": torch.randn(3, 3, 3, 4, 4)} if "offset" in given else {}
    function = routing(stride=(1, 2), n_iters=n_iters, return_coupling="coupling" in given, **options)
    assert_paired(function, inputs(geometry), "cpu")


def test_bfloat16() -> None:
    assert_paired(routing(stride=2), inputs(GEOMETRIES[2], torch.bfloat16), "cpu")


@pytest.mark.parametrize(
    "geometry",
    [(0, (3, 5, 4), (3, 3), 4, (1, 1)), (2, (0, 5, 4), (3, 3), 4, (1, 1)), (2, (3, 5, 4), (3, 3), 0, (1, 1))],
    ids=str,
)
def test_nothing_to_route(geometry: tuple[Any, ...]) -> None:
    assert_paired(routing(), inputs(geometry), "cpu")


def test_strides_do_not_matter() -> None:
    tensors = inputs(GEOMETRIES[2])
    strided = {k: x.transpose(0, -1).contiguous().transpose(0, -1) for k, x in tensors.items() if x is not None}
    plain = outcome(routing(stride=2), tensors, "cpu")
    for name, x in outcome(routing(stride=2), strided, "cpu").items():  # type: ignore[arg-type]
        torch.testing.assert_close(x, plain[name], rtol=0, atol=0, msg=name)


def test_threads_change_nothing() -> None:
    tensors, before = inputs(GEOMETRIES[-1]), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(outcome(routing(), tensors, "cpu"))
    finally:
        torch.set_num_threads(before)
    for name, x in found[0].items():
        torch.testing.assert_close(x, found[1][name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e12])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_far_votes_are_finite_and_right(scale: float, shift: float) -> None:
    """Where the spread cancels, too. Beside larger votes the reference counts the prior for more than it is."""
    tensors = inputs(GEOMETRIES[2])
    pose = tensors["pose"]
    assert pose is not None
    tensors["pose"] = scale * (pose + shift)
    found, wanted = (routing(stride=2, n_iters=2)(b, double(tensors)) for b in ("cpu", "reference"))
    if scale < 1e5:
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9 * float(y.abs().max()))
    assert all(bool(x.isfinite().all()) for x in outcome(routing(stride=2), tensors, "cpu").values())


@limits(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 19),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 3),
    st.integers(0, 2**31),
)
def test_any_sizes(
    n: int,
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    n_out: int,
    stride: tuple[int, int],
    n_iters: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    kernel = min(kernel[0], shape[1]), min(kernel[1], shape[2])
    function, tensors = routing(stride=stride, n_iters=n_iters), inputs((n, shape, kernel, n_out, stride))
    assert_paired(function, tensors, "cpu")
    # In float64 a small mistake is not hidden by rounding.
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for name, wanted in exact.items():
        assert distance(ours[name], wanted) <= 1e-9 * (1 + largest(wanted)), name


@pytest.mark.parametrize("prior", [1.0, 1e-5])
@pytest.mark.parametrize(("first", "linear"), [(True, False), (False, False), (False, True)])
def test_gradients_of_the_moments_are_those_of_differences(first: bool, linear: bool, prior: float) -> None:
    torch.manual_seed(0)
    pose, a, weight = torch.randn(1, 2, 3, 3, 4, 4), torch.rand(1, 2, 3, 3), torch.randn(2, 2, 2, 3, 4, 4) / 2
    shares = torch.randn(1, 4, 16, 3), torch.rand(1, 4, 16, 3), torch.randn(1, 4, 3)
    tensors = [x.double().requires_grad_() for x in (pose, a, weight, *(() if first else shares))]

    def function(pose: Tensor, a: Tensor, weight: Tensor, *shares: Tensor) -> tuple[Tensor, ...]:
        known = Shares(*shares) if shares else None
        found, coupling = moments(
            pose, a, weight, None, (1, 1), known, not first, prior=prior, linear=linear, backend="cpu"
        )
        if linear:
            return found.mean, found.mass, coupling
        return (*found,) if first else (*found, coupling)

    assert torch.autograd.gradcheck(function, tensors)


def test_the_sum_of_digammas_is_as_printed() -> None:
    kappa = 1 + torch.tensor([0.0, 1e-6, 0.3, 1.0, 7.5, 300.0], dtype=torch.float64)
    printed = sum(torch.digamma((17 + (kappa - 1) - d) / 2) for d in range(16)) + 16 * torch.tensor(2.0).double().log()
    torch.testing.assert_close(_sum_of_digammas(kappa, torch.digamma(kappa + 1)), printed, rtol=1e-13, atol=1e-13)


def test_what_compiled_code_is_not_for() -> None:
    pose, a, weight, beta = torch.randn(2, 5, 3, 3), torch.rand(2, 5), torch.randn(5, 3, 3, 3), torch.zeros(3)
    variational_bayes_routing(pose, a, weight, beta, beta)
    with pytest.raises(ValueError, match="backend='cpu' wants 4×4 matrices, got poses"):
        variational_bayes_routing(pose, a, weight, beta, beta, backend="cpu")
    pose, weight = torch.randn(2, 5, 4, 4), torch.randn(5, 3, 4, 4)
    offset = torch.zeros(5, 4, 4, requires_grad=True)
    variational_bayes_routing(pose, a, weight, beta, beta, offset=offset).pose.sum().backward()
    assert offset.grad is not None
    with pytest.raises(ValueError, match="backend='cpu' gives no gradient of offset"):
        variational_bayes_routing(pose, a, weight, beta, beta, offset=offset, backend="cpu")
    with pytest.raises(ValueError, match="backend must be one of auto, reference, cpu, triton; got 'fast'"):
        variational_bayes_routing(pose, a, weight, beta, beta, backend="fast")
    assert which_backend("variational_bayes", "auto", pose) == "cpu"


@pytest.mark.parametrize(("side", "calls"), [(4, 3), (3, 0)])
def test_auto_takes_compiled_code_where_there_is_some(side: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(vote_moments, "_call", lambda name, *_: called.append(name))
    pose, weight = torch.randn(2, 5, side, side), torch.randn(5, 3, side, side)
    variational_bayes_routing(pose, torch.rand(2, 5), weight, torch.zeros(3), torch.zeros(3))
    assert called == ["moments"] * calls


def test_second_derivatives_are_refused() -> None:
    pose, weight = torch.randn(2, 5, 4, 4, requires_grad=True), torch.randn(5, 3, 4, 4)
    routed = variational_bayes_routing(pose, torch.rand(2, 5), weight, torch.zeros(3), torch.zeros(3), backend="cpu")
    (gradient,) = torch.autograd.grad(routed.pose.square().sum(), pose, create_graph=True)
    with pytest.raises(NotImplementedError, match="backend='cpu' has no second derivative"):
        torch.autograd.grad(gradient.sum(), pose)
