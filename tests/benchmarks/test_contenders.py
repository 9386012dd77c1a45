"""What is compared computes the same: every contender is held to the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import contenders
from benchmarks.check import Disagreement
from benchmarks.compiled import compiled, nothing_compiled
from benchmarks.conditions import Conditions
from benchmarks.contenders import take, torchs_convolutions, vectors, why_no_triton
from benchmarks.floor import conv_equal_votes
from benchmarks.routed import Routed
from benchmarks.textbook import FORMULATIONS
from benchmarks.textbook_em import stored_votes
from benchmarks.textbook_later import AUTHORS
from benchmarks.work import Net
from tests.backends import needs_interpreter
from torchcaps.layers.base import RoutedLayer
from torchcaps.models import build
from torchcaps.ops import Capsules, conv2d, conv_em_routing, dynamic_routing


def assert_close(got: Sequence[Tensor], exact: Sequence[Tensor], within: float = 1e-9) -> None:
    assert len(got) == len(exact) > 0
    for x, wanted in zip(got, exact, strict=True):
        assert x.shape == wanted.shape
        assert (x - wanted).detach().norm() <= within * max(1.0, wanted.detach().norm())


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("n_iters", [1, 2, 3])
@pytest.mark.parametrize("name", ["ours", "floor", pytest.param("triton", marks=needs_interpreter), *FORMULATIONS])
def test_dynamic_routing(name: str, n_iters: int) -> None:
    inputs = random(7, 13, 5), random(13, 3, 5, 4), random(3, 4)
    u, weight, bias = inputs
    passes = 1 if name == "floor" else n_iters  # equal weights are those of the first iteration
    exact = dynamic_routing(u, weight, bias=bias, n_iters=passes, backend="reference").pose
    got = vectors(name)(u, weight, bias, n_iters)
    d_pose = torch.randn_like(exact)
    gradients = torch.autograd.grad(exact, inputs, d_pose)
    assert_close([got, *torch.autograd.grad(got, inputs, d_pose)], [exact, *gradients])


def test_an_unknown_contender() -> None:
    with pytest.raises(ValueError, match="contender must be one of ours, .*; got 'fastest'"):
        vectors("fastest")


@pytest.mark.parametrize("changes", [{}, {"compete": "all"}, {"start": "parents"}, {"normalize": True}])
@pytest.mark.parametrize("settings", ["paper", "released"])
@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (6, 3, 1), (4, 4, 1)])
def test_em_routing_with_stored_votes(
    size: int, kernel: int, stride: int, settings: str, changes: dict[str, object]
) -> None:
    inputs = (
        random(2, 3, size, size, 4, 4),
        torch.rand(2, 3, size, size, dtype=torch.float64).requires_grad_(),
        random(3, kernel, kernel, 5, 4, 4),
        random(5),
        random(5),
    )
    offset = random(3, kernel, kernel, 4, 4).detach()
    options = {"stride": stride, "settings": settings, "offset": offset, **changes}
    found = []
    for route in (stored_votes, conv_em_routing):
        made: Capsules = route(*inputs, **options)
        loss = made.pose.square().sum() + (made.activation * torch.arange(5.0)[:, None, None]).sum()
        found.append([made.pose, made.activation, *torch.autograd.grad(loss, inputs)])
    assert_close(found[0], found[1], within=1e-6)  # variances as differences lose digits


def test_the_floor_of_em_routing_is_one_iteration() -> None:
    pose, weight = random(2, 3, 7, 7, 4, 4), random(3, 3, 3, 5, 4, 4)
    activation, offset = torch.rand(2, 3, 7, 7, dtype=torch.float64), random(3, 3, 3, 4, 4)
    betas = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    options = {"stride": 2, "offset": offset}
    exact = conv_em_routing(
        pose, activation, weight, *betas, n_iters=1, settings="released", damping=0.0, backend="reference", **options
    )
    got = conv_equal_votes(pose, activation, weight, *betas, **options)
    assert_close([got.pose], [exact.pose], within=1e-6)  # what is added to the mass differs
    assert got.activation.shape == exact.activation.shape


@pytest.mark.parametrize(
    ("model", "contender"),
    [("capsnet_small", name) for name in ("floor", *FORMULATIONS)]
    + [("matrix_capsnet_small", name) for name in ("floor", "stored_votes")],
)
def test_models_take_a_contender(model: str, contender: str) -> None:
    shape = (1, 28, 28) if model == "capsnet_small" else (2, 32, 32)
    made = build(model, shape, 5).double()
    images = torch.rand(2, *shape, dtype=torch.float64)
    exact = made(images).scores
    names = [name for name, _ in made.named_parameters() if not name.startswith("decoder")]
    take(made, contender)
    got = made(images).scores
    got.sum().backward()
    assert names == [name for name, p in made.named_parameters() if p.grad is not None]
    same = torch.allclose(got, exact, rtol=1e-5)
    assert same != (contender == "floor")


def test_a_model_refuses_what_is_no_contender() -> None:
    with pytest.raises(ValueError, match="contender of em routing must be one of floor, stored_votes; got 'tiled'"):
        take(build("matrix_capsnet_small", (2, 32, 32), 5), "tiled")


def test_torchs_convolutions_are_torchs() -> None:
    x, weight = torch.randn(64, 64, 20, 20), torch.randn(128, 64, 9, 9, requires_grad=True)
    with torchs_convolutions():
        torch.testing.assert_close(conv2d(x, weight, stride=2), F.conv2d(x, weight, stride=2), rtol=0, atol=0)
    assert (conv2d(x, weight, stride=2) != F.conv2d(x, weight, stride=2)).any()


def test_a_floor_that_iterates_is_found_out_in_bfloat16_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding is allowed for by what it does to the floor's own algorithm, not to another."""
    works = {"floor, bf16": Net(contender="floor", precision="bf16", small=True)}
    conditions = Conditions()
    assert conditions.checked(works, batch=4)["floor, bf16"] > 0
    monkeypatch.setitem(contenders.DYNAMIC, "floor", contenders.DYNAMIC["tiled"])
    with pytest.raises(Disagreement, match="floor, bf16: .* must be within"):
        conditions.checked(works, batch=4)


