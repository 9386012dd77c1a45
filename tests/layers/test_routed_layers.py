"""Dense and convolutional capsules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

from torchcaps.data import load
from torchcaps.layers import ROUTINGS, ClassCaps, ConvCaps, DenseCaps, DynamicRouting, EMRouting, PrimaryCaps
from torchcaps.layers.routing import Init, Part, Routing, Sizes
from torchcaps.models import build
from torchcaps.ops import Capsules, dynamic_routing, margin_loss, receptive_fields


def test_convolution_over_the_whole_map_is_dense() -> None:
    conv = ConvCaps(3, 5, 4, 6, (2, 7), routing=DynamicRouting(learned_logits=True)).double()
    dense = DenseCaps(3 * 2 * 7, 5, 4, 6, routing=DynamicRouting(learned_logits=True)).double()
    nn.init.normal_(conv.initial_logits)  # type: ignore[arg-type]
    nn.init.normal_(conv.bias)  # type: ignore[arg-type]
    dense.load_state_dict(conv.state_dict())
    x = torch.randn(2, 3, 2, 7, 4, dtype=torch.float64)
    one, two = conv(x, return_coupling=True), dense(x, return_coupling=True)
    assert one.pose.shape == (2, 5, 1, 1, 6)
    torch.testing.assert_close(one.pose.flatten(1, 3), two.pose)
    torch.testing.assert_close(one.activation.flatten(1), two.activation)
    torch.testing.assert_close(one.coupling[:, 0, 0], two.coupling)


def test_each_place_routes_its_own_receptive_field() -> None:
    layer = ConvCaps(2, 3, 4, 5, (3, 2), stride=2).double()
    x = torch.randn(2, 2, 8, 7, 4, dtype=torch.float64)
    got = layer(x)
    assert layer.output_size(8, 7) == (3, 3) and got.pose.shape == (2, 3, 3, 3, 5)
    for row, column in ((0, 0), (1, 2), (2, 1)):
        field = x[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 2].flatten(1, 3)
        alone = dynamic_routing(field, layer.weight, bias=layer.bias)
        torch.testing.assert_close(got.pose[:, :, row, column], alone.pose)
        torch.testing.assert_close(got.activation[:, :, row, column], alone.activation)


def test_beyond_the_edge_there_are_no_capsules() -> None:
    """One corner's field of 3×2 has 2×1 capsules, which alone are routed there; the opposite one's has all."""
    layer = ConvCaps(2, 3, 4, 5, (3, 2), stride=2, padding=1).double()
    x = torch.randn(2, 2, 6, 5, 4, dtype=torch.float64)
    got = layer(x)
    assert layer.output_size(6, 5) == (3, 3) and got.pose.shape == (2, 3, 3, 3, 5)
    weight = layer.weight.unflatten(0, (2, 3, 2))
    first = dynamic_routing(x[:, :, :2, :1].flatten(1, 3), weight[:, 1:, 1:].flatten(0, 2), bias=layer.bias)
    torch.testing.assert_close(got.pose[:, :, 0, 0], first.pose)
    inner = dynamic_routing(x[:, :, 3:, 3:].flatten(1, 3), weight.flatten(0, 2), bias=layer.bias)
    torch.testing.assert_close(got.activation[:, :, 2, 2], inner.activation)


def test_a_call_is_refused_what_its_routing_does_not_know() -> None:
    layer, x = DenseCaps(6, 3, 4, 5, routing="uniform"), torch.rand(2, 6, 4)
    others = {"mask": torch.ones(2, 6, dtype=torch.bool), "initial_logits": torch.zeros(6, 3), "state": layer(x)}
    for name, value in others.items():
        with pytest.raises(ValueError, match=f"{name} must be None with uniform routing, got"):
            layer(x, **{name: value})
    layer = DenseCaps(6, 3, 4, 5)
    with pytest.raises(ValueError, match="state must be None with dynamic routing, got"):
        layer(x, state=layer(x))
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        layer(x, n_iters=0)
    with pytest.raises(ValueError, match="n_in must be given for dynamic routing, got None"):
        DenseCaps(None, 3, 4, 5)
    with pytest.raises(ValueError, match=f"routing must be a Routing or one of {', '.join(ROUTINGS)}, got 3"):
        DenseCaps(6, 3, 4, 5, routing=3)  # type: ignore[arg-type]


def test_receptive_fields_stand_in_the_order_type_row_column() -> None:
    x = torch.arange(2 * 3 * 3, dtype=torch.float32).view(1, 2, 3, 3, 1)
    fields = receptive_fields(x, (2, 2), (1, 1))
    assert fields[0, 0, 1].flatten().tolist() == [1, 2, 4, 5, 10, 11, 13, 14]


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_rows_and_columns_may_differ(routing: str) -> None:
    """Fields one below another, of every second column, with nothing above and below the map."""
    two = ROUTINGS[routing](n_iters=2)
    layer = ConvCaps(2, 3, 16, 16, (2, 3), stride=(1, 2), padding=(1, 0), routing=two).double()
    plain = ConvCaps(2, 3, 16, 16, (2, 3), stride=(1, 2), routing=two).double()
    plain.load_state_dict(layer.state_dict())
    pose, activation = torch.randn(2, 2, 4, 7, 16, dtype=torch.double), torch.rand(2, 2, 4, 7, dtype=torch.double)
    got = layer(Capsules(pose, activation))
    around = Capsules(F.pad(pose, (0, 0, 0, 0, 1, 1)), F.pad(activation, (0, 0, 1, 1)))
    assert got.activation.shape == (2, 3, *layer.output_size(4, 7)) == (2, 3, 5, 3)
    torch.testing.assert_close(got.pose, plain(around).pose)
    if routing == "dynamic":  # each place routes by itself
        one = ConvCaps(2, 3, 16, 16, (2, 3), routing=two).double()
        one.load_state_dict(layer.state_dict())
        torch.testing.assert_close(got.pose, one(around).pose[:, :, :, ::2])


def test_layers_take_what_layers_return() -> None:
    stack = nn.Sequential(PrimaryCaps(3, 4, 6, 3), ConvCaps(4, 5, 6, 7, 3, stride=2), DenseCaps(5 * 2 * 3, 8, 7, 9))
    routed = stack(torch.randn(2, 3, 7, 9))
    assert isinstance(routed, Capsules) and routed.pose.shape == (2, 8, 9)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_stacked_layers_start_near_length_one_half(n_layers: int) -> None:
    """On real digits, through the routing: neither dead nor saturated in any layer."""
    images = load("digits").train.images[:16].float() / 255
    hidden = [{"n_types": 16, "d_out": 8, "kernel_size": 3}] * (n_layers - 1)
    model = build("capsnet_small", (1, 28, 28), 10, hidden=hidden)
    with torch.no_grad():
        lengths = [capsules.activation.mean().item() for capsules in model(images).capsules]
    assert len(lengths) == 1 + n_layers and all(0.25 < length < 0.65 for length in lengths), lengths


def test_three_stacked_capsule_layers_train() -> None:
    """Four images are learned by heart, and every layer takes part: its gradient is not lost on the way."""
    stack = nn.Sequential(PrimaryCaps(1, 4, 8, 3, stride=2), ConvCaps(4, 4, 8, 8, 3), DenseCaps(4 * 4 * 4, 2, 8, 8))
    x, target = torch.rand(4, 1, 13, 13), torch.tensor([0, 1, 0, 1])
    adam = torch.optim.Adam(stack.parameters(), lr=0.01)
    losses, norms = [], []
    for _ in range(60):
        loss = margin_loss(stack(x).activation, target)
        adam.zero_grad()
        loss.backward()
        norms = norms or [layer.weight.grad.norm().item() for layer in stack]  # type: ignore[union-attr, operator]
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert all(0.01 < a / b < 100 for a, b in pairwise(norms))


def test_options_reach_the_routing() -> None:
    layer = DenseCaps(6, 3, 4, 5, routing=DynamicRouting(2, leaky=True, backprop="last", learned_logits=True))
    x = torch.randn(2, 6, 4)
    assert layer.initial_logits is not None
    nn.init.normal_(layer.initial_logits)
    wanted = dynamic_routing(
        x, layer.weight, n_iters=2, bias=layer.bias, initial_logits=layer.initial_logits, leaky=True, backprop="last"
    )
    torch.testing.assert_close(layer(x).pose, wanted.pose)
    assert not torch.allclose(layer(x, n_iters=1).pose, wanted.pose)
    assert layer(x, return_coupling=True).coupling.shape == (2, 6, 3)


def test_the_gradient_of_a_layer_is_the_one_it_was_asked_for() -> None:
    x, found = torch.randn(2, 6, 4), {}
    for backprop in ("full", "last"):
        torch.manual_seed(0)
        layer = DenseCaps(6, 3, 4, 5, routing=DynamicRouting(backprop=backprop))
        (found[backprop],) = torch.autograd.grad(layer(x).activation.sum(), layer.weight)
        routed = dynamic_routing(x, layer.weight, bias=layer.bias, backprop=backprop)
        (wanted,) = torch.autograd.grad(routed.activation.sum(), layer.weight)
        torch.testing.assert_close(found[backprop], wanted)
    assert not torch.allclose(found["full"], found["last"])


def test_oblong_kernels_say_the_size_they_make() -> None:
    layer = ConvCaps(2, 3, 4, 5, (2, 5))
    assert layer.output_size(3, 8) == layer(torch.randn(1, 2, 3, 8, 4)).pose.shape[2:4] == (2, 4)
    with pytest.raises(ValueError, match="a 2×5 kernel does not fit into a map of 3×4"):
        layer.output_size(3, 4)


@pytest.mark.parametrize("length", [0.5, 0.87, 1.0])
@pytest.mark.parametrize(("n_out", "leaky"), [(2, False), (10, False), (47, False), (100, False), (100, True)])
def test_any_number_of_classes_starts_neither_dead_nor_saturated(n_out: int, leaky: bool, length: float) -> None:
    """Above 16 classes shorter than others, else routing would saturate them where lower capsules are long."""
    lower = nn.functional.normalize(torch.randn(4, 288, 8), dim=-1) * length
    lengths = DenseCaps(288, n_out, 8, 16, routing=DynamicRouting(leaky=leaky))(lower).activation
    assert (0.2 if n_out <= 16 else 0.05) < lengths.mean() < (0.6 if length == 0.5 else 0.93)


def test_a_step_of_adam_moves_capsules_alike_however_many_vote() -> None:
    """Moved all at once in one direction: without the factor 10,000 capsules saturate two classes in one step."""
    torch.manual_seed(0)
    lower = nn.functional.normalize(torch.rand(4, 10_000, 8), dim=-1) / 2
    after = []
    for factor in (None, 1.0):
        layer = DenseCaps(10_000, 2, 8, 16, routing=DynamicRouting(vote_scale=factor))
        before = layer(lower).activation
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        (-before.sum()).backward()
        optimizer.step()
        after.append(layer(lower).activation.min().item())
        assert 0.2 < before.mean() < 0.6
    assert after[0] < 0.8 and after[1] > 0.99


def test_factors_on_votes_follow_the_number_of_voters() -> None:
    found = [DenseCaps(*sizes).scale.item() for sizes in ((288, 10, 8, 16), (1152, 10, 8, 16), (12_800, 2, 8, 16))]
    assert found == [1, 1, 1 / 64]
    assert (
        DenseCaps(1152, 2, 8, 16, routing=DynamicRouting(weight_std=0.1)).scale == 1
    )  # the layer of who sets the matrices himself
    assert "scale" not in DenseCaps(1152, 2, 16, 16, routing="em").state_dict()
    with pytest.raises(ValueError, match=r"vote_scale must be positive, got 0"):
        DenseCaps(6, 3, 4, 5, routing=DynamicRouting(vote_scale=0))


def test_weights_compute_what_they_did_where_the_factor_is_another() -> None:
    x = torch.randn(2, 1152, 8)
    trained, other = DenseCaps(1152, 2, 8, 16, routing=DynamicRouting(vote_scale=1 / 16)), DenseCaps(1152, 2, 8, 16)
    assert other.scale == 1 / 4
    other.load_state_dict(trained.state_dict())
    torch.testing.assert_close(other(x), trained(x))


def test_weights_of_before_there_were_factors_compute_what_they_did() -> None:
    x = torch.randn(2, 1152, 8)
    old = {
        name: value
        for name, value in DenseCaps(1152, 2, 8, 16, routing=DynamicRouting(vote_scale=1.0)).state_dict().items()
        if name != "scale"
    }
    wanted = dynamic_routing(x, old["weight"], bias=old["bias"])
    for layer in (DenseCaps(1152, 2, 8, 16), DenseCaps(1152, 2, 8, 16, routing=DynamicRouting(vote_scale=1.0))):
        layer.load_state_dict(old)
        torch.testing.assert_close(layer(x).pose, wanted.pose)
    told = DenseCaps(1152, 2, 8, 16, routing=DynamicRouting(vote_scale=0.5))
    told.load_state_dict(old)
    torch.testing.assert_close(told(x).pose, dynamic_routing(x / 2, old["weight"], bias=old["bias"]).pose)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvCaps(-2, 3, 4, 5, 3), "n_in must be an integer of at least 1, got -2"),
        (lambda: ConvCaps(2, 3, 4, 5, (3, 3, 3)), r"kernel_size must be two numbers, got \(3, 3, 3\)"),
        (lambda: DenseCaps(0, 3, 4, 5), "n_in must be an integer of at least 1, got 0"),
        (lambda: DenseCaps(6, 3, 4, 5, routing=DynamicRouting(0)), "n_iters must be an integer of at least 1, got 0"),
        (lambda: DenseCaps(6, 3, 4, 5, routing="magic"), f"routing must be one of {', '.join(ROUTINGS)}; got 'magic'"),
        (
            lambda: DenseCaps(6, 3, 4, 5, routing=DynamicRouting(backprop="x")),
            "backprop must be one of full, last; got 'x'",
        ),
        (lambda: ConvCaps(6, 3, 4, 5, 0), "kernel_size must be an integer of at least 1, got 0"),
        (lambda: ConvCaps(6, 3, 4, 5, 2, stride=0), "stride must be an integer of at least 1, got 0"),
        (lambda: ConvCaps(6, 3, 4, 5, 2, padding=-1), "padding must be an integer of at least 0, got -1"),
    ],
)
def test_bad_layers(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_initial_scale_is_an_argument() -> None:
    weight = DenseCaps(50, 10, 8, 16, routing=DynamicRouting(weight_std=0.5)).weight
    assert weight.std().item() == pytest.approx(0.5, rel=0.02)
    assert weight.abs().max() <= 2.28 * 0.5
    with pytest.raises(ValueError, match=r"weight_std must be positive, got 0.0"):
        DenseCaps(50, 10, 8, 16, routing=DynamicRouting(weight_std=0.0))


@pytest.mark.parametrize("autocast", [False, True])
def test_layers_compile_to_one_graph(autocast: bool) -> None:
    stack = nn.Sequential(ConvCaps(2, 3, 4, 5, 2), DenseCaps(3 * 3 * 2, 4, 5, 6))
    x = torch.randn(2, 2, 4, 3, 4)
    compiled = torch.compile(stack, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.testing.assert_close(compiled(x).pose, stack(x).pose)
    compiled(x).pose.sum().backward()


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_weights_may_be_computed(routing: str) -> None:
    """As in a parametrised or a pruned layer, and in a replica of DataParallel, whose weights are no parameters."""
    layer, pruned, half = (DenseCaps(6, 3, 16, 16, routing=routing) for _ in range(3))
    lower = Capsules(torch.randn(2, 6, 16), torch.rand(2, 6))
    wanted = layer(lower).pose
    normed = parametrizations.weight_norm(layer, "weight")
    torch.testing.assert_close(normed(lower).pose, wanted)
    prune.l1_unstructured(pruned, "weight", 0.5)
    half.load_state_dict({name: getattr(pruned, name) for name in half.state_dict() if name != "_extra_state"})
    torch.testing.assert_close(pruned(lower).pose, half(lower).pose)
    replica = half._replicate_for_data_parallel()
    for name, parameter in half._parameters.items():  # as torch.nn.parallel.replicate does
        if parameter is None:
            replica._parameters[name] = None
        else:
            setattr(replica, name, parameter * 1)
    torch.testing.assert_close(replica(lower).pose, half(lower).pose)


def test_bare_matrices_are_vectors_too() -> None:
    dense, conv = DenseCaps(6, 3, 16, 5), ConvCaps(2, 3, 16, 5, 2)
    few, many = torch.randn(2, 6, 4, 4), torch.randn(2, 2, 3, 3, 4, 4)
    torch.testing.assert_close(dense(few).pose, dense(few.flatten(-2)).pose)
    torch.testing.assert_close(conv(many).pose, conv(many.flatten(-2)).pose)


def test_bad_capsules() -> None:
    with pytest.raises(
        ValueError, match=r"capsules must be a Capsules or a tensor of poses, got a tuple: torchcaps.Capsules"
    ):
        DenseCaps(6, 3, 4, 5)((torch.zeros(2, 6, 4), torch.zeros(2, 6)))
    with pytest.raises(
        ValueError, match=r"capsules must be \[B, I=6, d_in=4\] or a map of as many, got shape \[2, 7, 4\]"
    ):
        DenseCaps(6, 3, 4, 5)(torch.zeros(2, 7, 4))
    with pytest.raises(ValueError, match=r"capsules must be \[B, T=6, H, W, d_in=4\], got shape \[2, 5, 3, 3, 4\]"):
        ConvCaps(6, 3, 4, 5, 2)(torch.zeros(2, 5, 3, 3, 4))
    with pytest.raises(ValueError, match="kernel_size must fit into the map, got 4 where H=3"):
        ConvCaps(6, 3, 4, 5, 4)(torch.zeros(2, 6, 3, 5, 4))
    with pytest.raises(ValueError, match=r"pose must be vectors or square matrices, got shape \[2, 6, 2, 8\]"):
        DenseCaps(6, 3, 16, 8)(Capsules(torch.zeros(2, 6, 2, 8), torch.zeros(2, 6)))
    for shape in ([2], [2, 5], [1, 6], [2, 6, 4, 4]):  # though dynamic routing does not read them
        with pytest.raises(
            ValueError, match=re.escape(f"activation must be one number for each pose, got shape {shape}")
        ):
            DenseCaps(6, 3, 16, 5)(Capsules(torch.zeros(2, 6, 4, 4), torch.zeros(shape)))


@dataclass(frozen=True)
class Shares(Routing):
    """Weigh votes by a learned share, the same at all places."""

    name = "shares"

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        n_in, n_out, d_in, d_out = sizes[:4]
        return {
            "weight": Init((n_in, n_out, d_in, d_out), torch.nn.init.normal_, per_child=True),
            "share": Init((n_in, n_out), torch.nn.init.normal_, per_child=True),
        }

    def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
        pose = torch.einsum("bid,ijde,ij->bje", capsules.pose, parts["weight"], parts["share"])
        return Capsules(pose, pose.norm(dim=-1))


def test_every_layer_takes_a_new_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an object, or by the name under which it is entered."""
    monkeypatch.setitem(ROUTINGS, "shares", Shares)
    x = torch.randn(2, 1, 4, 5, 3)
    for layer, shape in (
        (DenseCaps(20, 6, 3, 7, routing="shares"), [2, 6, 7]),
        (ConvCaps(1, 6, 3, 7, 2, routing=Shares()), [2, 6, 3, 4, 7]),
        (ClassCaps(1, 6, 3, 7, routing="shares"), [2, 6, 7]),
    ):
        routed = layer(x)
        assert list(routed.pose.shape) == shape
        routed.pose.sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())
    classes = ClassCaps(1, 6, 3, 7, routing="shares")
    wanted = torch.einsum("byxd,jde,j->bje", x[:, 0], classes.weight[0], classes.share[0])
    torch.testing.assert_close(classes(x).pose, wanted)


