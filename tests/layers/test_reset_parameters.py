"""Initial values, drawn anew."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from torchcaps.layers import (
    ClassCaps,
    ConvCaps,
    Decoder,
    DenseCaps,
    DynamicRouting,
    EMRouting,
    MatrixPrimaryCaps,
    PrimaryCaps,
)
from torchcaps.models import build
from torchcaps.models.windows import Local

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "primary": lambda: PrimaryCaps(3, 2, 4, 5, bias_init=0.1, scale=0.5),
    "matrix primary": lambda: MatrixPrimaryCaps(3, 2, pose_std=0.4, activation_bias=-1.0),
    "normalized matrix primary": lambda: MatrixPrimaryCaps(3, 2, activation_std=0.4, normalize=True),
    "dense": lambda: DenseCaps(6, 3, 4, 5, routing=DynamicRouting(learned_logits=True, bias_init=0.2)),
    "convolution": lambda: ConvCaps(2, 3, 16, 16, 3, routing=EMRouting(beta_a_init=0.3)),
    "classes": lambda: ClassCaps(2, 3, 16, 16, routing=EMRouting(beta_u_init=0.7)),
    "decoder": lambda: Decoder(3, 4, (1, 5, 5), (6,)),
    "local": lambda: Local(3, 4, 5),
}


@pytest.mark.parametrize("make", [make for name, make in LAYERS.items() if name != "decoder"])
def test_a_reset_layer_is_a_new_one(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    new = make().state_dict()
    torch.manual_seed(4)
    layer = make()
    assert any((value != new[name]).any() for name, value in layer.state_dict().items())
    with torch.no_grad():
        for value in layer.state_dict().values():
            value.fill_(torch.nan if value.is_floating_point() else -1)
    torch.manual_seed(3)
    layer.reset_parameters()  # type: ignore[operator]
    torch.testing.assert_close(layer.state_dict(), new, rtol=0, atol=0)


def test_a_reset_decoder_starts_as_a_new_one() -> None:
    """Not with the same numbers: in between torch.nn.Linear draws its own."""
    decoder = Decoder(10, 16, (1, 28, 28))
    first = [layer.weight.std() for layer in decoder.layers]
    nn.init.ones_(decoder.layers[0].weight)
    nn.init.ones_(decoder.layers[0].bias)
    decoder.reset_parameters()
    torch.testing.assert_close([layer.weight.std() for layer in decoder.layers], first, rtol=0.02, atol=0)
    assert not decoder.layers[0].bias.any()


def test_what_a_weight_is_made_of_is_not_drawn() -> None:
    """Of a layer with weight normalization, magnitude and direction are not the weight's numbers."""
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(Local(3, 40, 50))
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]) == (name != "bias"), name


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_layer_that_was_made_without_memory_can_be_given_some(make: Callable[[], nn.Module]) -> None:
    """As trainers of large models do: parameters on the meta device, then memory, then values."""
    with torch.device("meta"):
        layer = make()
    layer.to_empty(device="cpu")
    for value in layer.state_dict().values():
        value.fill_(torch.nan if value.is_floating_point() else -1)
    layer.reset_parameters()  # type: ignore[operator]
    assert all(value.isfinite().all() for value in layer.state_dict().values())


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_are_copied_and_pickled(make: Callable[[], nn.Module]) -> None:
    layer = make()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        other.reset_parameters()
        assert other.state_dict().keys() == layer.state_dict().keys()


def test_a_network_with_a_parametrised_layer_is_reset() -> None:
    """Its other layers are; what is computed from other parameters stays, as in torch's own layers."""
    model = build("matrix_capsnet_small", (2, 28, 28), 5, initial="released")
    classes = model.get_submodule("classes")
    nn.utils.parametrizations.weight_norm(classes, "weight")
    weight, beta = model.get_submodule("hidden.0").get_parameter("weight"), classes.get_parameter("beta_u")
    before = weight.detach().clone()
    with torch.no_grad():
        beta.fill_(torch.nan)
    model.reset_parameters()  # type: ignore[operator]
    assert beta.eq(2).all() and not weight.eq(before).any()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """The first of two processes, of which the second is made up."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support:UserWarning")
@pytest.mark.parametrize(
    "make",
    [*LAYERS.values(), lambda: build("matrix_capsnet_small", (2, 28, 28), 5, initial="released")],
    ids=[*LAYERS, "released matrix capsules"],
)
def test_sharded_weights_get_values(make: Callable[[], nn.Module], mesh: DeviceMesh) -> None:
    """A part that is cut out of a sharded weight is a copy: what is filled in there alone is lost."""
    top = make()
    for module in top.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            sharded = distribute_tensor(torch.full_like(value, torch.nan), mesh, [Shard(0)])
            module.register_parameter(name, nn.Parameter(sharded))
    top.reset_parameters()  # type: ignore[operator]
    for value in top.parameters():
        assert isinstance(value, DTensor) and value.to_local().isfinite().all()
