"""Layers of dynamic routing whose lower capsules share their matrices: sets of any length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchcaps import ClassCaps, ConvCaps, DenseCaps, DynamicRouting, build
from torchcaps.ops import dynamic_routing

J, D_IN, D_OUT = 4, 5, 6
SHARED: dict[str, DynamicRouting] = {
    "shared": DynamicRouting(shared=True),
    "learned": DynamicRouting(shared=True, learned_logits=True, leaky=True),
    "drawn": DynamicRouting(shared=True, drawn_logits=20),
    "pairs": DynamicRouting(shared="pairs", drawn_logits=20, bias=False),
}
every_one = pytest.mark.parametrize("name", SHARED)


def made(name: str) -> DenseCaps:
    layer = DenseCaps(None, J, D_IN, D_OUT, routing=SHARED[name], n_places=8).double()
    for parameter in layer.parameters():
        if not parameter.detach().any():
            nn.init.normal_(parameter)
    return layer


def sets(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, D_IN, dtype=torch.float64)


@every_one
def test_padding_changes_nothing(name: str) -> None:
    layer, few = made(name), sets(2, 6)
    mask = (torch.arange(9) < 6).expand(2, -1)
    padded = layer(torch.cat((few, sets(2, 3) * torch.nan), dim=1), mask=mask, return_coupling=True)
    wanted = layer(few, return_coupling=True)
    torch.testing.assert_close(padded[:2], wanted[:2])
    torch.testing.assert_close(padded.coupling[:, :6], wanted.coupling)
    assert not padded.coupling[:, 6:].any()


@pytest.mark.parametrize("name", ["shared", "learned"])
def test_order_does_not_matter(name: str) -> None:
    layer, x = made(name), sets(2, 9)
    torch.testing.assert_close(layer(x[:, torch.randperm(9)]), layer(x))


def test_with_drawn_logits_the_place_counts_and_moves_along() -> None:
    layer, x, order = made("pairs"), sets(2, 9), torch.tensor([8, 0, 1, 2, 3, 4, 5, 6, 7])
    assert float((layer(x[:, order]).pose - layer(x).pose).detach().abs().max()) > 1e-3
    moved = layer(x[:, order], initial_logits=layer.initial_logits[order])
    torch.testing.assert_close(moved, layer(x))


def test_logits_of_a_call_take_the_place_of_the_layers() -> None:
    """The same ones, drawn by a generator, give the same capsules."""
    x, mask = sets(2, 9), torch.rand(2, 9) < 0.7
    for name in SHARED:
        layer = made(name)
        first, again = (
            layer(
                x, mask=mask, initial_logits=torch.randn(2, 9, J, generator=torch.Generator().manual_seed(3)).double()
            )
            for _ in range(2)
        )
        torch.testing.assert_close(first, again, rtol=0, atol=0)
        assert (
            float((first.pose - layer(x, mask=mask, initial_logits=torch.zeros(9, J)).pose).detach().abs().max()) > 1e-4
        )


def test_shared_matrices_are_those_of_every_lower_capsule() -> None:
    layer, x = made("shared"), sets(2, 9)
    wanted = dynamic_routing(x * layer.scale, layer.weight.expand(9, -1, -1, -1), bias=layer.bias)
    torch.testing.assert_close(layer(x), wanted)


def test_what_each_keeps() -> None:
    shapes = {name: {k: tuple(v.shape) for k, v in made(name).state_dict().items() if v.dim() > 1} for name in SHARED}
    assert shapes == {
        "shared": {"weight": (1, J, D_IN, D_OUT), "bias": (J, D_OUT)},
        "learned": {"weight": (1, J, D_IN, D_OUT), "bias": (J, D_OUT), "initial_logits": (1, J)},
        "drawn": {"weight": (1, J, D_IN, D_OUT), "bias": (J, D_OUT), "initial_logits": (20, J)},
        "pairs": {"weight": (1, 1, D_IN, D_OUT), "initial_logits": (20, J)},
    }
    layer, other, x = made("pairs"), made("pairs"), sets(2, 9)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert not torch.equal(layer(x).pose, other(x).pose)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x).pose, other(x).pose)
    before = layer.initial_logits.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.initial_logits, before)
    assert (
        abs(
            float(DenseCaps(None, 9, 2, 2, routing=DynamicRouting(drawn_logits=999, shared=True)).initial_logits.std())
            - 1
        )
        < 0.05
    )


@pytest.mark.parametrize("name", ["shared", "learned", "drawn"])
def test_convolutional_and_class_capsules_take_them(name: str) -> None:
    for layer in (
        ConvCaps(2, J, D_IN, D_OUT, 3, routing=SHARED[name]),
        ClassCaps(2, J, D_IN, D_OUT, routing=SHARED[name]),
    ):
        x = torch.randn(2, 2, 3, 3, D_IN)
        # One field that covers the map.
        dense = DenseCaps(18, J, D_IN, D_OUT, routing=SHARED[name])
        dense.load_state_dict(
            {k: v for k, v in layer.state_dict().items() if not k.endswith("_extra_state")}, strict=False
        )
        torch.testing.assert_close(layer(x).pose.flatten(), dense(x).pose.flatten())
    model = build("capsnet_small", (1, 20, 20), J, channels=4, shared=True)
    model(torch.rand(2, 1, 20, 20)).scores.sum().backward()


@every_one
def test_first_sets_are_neither_dead_nor_saturated(name: str) -> None:
    """Where ``n_places`` says how many come: lengths of about ½, of lower capsules of length ½."""
    for n in (8, 64, 512):
        torch.manual_seed(n)
        routing = DynamicRouting(shared=SHARED[name].shared, drawn_logits=512 if SHARED[name].drawn_logits else None)
        layer = DenseCaps(None, J, 16, 16, routing=routing, n_places=n)
        length = layer(torch.randn(32, n, 16) / 8).activation.detach().mean()
        assert 0.2 < float(length) < 0.8


@every_one
def test_compiled_exported_and_set_by_set(name: str) -> None:
    layer, x = made(name).eval(), sets(2, 9)
    mask = torch.rand(2, 9) < 0.7
    wanted = layer(x, mask=mask)[:2]
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask=mask)[:2], wanted)
    torch.compiler.reset()
    alone = torch.func.vmap(lambda x, mask: tuple(layer(x[None], mask=mask[None])[:2]))
    torch.testing.assert_close(tuple(part[:, 0] for part in alone(x, mask)), tuple(wanted))
    n_sets, length = torch.export.Dim("n_sets", min=1, max=64), torch.export.Dim("length", min=2, max=20)
    shapes: dict[str, Any] = {"capsules": {0: n_sets, 1: length}, "mask": {0: n_sets, 1: length}}
    program = torch.export.export(layer, (x,), {"mask": mask}, dynamic_shapes=shapes).module()
    torch.testing.assert_close(program(x[:1, :5], mask=mask[:1, :5])[:2], layer(x[:1, :5], mask=mask[:1, :5])[:2])


def test_what_does_not_fit_is_refused() -> None:
    x = torch.rand(2, 6, D_IN)
    for shared in (1, "yes", None):
        with pytest.raises(ValueError, match=f"shared must be True, False or 'pairs', got {shared!r}"):
            DynamicRouting(shared=shared)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drawn_logits must be an integer of at least 1, got 0"):
        DynamicRouting(drawn_logits=0)
    with pytest.raises(ValueError, match="drawn_logits must be None with learned_logits, got 6"):
        DynamicRouting(drawn_logits=6, learned_logits=True)
    with pytest.raises(ValueError, match="drawn_logits must be at least n_in=6, got 5"):
        DenseCaps(6, J, D_IN, D_OUT, routing=DynamicRouting(drawn_logits=5))
    with pytest.raises(ValueError, match="capsules must be at most drawn_logits=5 in number, got 6"):
        DenseCaps(None, J, D_IN, D_OUT, routing=DynamicRouting(shared=True, drawn_logits=5))(x)
    with pytest.raises(ValueError, match="n_in must be given for dynamic routing, got None"):
        DenseCaps(None, J, D_IN, D_OUT, routing=DynamicRouting(drawn_logits=5))
    with pytest.raises(ValueError, match="initial_logits must be given where all pairs share one matrix, or all"):
        DenseCaps(None, J, D_IN, D_OUT, routing=DynamicRouting(shared="pairs"))(x)
    with pytest.raises(ValueError, match=r"mask must be \[B, I\] = \[2, 6\], got shape \[2, 5\]"):
        made("shared")(x.double(), mask=torch.ones(2, 5, dtype=torch.bool))