@pytest.mark.parametrize("activations", [True, False])
def test_maps_are_routed_field_by_field(activations: bool) -> None:
    """Where a routing says nothing of maps: with the activations of what lies in a field, if it asks for them."""

    class Mine(Routing):
        needs_activations = activations

        def parts(self, sizes: Sizes) -> Mapping[str, Part]:
            return {"weight": Init(tuple(sizes[:4]), torch.nn.init.normal_)}

        def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Capsules:
            active = capsules.activation if activations else torch.ones_like(capsules.activation)
            pose = torch.einsum("bid,ijde,bi->bje", capsules.pose, parts["weight"], active)
            return Capsules(pose.unflatten(-1, (4, 4)), pose.norm(dim=-1), active.unsqueeze(-1).expand(-1, -1, 3))

    layer = ConvCaps(2, 3, 16, 16, (2, 3), stride=(1, 2), routing=Mine())
    pose, activation = torch.randn(2, 2, 4, 7, 16), torch.rand(2, 2, 4, 7)
    found = layer(Capsules(pose, activation), return_coupling=True)
    assert [list(x.shape) for x in found] == [[2, 3, 3, 3, 4, 4], [2, 3, 3, 3], [2, 3, 3, 12, 3]]
    window = slice(1, 3), slice(2, 5)  # what the place (1, 1) sees
    few = pose[:, :, *window].flatten(1, 3), activation[:, :, *window].flatten(1, 3)
    wanted = Mine().route(Capsules(*few), layer.parts())
    torch.testing.assert_close(found.pose[:, :, 1, 1], wanted.pose)
    torch.testing.assert_close(found.activation[:, :, 1, 1], wanted.activation)
    torch.testing.assert_close(found.coupling[:, 1, 1], wanted.coupling)