def test_gpu_kernels_are_left_out_with_the_reason() -> None:
    for routing in ("dynamic", "em"):
        reason = why_no_triton(routing, torch.device("cpu"))
        assert reason is not None and ("triton" in reason or "interpreter" in reason)
        (note,) = Conditions().left_out(routing)
        assert reason in note and Conditions(compile=True).others(routing) == ("compiled",)


@pytest.mark.parametrize(
    ("model", "contender", "backend"),
    [("capsnet_small", "triton", "triton"), ("matrix_capsnet_small", "reference", "reference")],
)
def test_models_take_an_implementation(model: str, contender: str, backend: str) -> None:
    made = build(model, (1, 28, 28), 5)
    take(made, contender)
    layers = [layer for layer in made.modules() if isinstance(layer, RoutedLayer)]
    assert layers and {layer.routing.backend for layer in layers} == {backend}


def test_what_is_compiled_is_whole_and_for_each_size() -> None:
    sizes: list[tuple[int, ...]] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> torch.fx.GraphModule:
        sizes.append(tuple(inputs[0].shape))
        return graph

    twice = compiled(lambda x: 2 * x, backend)
    for n in range(2, 14):  # more than torch would take by itself
        twice(torch.ones(n))
    assert sizes == [(n,) for n in range(2, 14)]
    with nothing_compiled():
        twice(torch.ones(3))
        with pytest.raises(RuntimeError, match="recompile"):
            twice(torch.ones(20))

    def broken(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return 2 * x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(broken, backend)(torch.ones(2))


@pytest.mark.parametrize(("name", "shared"), [*((name, False) for name in AUTHORS), ("heinsen_matrix", True)])
def test_later_routings_as_their_authors_compute_them(name: str, shared: bool) -> None:
    work = Routed(name, batch=3, n_in=7, n_out=4, d_in=16, shared=shared)
    ours, theirs = (
        replace(work, contender=each).prepare(torch.device("cpu"), torch.float64)() for each in ("ours", "authors")
    )
    assert ours.keys() == theirs.keys() >= {"pose", "activation", "gradient of pose"}
    assert_close(list(theirs.values()), list(ours.values()))
