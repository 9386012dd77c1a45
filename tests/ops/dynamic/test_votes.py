"""Compiled routing of given votes against the reference, by the pairing rule, and the loop of the printed procedure."""

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
from tests.ops.dynamic import test_over_map
from tests.pairing import Inputs, assert_paired, distance, double, largest, outcome
from torchcaps.layers import ConvVoteCaps, DynamicRouting
from torchcaps.ops import Capsules, dynamic_routing_3d, locally_constrained_routing, which_backend
from torchcaps.ops.dynamic import votes as compiled

pytestmark = needs_cpu

ROUTINGS = {"place": locally_constrained_routing, "map": dynamic_routing_3d}
every_routing = pytest.mark.parametrize("compete", ROUTINGS)
#: B, T, J, d_out, H, W: fewer places than lanes, and more; one of all; many upper types; no image; no lower type.
SIZES = [(2, 3, 2, 5, 2, 3), (3, 4, 3, 4, 5, 9), (1, 1, 1, 1, 1, 1), (2, 2, 19, 3, 4, 4), (0, 2, 3, 4, 2, 2)]
SIZES += [(2, 0, 3, 4, 2, 2)]


def routing(compete: str, **options: Any) -> Any:
    def function(backend: str, tensors: Inputs) -> Sequence[Tensor]:
        routed = ROUTINGS[compete](**tensors, **options, backend=backend)  # type: ignore[arg-type]
        return [routed.pose, routed.activation]

    return function


def inputs(sizes: tuple[int, ...], *, bias: bool, dtype: torch.dtype = torch.float32) -> Inputs:
    made = {"votes": torch.randn(sizes).to(dtype), "bias": torch.randn(sizes[2:4]).to(dtype) if bias else None}
    return {name: x for name, x in made.items() if x is not None}


@every_routing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, ...], bias: bool, compete: str) -> None:
    assert_paired(routing(compete), inputs(sizes, bias=bias), "cpu")


@every_routing
@pytest.mark.parametrize("n_iters", [1, 2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"backprop": "last"}, {"leaky": True}], ids=str)
def test_options(options: dict[str, Any], n_iters: int, compete: str) -> None:
    if compete == "map":
        options = {name: value for name, value in options.items() if name != "leaky"}
    assert_paired(routing(compete, n_iters=n_iters, **options), inputs((2, 4, 3, 5, 3, 6), bias=True), "cpu")


@every_routing
def test_bfloat16(compete: str) -> None:
    assert_paired(routing(compete), inputs((2, 4, 3, 5, 3, 6), bias=True, dtype=torch.bfloat16), "cpu")


@every_routing
@pytest.mark.parametrize("scale", [0.0, 1e-25, 1e15])
def test_far_votes_are_finite_and_right(scale: float, compete: str) -> None:
    """The reference and the kernel agree in float64; in float32 nothing overflows."""
    tensors = {name: scale * x for name, x in inputs((2, 4, 3, 5, 3, 6), bias=True).items() if x is not None}
    found, wanted = (routing(compete, n_iters=2)(backend, double(tensors)) for backend in ("cpu", "reference"))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-30)
    assert all(bool(x.isfinite().all()) for x in outcome(routing(compete), tensors, "cpu").values())


@limits(max_examples=30, deadline=None)
@given(
    st.tuples(*(st.integers(1, most) for most in (3, 5, 5, 6, 6, 6))),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from(["full", "last"]),
    st.sampled_from(list(ROUTINGS)),
    st.integers(0, 2**31),
)
def test_any_sizes(sizes: tuple[int, ...], bias: bool, n_iters: int, backprop: str, compete: str, seed: int) -> None:
    torch.manual_seed(seed)
    function, tensors = routing(compete, n_iters=n_iters, backprop=backprop), inputs(sizes, bias=bias)
    assert_paired(function, tensors, "cpu")
    # In float64 a small mistake is not hidden by rounding.
    exact, ours = outcome(function, double(tensors), "reference"), outcome(function, double(tensors), "cpu")
    for name, wanted in exact.items():
        assert distance(ours[name], wanted) <= 1e-9 * (1 + largest(wanted)), name


@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_the_printed_procedure(n_iters: int) -> None:
    t = test_over_map
    torch.manual_seed(0)
    votes, bias = torch.randn(t.B, t.T, t.J, t.D, t.H, t.W).double(), torch.randn(t.J, t.D).double()
    got = dynamic_routing_3d(votes, n_iters=n_iters, bias=bias, backend="cpu")
    for image in range(t.B):
        wanted = t.loop(votes[image], bias, n_iters)[0]
        torch.testing.assert_close(got.pose[image], wanted, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(got.activation[image], wanted.norm(dim=-1), rtol=1e-10, atol=1e-12)


@every_routing
def test_threads_and_strides_change_nothing(compete: str) -> None:
    tensors, before = inputs((5, 3, 4, 6, 5, 9), bias=True), torch.get_num_threads()
    plain = outcome(routing(compete), tensors, "cpu")
    strided = {name: x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in tensors.items() if x is not None}
    try:
        torch.set_num_threads(3)
        for others in (tensors, strided):
            for name, x in outcome(routing(compete), others, "cpu").items():  # type: ignore[arg-type]
                torch.testing.assert_close(x, plain[name], rtol=0, atol=0, msg=name)
    finally:
        torch.set_num_threads(before)


@every_routing
def test_what_compiled_code_is_not_for(compete: str) -> None:
    votes = torch.randn(2, 3, 2, 4, 3, 3)
    with pytest.raises(ValueError, match="backend='cpu' gives no couplings of votes: take 'auto'"):
        ROUTINGS[compete](votes, backend="cpu", return_coupling=True)
    with pytest.raises(ValueError, match="backend must be one of auto, reference, cpu; got 'triton'"):
        ROUTINGS[compete](votes, backend="triton")
    assert ROUTINGS[compete](votes, return_coupling=True).coupling is not None
    assert which_backend("dynamic_votes", "auto", votes) == "cpu"
    votes.requires_grad_()
    (gradient,) = torch.autograd.grad(ROUTINGS[compete](votes).pose.square().sum(), votes, create_graph=True)
    with pytest.raises(NotImplementedError, match="backend='cpu' has no second derivative"):
        torch.autograd.grad(gradient.sum(), votes)


@pytest.mark.parametrize(("backend", "calls"), [("auto", 1), ("cpu", 1), ("reference", 0)])
def test_a_layer_takes_what_its_routing_names(backend: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(compiled, "_call", lambda name, *_: called.append(name))
    layer = ConvVoteCaps(3, 2, 4, 5, 3, routing=DynamicRouting(backend=backend))
    lower = Capsules(torch.randn(2, 3, 5, 5, 4), torch.rand(2, 3, 5, 5))
    layer(lower)
    assert called == ["forward"] * calls
    assert layer(lower, return_coupling=True).coupling is not None