@pytest.mark.parametrize("shape", [(), (2,), (2, 6, 0)])
def test_tensors_that_are_no_poses_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"capsules must be poses \[\.\.\., d_in=8\], got shape"):
        DenseCaps(6, 3, 8, 4)(torch.rand(shape))


@pytest.mark.parametrize("kind", [DenseCaps, ClassCaps])
def test_weights_bring_the_constants_of_their_layer(kind: type[DenseCaps | ClassCaps]) -> None:
    """Loaded into a layer that was made for other poses, they compute what they did."""
    where = {"coordinates": "column"} if kind is ClassCaps else {}
    lower = Capsules(torch.randn(2, 6, *(1,) * 2 * len(where), 16), torch.rand(2, 6, *(1,) * 2 * len(where)))
    saved = kind(6, 3, 16, 16, routing=EMRouting(pose_scale=0.1), **where)
    other = kind(6, 3, 16, 16, routing="em", **where)
    assert not torch.equal(saved(lower).pose, other(lower).pose)
    other.load_state_dict(saved.state_dict())
    assert torch.equal(saved(lower).pose, other(lower).pose) and other.pose_scale == saved.pose_scale
    assert torch.equal(saved(lower).activation, other(lower).activation) and repr(other) == repr(saved)
    without = {name: x for name, x in saved.state_dict().items() if name != "_extra_state"}
    kept = kind(6, 3, 16, 16, routing=EMRouting(variance_floor=0.3), **where)
    kept.load_state_dict(without)
    assert kept.routing.constants() == {"variance_floor": 0.3}
    with pytest.raises(ValueError, match=r"extra state of \w+ must hold pose_scale, variance_floor.*, got"):
        kept.load_state_dict({**without, "_extra_state": torch.zeros(9)})


