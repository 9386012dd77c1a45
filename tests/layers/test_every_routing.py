"""What every routing that goes by a name must survive in every layer: compiling, exporting, vmap, saving."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchcaps import Capsules, ClassCaps, ConvCaps, DenseCaps
from torchcaps.layers import ROUTINGS

#: Numbers of a pose that every routing takes: a 4×4 matrix, and as many below as above.
D = 16
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[str], nn.Module]]] = {
    "DenseCaps": ((5,), lambda name: DenseCaps(5, 3, D, D, routing=name)),
    "ConvCaps": ((2, 4, 5), lambda name: ConvCaps(2, 3, D, D, 3, routing=name)),
    "ClassCaps": ((2, 2, 3), lambda name: ClassCaps(2, 3, D, D, routing=name)),
}


@pytest.fixture(params=LAYERS)
def layer_and_lower(request: pytest.FixtureRequest, routing: str) -> tuple[nn.Module, Capsules]:
    torch.manual_seed(0)
    places, make = LAYERS[request.param]
    layer = make(routing).eval()
    for parameter in layer.parameters():
        if not parameter.detach().any():
            nn.init.normal_(parameter, std=0.1)
    return layer, Capsules(torch.randn(2, *places, D), torch.rand(2, *places))


every_routing = pytest.mark.parametrize("routing", ROUTINGS)


@every_routing
def test_compiled_as_one_graph(routing: str, layer_and_lower: tuple[nn.Module, Capsules]) -> None:
    layer, lower = layer_and_lower
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(lower)[:2], layer(lower)[:2])
    torch.compiler.reset()


@every_routing
def test_exported_with_any_number_of_images(routing: str, layer_and_lower: tuple[nn.Module, Capsules]) -> None:
    layer, lower = layer_and_lower
    batch = torch.export.Dim("batch", min=1, max=64)
    dynamic = {"capsules": Capsules({0: batch}, {0: batch}, None)}  # type: ignore[arg-type]
    program = torch.export.export(layer, (lower,), dynamic_shapes=dynamic).module()
    for k in (1, 2):
        few = Capsules(lower.pose[:k], lower.activation[:k])
        torch.testing.assert_close(program(few)[:2], layer(few)[:2])


@every_routing
def test_image_by_image_under_vmap(routing: str, layer_and_lower: tuple[nn.Module, Capsules]) -> None:
    layer, lower = layer_and_lower

    def alone(pose: Tensor, activation: Tensor) -> tuple[Tensor, Tensor]:
        routed = layer(Capsules(pose[None], activation[None]))
        return routed.pose[0], routed.activation[0]

    got = torch.func.vmap(alone)(lower.pose, lower.activation)
    torch.testing.assert_close(got, tuple(layer(lower)[:2]))


@every_routing
def test_what_is_saved_is_the_whole_function(routing: str, layer_and_lower: tuple[nn.Module, Capsules]) -> None:
    layer, lower = layer_and_lower
    torch.manual_seed(1)
    other = LAYERS[type(layer).__name__][1](routing).eval()
    assert not torch.equal(other(lower).pose, layer(lower).pose)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(lower).pose, layer(lower).pose)


#: Votes up to which a routing is finite in float32: EM routing squares what it fits a Gaussian to.
LARGEST = {"em": 1e18}


@every_routing
def test_finite_votes_give_finite_capsules(routing: str, layer_and_lower: tuple[nn.Module, Capsules]) -> None:
    """Up to 1e20, whose squares are beyond all numbers of float32; and finite gradients."""
    layer, lower = layer_and_lower
    largest = LARGEST.get(routing, 1e20)
    for scale in (1e10, largest):
        pose = (scale * lower.pose / lower.pose.abs().max()).requires_grad_()
        routed = layer(Capsules(pose, lower.activation))
        assert bool(routed.pose.isfinite().all()) and bool(routed.activation.isfinite().all())
        # Of poses as large as the votes the sum may end beyond all numbers.
        total = (routed.pose / max(1.0, float(routed.pose.detach().abs().max()))).sum() + routed.activation.sum()
        inputs = pose, *layer.parameters()
        for gradient in torch.autograd.grad(total, inputs, allow_unused=True):
            assert gradient is None or bool(gradient.isfinite().all())
