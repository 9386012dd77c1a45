"""Compiled routing as an operator of torch: graphs, export, autocast, and which implementation runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.backends import needs_cpu
from torchcaps.layers import DenseCaps, DynamicRouting
from torchcaps.ops import dynamic_routing, which_backend
from torchcaps.ops.dynamic.cpu import backward_op, forward_op

pytestmark = needs_cpu


def case(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = ((3, 9, 5), (9, 4, 5, 6), (4, 6), (9, 4))
    u, weight, bias, initial_logits = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return u, weight, bias, initial_logits


@pytest.mark.parametrize("return_coupling", [False, True])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # read by opcheck of torch 2.14
def test_torch_accepts_the_operators(extras: bool, full: bool, return_coupling: bool) -> None:
    u, weight, bias, initial_logits = case(torch.float64)
    tensors = (u, weight, bias, initial_logits) if extras else (u, weight, None, None)
    torch.library.opcheck(forward_op, (*tensors, 3, extras, full, return_coupling))
    pose, activation, coupling, states = forward_op(*tensors, 3, extras, full, return_coupling)
    upstream = (pose.detach(), activation.detach(), coupling.detach() if return_coupling else None)
    plain = [None if x is None else x.detach() for x in (u, weight, initial_logits if extras else None, states)]
    torch.library.opcheck(backward_op, (*upstream, *plain, extras, full))


def test_one_graph() -> None:
    tensors = case()

    def function(u: Tensor, weight: Tensor, bias: Tensor, initial_logits: Tensor) -> tuple[Tensor, ...]:
        routed = dynamic_routing(
            u, weight, bias=bias, initial_logits=initial_logits, backend="cpu", return_coupling=True
        )
        assert routed.coupling is not None
        return routed.pose, routed.activation, routed.coupling

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for a, b in zip(compiled(*tensors), function(*tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    one, two = (torch.autograd.grad([x.sum() for x in f(*tensors)], tensors) for f in (compiled, function))
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_export() -> None:
    layer = DenseCaps(9, 4, 5, 6, routing=DynamicRouting(backend="cpu")).eval()
    batch = torch.export.Dim("batch", min=2, max=100)
    program = torch.export.export(layer, (torch.randn(3, 9, 5),), dynamic_shapes=({0: batch},))
    assert "dynamic_routing_cpu" in program.graph_module.print_readable(print_output=False)
    x = torch.randn(7, 9, 5)
    torch.testing.assert_close(program.module()(x).pose, layer(x).pose, rtol=0, atol=0)
    plain = torch.export.export(DenseCaps(9, 4, 5, 6, routing=DynamicRouting(backend="reference")).eval(), (x,))
    assert "torchcaps." not in plain.graph_module.print_readable(print_output=False)  # it runs without this library


def test_no_second_derivative() -> None:
    u, weight, _, _ = case()
    (gradient,) = torch.autograd.grad(dynamic_routing(u, weight, backend="cpu").pose.sum(), u, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative: take backend='reference'"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_auto_takes_it_on_the_cpu(dtype: torch.dtype) -> None:
    tensors = torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)
    assert which_backend("dynamic", "auto", *tensors) == which_backend("dynamic", "cpu", *tensors) == "cpu"
    assert which_backend("dynamic", "reference", *tensors) == "reference"


def test_elsewhere() -> None:
    away = torch.zeros(1, device="meta")
    assert which_backend("dynamic", "auto", away) == "reference"
    with pytest.raises(
        ValueError,
        match="routing must be one of dynamic, dynamic_votes, em, em_vectors, variational_bayes; got 'agreement'",
    ):
        which_backend("agreement", "auto", away)
    with pytest.raises(ValueError, match="backend='cpu' wants tensors on the CPU, got some on meta"):
        which_backend("dynamic", "cpu", away)
    for backend in ("auto", "reference", "cpu"):
        with pytest.raises(ValueError, match="all tensors must be on one device, got some on cpu, meta"):
            which_backend("dynamic", backend, away, torch.zeros(1))


def test_what_autograd_keeps_is_small() -> None:
    """Votes are I·J·d_out numbers an image; inputs and sums of an iteration are far less."""
    u, weight = torch.randn(8, 500, 4, requires_grad=True), torch.randn(500, 10, 4, 16, requires_grad=True)
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        dynamic_routing(u, weight, backend="cpu")
    assert sum(x.numel() for x in kept) <= u.numel() + weight.numel() + 3 * 8 * 10 * 16


def test_no_gradient_for_some() -> None:
    """A frozen layer, or an image that needs none: what is not asked for does not disturb the rest."""
    u, weight, _, _ = case()
    both = torch.autograd.grad(dynamic_routing(u, weight, backend="cpu").pose.sum(), (u, weight))
    for k, frozen in enumerate((dynamic_routing(u, weight.detach()), dynamic_routing(u.detach(), weight))):
        (alone,) = torch.autograd.grad(frozen.pose.sum(), (u, weight)[k])
        torch.testing.assert_close(alone, both[k], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_transforms_take_the_reference() -> None:
    """Torch gives a forward derivative of 0 for an operator that has none."""
    u, weight, bias, _ = (x.detach() for x in case())

    def tangent(backend: str) -> Tensor:
        return torch.func.jvp(lambda b: dynamic_routing(u, weight, bias=b, backend=backend).pose, (bias,), (bias,))[1]

    torch.testing.assert_close(tangent("auto"), tangent("reference"), rtol=0, atol=0)
    with pytest.raises(NotImplementedError, match="backend='cpu' knows neither torch.func nor forward derivatives"):
        tangent("cpu")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(bias, bias)
        assert which_backend("dynamic", "auto", u, weight, dual) == "reference"
        assert which_backend("dynamic", "auto", u, weight, bias) == "cpu"
    assert torch.func.grad(lambda x: dynamic_routing(x, weight).pose.sum())(u).any()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_transforms_take_the_reference_when_compiled() -> None:
    u, weight, _, _ = (x.detach() for x in case())

    def tangent(u: Tensor) -> Tensor:
        return torch.func.jvp(lambda x: dynamic_routing(x, weight).pose, (u,), (u,))[1]

    def gradient(u: Tensor) -> Tensor:
        return torch.func.grad(lambda x: dynamic_routing(x, weight).pose.square().sum())(u)

    for function in (tangent, gradient):
        found = torch.compile(function, backend="aot_eager")(u)
        assert found.any()
        torch.testing.assert_close(found, function(u))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(u, u)
        with pytest.raises(NotImplementedError, match="compiled routing has no forward derivative"):
            torch.compile(lambda x: dynamic_routing(x, weight).pose, backend="eager")(dual)