@dataclass(frozen=True)
class MaskedMean(Routing):
    """Average the votes of any number of capsules that share one matrix for each upper capsule."""

    name = "mean"
    any_n_in = True

    def parts(self, sizes: Sizes) -> Mapping[str, Part]:
        return {"weight": Init((1, sizes.n_out, sizes.d_in, sizes.d_out), torch.nn.init.normal_), "norm": nn.Identity}

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        mask: torch.Tensor | None = None,
    ) -> Capsules:
        there = torch.ones_like(capsules.pose[..., 0]) if mask is None else mask.to(capsules.pose.dtype)
        mean = torch.einsum("bid,bi->bd", capsules.pose, there) / there.sum(1, keepdim=True)
        pose = parts["norm"](torch.einsum("bd,jde->bje", mean, parts["weight"][0]))
        return Capsules(pose, pose.norm(dim=-1))


def test_any_number_of_capsules_with_a_mask() -> None:
    layer = DenseCaps(None, 3, 4, 5, routing=MaskedMean())
    few, more = torch.randn(2, 6, 4), torch.randn(2, 3, 4)
    mask = torch.tensor([True] * 6 + [False] * 3).expand(2, -1)
    padded = layer(torch.cat((few, more), dim=1), mask=mask)
    torch.testing.assert_close(padded.pose, layer(few).pose)
    assert "any×4 -> 3×5, mean" in repr(layer)
    assert ConvCaps(1, 3, 4, 5, 2, routing=MaskedMean())(few.view(2, 1, 2, 3, 4)).pose.shape == (2, 3, 1, 2, 5)


