"""Compiled EM routing as an operator of torch: graphs, export, autocast, and what autograd keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.backends import needs_cpu
from tests.ops.em.test_pairing import GEOMETRIES, POSES, SETTINGS, every_pose, inputs, routing
from tests.pairing import Inputs, outcome
from torchcaps.layers import ClassCaps, ConvCaps, DenseCaps, EMRouting
from torchcaps.ops import Capsules, conv_em_routing, em_routing
from torchcaps.ops.em.cpu import backward_op, forward_op

pytestmark = needs_cpu

#: Settings of the operator itself, and λ of three iterations.
NUMBERS = [0.1, 0.01, 1e-7, 1.0, 1.0, 1.0, 1.0, 0.1, 0.2, 0.3]


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("return_coupling", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@every_pose
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # read by opcheck of torch 2.14
def test_torch_accepts_the_operators(poses: str, positions: bool, last: bool, return_coupling: bool) -> None:
    given = inputs((2, (2, 5, 4), (3, 2), 3, (2, 1)), torch.float64, poses)
    leaves = [x.requires_grad_() for x in given.values() if x is not None]
    offset = torch.randn(2, 3, 2, *POSES[poses][0], dtype=torch.float64) if positions else None
    rest = [2, 1], positions, True, last, NUMBERS
    torch.library.opcheck(forward_op, (*leaves, offset, *rest, return_coupling))
    mu, a, coupling, states = (x.detach() for x in forward_op(*leaves, offset, *rest, return_coupling))
    plain = [x.detach() for x in leaves]
    torch.library.opcheck(backward_op, (mu, a, coupling if return_coupling else None, *plain, offset, states, *rest))


@pytest.mark.parametrize("options", SETTINGS[1:3], ids=lambda x: "-".join(map(str, x.values())))
def test_one_graph(options: dict[str, Any]) -> None:
    tensors = inputs(GEOMETRIES[2])
    plain = routing(stride=2, return_coupling=True, **options)

    def function(backend: str, given: Inputs) -> Sequence[Tensor]:
        return torch.compile(plain, fullgraph=True, backend="aot_eager")(backend, given)

    assert_same(outcome(function, tensors, "cpu"), outcome(plain, tensors, "cpu"))


def test_one_graph_for_every_batch() -> None:
    """A batch of another size, with symbolic sizes, finds what it finds without a graph."""
    plain = routing(stride=2, normalize=True)
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager", dynamic=True)
    for n_images in (2, 3, 5):
        tensors = inputs((n_images, *GEOMETRIES[2][1:]))
        assert_same(outcome(compiled, tensors, "cpu"), outcome(plain, tensors, "cpu"))


class Stack(nn.Module):
    """Both kinds of layer, from tensors to tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = ConvCaps(2, 3, 16, 16, 3, stride=2, routing=EMRouting(backend="cpu", normalize=True))
        self.dense = DenseCaps(3 * 2 * 1, 4, 16, 16, routing=EMRouting(backend="cpu"))

    def forward(self, pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        found = self.dense(self.conv(Capsules(pose, activation)))
        return found.pose, found.activation


class Classes(nn.Module):
    """Class capsules with coordinates, of tensors alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = ClassCaps(2, 3, 16, 16, coordinates="column", routing=EMRouting(2))

    def forward(self, pose: Tensor, activation: Tensor) -> Tensor:
        return self.layer(Capsules(pose, activation)).activation


@pytest.mark.parametrize("strict", [True, False])
def test_export_of_maps_of_any_size(strict: bool) -> None:
    def example(*size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(1, 2, *size, 4, 4), torch.rand(1, 2, *size)

    model, other = Classes().eval(), example(5, 6)
    size = {axis + 2: torch.export.Dim(name, min=2, max=9) for axis, name in enumerate(("height", "width"))}
    program = torch.export.export(model, example(3, 4), dynamic_shapes=(size, size), strict=strict)
    torch.testing.assert_close(program.module()(*other), model(*other))


def test_export() -> None:
    stack, batch = Stack().eval(), torch.export.Dim("batch", min=2, max=100)
    example = torch.randn(3, 2, 6, 4, 4, 4), torch.rand(3, 2, 6, 4)
    program = torch.export.export(stack, example, dynamic_shapes=({0: batch}, {0: batch}))
    assert program.graph_module.print_readable(print_output=False).count("em_routing_cpu") >= 2
    other = torch.randn(7, 2, 6, 4, 4, 4), torch.rand(7, 2, 6, 4)
    for found, wanted in zip(program.module()(*other), stack(*other), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_autocast_does_not_narrow_the_routing(dtype: torch.dtype) -> None:
    tensors = inputs(GEOMETRIES[2], dtype)
    plain = routing(stride=2)

    def function(backend: str, given: Inputs) -> Sequence[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(backend, given)

    found = outcome(function, tensors, "cpu")
    assert {x.dtype for x in found.values()} == {dtype}
    assert_same(found, outcome(plain, tensors, "cpu"))


def test_autocast_within_a_graph() -> None:
    """As recipes train: layers under autocast, compiled; and poses of lower precision than the weights."""
    stack = Stack()
    compiled = torch.compile(stack, backend="aot_eager", fullgraph=True)
    example = torch.randn(3, 2, 6, 4, 4, 4).bfloat16(), torch.rand(3, 2, 6, 4).bfloat16()

    def gradients(module: Any) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            pose, activation = module(*example)
        assert pose.dtype == torch.float32
        return list(torch.autograd.grad(pose.sum() + activation.sum(), list(stack.parameters())))

    for found, wanted in zip(gradients(compiled), gradients(stack), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_no_second_derivative() -> None:
    tensors = {k: x for k, x in inputs(GEOMETRIES[0]).items() if x is not None}
    pose = tensors["pose"].requires_grad_()
    found = conv_em_routing(**tensors, backend="cpu").pose.sum()
    (gradient,) = torch.autograd.grad(found, pose, create_graph=True)
    with pytest.raises(NotImplementedError, match="backend='cpu' has no second derivative: take backend='reference'"):
        gradient.sum().backward()


def test_what_autograd_keeps_is_small() -> None:
    """Votes are 16·I·J numbers an image; of each parent and iteration 34 are kept, and 16 besides."""
    leaves = torch.randn(8, 300, 4, 4), torch.rand(8, 300), torch.randn(300, 10, 4, 4), torch.zeros(10), torch.zeros(10)
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        em_routing(*(x.requires_grad_() for x in leaves), backend="cpu")
    assert sum(x.numel() for x in kept) <= sum(x.numel() for x in leaves) + (3 * 34 + 16) * 8 * 10


@needs_cpu
@pytest.mark.parametrize("part", ["pose", "activation"])
def test_activation_checkpointing_with_a_loss_of_one_output(part: str) -> None:
    layer, pose, activation = DenseCaps(6, 3, 16, 16, routing="em"), torch.randn(2, 6, 4, 4), torch.rand(2, 6)

    def one(pose: Tensor) -> Tensor:
        return getattr(layer(Capsules(pose, activation)), part)

    gradients = []
    for run in (one, lambda pose: checkpoint(one, pose, use_reentrant=False)):
        leaf = pose.clone().requires_grad_()
        run(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def test_no_gradient_for_some() -> None:
    """A frozen layer, or an image that needs none: what is not asked for does not disturb the rest."""
    tensors = {k: x for k, x in inputs(GEOMETRIES[2]).items() if x is not None}
    every = outcome(routing(stride=2), tensors, "cpu")  # type: ignore[arg-type]
    for name, x in tensors.items():
        alone = tensors | {name: x.detach().requires_grad_()}
        found = [y for y in conv_em_routing(**alone, stride=2, backend="cpu") if y is not None]  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(y.shape, generator=generator).bfloat16().to(y.dtype) for y in found]
        (gradient,) = torch.autograd.grad(found, alone[name], weights)
        torch.testing.assert_close(gradient, every[f"gradient of {name}"], rtol=0, atol=0)