@pytest.mark.parametrize(
    ("made", "got"),
    [
        (lambda pose, activation: pose, "must return Capsules, got a Tensor"),
        (lambda pose, activation: (pose, activation), "must return Capsules, got a tuple"),
        (lambda pose, activation: Capsules(pose, activation[..., None]), r"activations \[B, J=3"),
        (lambda pose, activation: Capsules(pose[:, :2], activation[:, :2]), r"poses \[B, J=3.*, d_out=5\]"),
        (lambda pose, activation: Capsules(pose[..., :4], activation), r"got shapes \[2, 3.*, 4\] and \[2, 3"),
        (lambda pose, activation: Capsules(pose, activation[:1]), "got shapes"),
    ],
)
def test_what_a_routing_of_ones_own_returns_is_checked(made: Callable[..., Any], got: str) -> None:
    class Wrong(Shares):
        name = "wrong"

        def route(self, capsules: Capsules, parts: Mapping[str, Any], *, return_coupling: bool = False) -> Any:
            return made(*super().route(capsules, parts)[:2])

        def route_map(self, capsules: Capsules, parts: Mapping[str, Any], **call: Any) -> Any:
            routed = Shares().route_map(capsules, parts, **call)
            return made(routed.pose, routed.activation)

    x = torch.randn(2, 1, 2, 3, 4)
    for layer in (
        DenseCaps(6, 3, 4, 5, routing=Wrong()),
        ClassCaps(1, 3, 4, 5, routing=Wrong()),
        ConvCaps(1, 3, 4, 5, 2, routing=Wrong()),
    ):
        with pytest.raises(ValueError, match=f"wrong routing .*{got}"):
            layer(x)
