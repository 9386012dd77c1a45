"""Layers whose votes are convolutions: loops of the paper's sums, and what they are special cases of."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.backends import needs_cpu
from torchcaps.layers import ConvCaps, ConvVoteCaps, DeconvVoteCaps, DenseCaps, DynamicRouting, UniformRouting
from torchcaps.layers.shapes import same_padding
from torchcaps.ops import Capsules, dynamic_routing_3d, dynamic_routing_from_votes, locally_constrained_routing, squash
from torchcaps.optim import layouts

B, T, J, D_IN, D_OUT = 2, 3, 4, 5, 6
HEIGHT, WIDTH = 5, 6


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def drawn(layer: ConvVoteCaps | DeconvVoteCaps) -> ConvVoteCaps | DeconvVoteCaps:
    """In float64, with a bias that is not 0."""
    torch.nn.init.normal_(layer.bias)
    return layer.double()


def lower(height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return torch.randn(B, T, height, width, D_IN, dtype=torch.float64)


def route_at(votes: list[list[Tensor]], bias: Tensor, n_iters: int) -> list[Tensor]:
    """Procedure 1 with T lower and J upper capsules, number by number."""
    n_lower, n_upper = len(votes), len(bias)
    b = [[0.0] * n_upper for _ in range(n_lower)]
    v: list[Tensor] = []
    for iteration in range(n_iters):
        c = [torch.tensor(row, dtype=torch.float64).softmax(0).tolist() for row in b]
        s = [sum(c[t][j] * votes[t][j] for t in range(n_lower)) + bias[j] for j in range(n_upper)]
        v = [x * float(x.norm()) / (1 + float(x.norm()) ** 2) for x in s]
        if iteration < n_iters - 1:
            b = [[b[t][j] + float(votes[t][j] @ v[j]) for j in range(n_upper)] for t in range(n_lower)]
    return v


def kernel_at(layer: ConvVoteCaps | DeconvVoteCaps, t: int, row: int, column: int) -> Tensor:
    """The matrices ``[J, d_in, d_out]`` of one place in the window of a type."""
    rows, columns = layer.kernel_size
    return layer.weight.detach()[(0 if layer.shared else t * rows * columns) + row * columns + column]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "edges"),
    [  # zeros above and at the left
        ((3, 2), (1, 2), (0, 0), (0, 0)),
        ((3, 2), (2, 1), (1, 1), (1, 1)),
        # 5 rows by 2 are 3, which see 7; 6 columns by 2 are 3, which see 8: of 2 and of 2, 1 at each end …
        ((3, 4), (2, 2), "same", (1, 1)),
        # … and 9: of 4 rows 2 above, of 3 columns 1 at the left and 2 at the right.
        ((5, 5), (2, 2), "same", (2, 1)),
        ((2, 1), (1, 2), "same", (0, 0)),
    ],
)
def test_votes_and_routing_are_those_of_a_loop(
    shared: bool, kernel: Any, stride: Any, padding: Any, edges: Any
) -> None:
    layer = drawn(ConvVoteCaps(T, J, D_IN, D_OUT, kernel, stride=stride, padding=padding, shared=shared))
    u = lower()
    got = layer(u).pose.detach()
    assert got.shape == (B, J, *layer.output_size(HEIGHT, WIDTH), D_OUT)
    if padding == "same":
        assert got.shape[2:4] == (-(-HEIGHT // stride[0]), -(-WIDTH // stride[1]))
    for row in range(got.shape[2]):
        for column in range(got.shape[3]):
            votes = [[torch.zeros(D_OUT, dtype=torch.float64) for _ in range(J)] for _ in range(T)]
            for t in range(T):
                for down in range(kernel[0]):
                    for right in range(kernel[1]):
                        y, x = row * stride[0] + down - edges[0], column * stride[1] + right - edges[1]
                        if 0 <= y < HEIGHT and 0 <= x < WIDTH:
                            for j in range(J):
                                votes[t][j] = votes[t][j] + u[1, t, y, x] @ kernel_at(layer, t, down, right)[j]
            for j, v in enumerate(route_at(votes, layer.bias.detach(), 3)):
                torch.testing.assert_close(got[1, j, row, column], v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("kernel", "stride", "edges"),
    [((4, 4), (2, 2), (1, 1)), ((3, 2), (2, 1), (0, 0)), ((2, 5), (2, 2), (0, 1)), ((3, 3), (3, 1), (0, 1))],
)
def test_transposed_votes_are_those_of_a_loop(shared: bool, kernel: Any, stride: Any, edges: Any) -> None:
    """Each lower capsule writes into a window of the upper map, which begins ``edges`` before its own corner."""
    layer = drawn(DeconvVoteCaps(T, J, D_IN, D_OUT, kernel, stride=stride, shared=shared))
    height, width = 3, 2
    u = lower(height, width)
    rows, columns = height * stride[0], width * stride[1]
    got = layer(u).pose.detach()
    assert got.shape == (B, J, rows, columns, D_OUT) and layer.output_size(height, width) == (rows, columns)
    votes = torch.zeros(T, rows, columns, J, D_OUT, dtype=torch.float64)
    for t in range(T):
        for y in range(height):
            for x in range(width):
                for down in range(kernel[0]):
                    for right in range(kernel[1]):
                        row, column = y * stride[0] + down - edges[0], x * stride[1] + right - edges[1]
                        if 0 <= row < rows and 0 <= column < columns:
                            for j in range(J):
                                votes[t, row, column, j] += u[1, t, y, x] @ kernel_at(layer, t, down, right)[j]
    for row in range(rows):
        for column in range(columns):
            each = [list(votes[t, row, column]) for t in range(T)]
            for j, v in enumerate(route_at(each, layer.bias.detach(), 3)):
                torch.testing.assert_close(got[1, j, row, column], v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("extent", [5, 6, 7, 8])
@pytest.mark.parametrize(("kernel", "stride"), [(5, 2), (4, 2), (3, 1), (1, 2)])
def test_same_padding_makes_as_many_places_as_strides(extent: int, kernel: int, stride: int) -> None:
    before, behind = same_padding(extent, kernel, stride)
    assert (extent + before + behind - kernel) // stride + 1 == -(-extent // stride)
    assert behind - before in (0, 1)
    # As many zeros as the last place needs, and no more.
    assert before + behind == 0 or extent + before + behind == (-(-extent // stride) - 1) * stride + kernel


def test_a_kernel_of_one_is_dense_capsules_with_shared_matrices_at_each_place() -> None:
    layer, u = drawn(ConvVoteCaps(T, J, D_IN, D_OUT, 1)), lower()
    dense = DenseCaps(T, J, D_IN, D_OUT).double()
    dense.load_state_dict({"weight": layer.weight.expand(T, -1, -1, -1), "bias": layer.bias}, strict=False)
    places = u.permute(0, 2, 3, 1, 4).flatten(0, 2)
    wanted = dense(places, return_coupling=True)
    got = layer(u, return_coupling=True)
    torch.testing.assert_close(got.pose.permute(0, 2, 3, 1, 4).flatten(0, 2), wanted.pose)
    assert got.coupling is not None and wanted.coupling is not None
    torch.testing.assert_close(got.coupling.flatten(0, 2), wanted.coupling)
    uniform = DenseCaps(T, J, D_IN, D_OUT, routing=UniformRouting(shared=True)).double()
    uniform.load_state_dict({"weight": layer.weight, "bias": layer.bias}, strict=False)
    torch.testing.assert_close(layer(u, n_iters=1).pose.permute(0, 2, 3, 1, 4).flatten(0, 2), uniform(places).pose)


def test_votes_are_those_of_convolutional_capsules_summed_over_the_window() -> None:
    """The weight is that of ConvCaps. With one iteration the sums are the same; with three they are not."""
    options = {"stride": (2, 1), "padding": (1, 0)}
    layer = drawn(ConvVoteCaps(T, J, D_IN, D_OUT, (3, 2), shared=False, **options))
    conv = ConvCaps(T, J, D_IN, D_OUT, (3, 2), **options).double()
    conv.load_state_dict({"weight": layer.weight, "bias": layer.bias}, strict=False)
    u = lower()
    torch.testing.assert_close(layer(u, n_iters=1).pose, conv(u, n_iters=1).pose)
    assert (layer(u).pose - conv(u).pose).abs().max() > 1e-3
    # Before routing the K² votes of a type are summed.
    padded = F.pad(u, (0, 0, 0, 0, 1, 1))
    fields = padded.unfold(2, 3, 2).unfold(3, 2, 1)  # [B, T, H', W', d_in, K_h, K_w]
    votes = torch.einsum("bthwdrc,trcjde->bhwtje", fields, layer.weight.unflatten(0, (T, 3, 2)))
    wanted = dynamic_routing_from_votes(votes.flatten(0, 2), bias=layer.bias).pose
    torch.testing.assert_close(layer(u).pose.permute(0, 2, 3, 1, 4).flatten(0, 2), wanted)


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("backprop", ["full", "last"])
@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_each_place_is_routed_as_votes_are(n_iters: int, backprop: str, leaky: bool) -> None:
    votes = torch.randn(B, T, J, D_OUT, 2, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(J, D_OUT, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {"n_iters": n_iters, "backprop": backprop, "leaky": leaky, "return_coupling": True}
    got = locally_constrained_routing(votes, bias=bias, **options)
    flat = votes.permute(0, 4, 5, 1, 2, 3).flatten(0, 2)
    wanted = dynamic_routing_from_votes(flat, bias=bias, **options)
    assert got.coupling is not None and wanted.coupling is not None
    torch.testing.assert_close(got.pose.permute(0, 2, 3, 1, 4).flatten(0, 2), wanted.pose)
    torch.testing.assert_close(got.activation.permute(0, 2, 3, 1).flatten(0, 2), wanted.activation)
    torch.testing.assert_close(got.coupling.flatten(0, 2), wanted.coupling)
    none = locally_constrained_routing(votes[:, :0], bias=bias, **options)  # no lower type
    torch.testing.assert_close(none.pose[0, :, 0, 0], squash(bias))
    assert none.coupling is not None and none.coupling.shape == (B, 2, 3, 0, J)
    weights = torch.randn_like(wanted.pose)
    ours = torch.autograd.grad((got.pose.permute(0, 2, 3, 1, 4).flatten(0, 2) * weights).sum(), (votes, bias))
    theirs = torch.autograd.grad((wanted.pose * weights).sum(), (votes, bias))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("layer", [ConvVoteCaps, DeconvVoteCaps])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("n_out", "n_iters"), [(J, 1), (1, 3)])
def test_even_couplings_need_no_votes_and_change_nothing(layer: Any, shared: bool, n_out: int, n_iters: int) -> None:
    made = drawn(layer(T, n_out, D_IN, D_OUT, 3, stride=2, shared=shared))
    u = lower()
    got = made(u, n_iters=n_iters, return_coupling=True)
    wanted = locally_constrained_routing(made._votes(u), n_iters=n_iters, bias=made.bias, return_coupling=True)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["reference", pytest.param("cpu", marks=needs_cpu)])
def test_nothing_as_large_as_the_votes_is_kept_for_the_gradient(backend: str) -> None:
    """Beside the votes themselves, only what has the size of poses, or nothing."""
    votes = torch.randn(B, T, J, D_OUT, 2, 3, requires_grad=True)
    kept: list[int] = []

    def note(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() != votes.untyped_storage().data_ptr():
            kept.append(x.untyped_storage().nbytes() // x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        routed = locally_constrained_routing(votes, n_iters=3, backend=backend)
    routed.pose.sum().backward()
    assert not kept if backend == "cpu" else kept and max(kept) <= votes.numel() // T


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("length", [0.35, 0.5, 0.9])
def test_stacks_of_any_depth_start_neither_dead_nor_saturated(length: float, shared: bool) -> None:
    """Weights of half the size, with which dense capsules train, leave 1e-9 of it after six layers."""
    pose = F.normalize(torch.randn(2, 2, 16, 16, 16), dim=-1) * length
    for layer in (
        ConvVoteCaps(2, 4, 16, 16, 5, padding="same", shared=shared),
        ConvVoteCaps(4, 8, 16, 32, 5, stride=2, padding="same", shared=shared),
        *(ConvVoteCaps(8, 8, 32, 32, 3, padding="same", shared=shared) for _ in range(4)),
        DeconvVoteCaps(8, 4, 32, 16, shared=shared),
        DeconvVoteCaps(4, 2, 16, 16, shared=shared),
    ):
        routed = layer(pose)
        assert 0.15 < routed.activation.mean() < 0.9
        pose = routed.pose


@pytest.mark.parametrize("shared", [True, False])
def test_muon_takes_the_weight_as_the_matrix_of_the_convolution(shared: bool) -> None:
    layer = ConvVoteCaps(T, J, D_IN, D_OUT, 3, shared=shared)
    layout = layouts(layer)[layer.weight]
    matrix = layout.view(layer.weight).flatten(0, 1).flatten(1)  # inputs by outputs
    assert matrix.shape == ((1 if shared else T) * 9 * D_IN, J * D_OUT)


def test_layers_compile_to_one_graph_and_are_exported() -> None:
    stack = torch.nn.Sequential(
        ConvVoteCaps(T, J, D_IN, D_OUT, 3, stride=2, padding="same"), DeconvVoteCaps(J, 2, D_OUT, 3)
    )
    x = torch.randn(4, T, 5, 6, D_IN)
    compiled = torch.compile(stack, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x).pose, stack(x).pose)
    program = torch.export.export(stack, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    torch.testing.assert_close(program.module()(x[:3]).pose, stack(x[:3]).pose)


def test_state_dicts_hold_the_whole_function() -> None:
    layer = DeconvVoteCaps(T, J, D_IN, D_OUT, routing=DynamicRouting(vote_scale=0.5))
    other = DeconvVoteCaps(T, J, D_IN, D_OUT)
    other.load_state_dict(layer.state_dict())
    u = lower().float()
    torch.testing.assert_close(other(u), layer(u))
    assert "kernel_size=(4, 4), stride=(2, 2), shared=True, 3 × dynamic, vote_scale=0.5" in repr(layer)
    assert "padding=same" in repr(ConvVoteCaps(1, 1, 1, 1, 1, padding="same"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvVoteCaps(0, 3, 4, 5, 3), "n_in must be an integer of at least 1, got 0"),
        (lambda: DeconvVoteCaps(2, 3, 4, -5), "d_out must be an integer of at least 1, got -5"),
        (lambda: ConvVoteCaps(2, 3, 4, 5, 3, padding="valid"), "or 'same'; got 'valid'"),
        (lambda: ConvVoteCaps(2, 3, 4, 5, 3, padding=-1), "padding must be an integer of at least 0, got -1"),
        (lambda: ConvVoteCaps(2, 3, 4, 5, 3, shared=1), "shared must be True or False, got 1"),
        (
            lambda: ConvVoteCaps(2, 3, 4, 5, 3, routing="em"),
            "routing must be dynamic where votes are convolutions, got em",
        ),
        (
            lambda: DeconvVoteCaps(2, 3, 4, 5, routing=DynamicRouting(learned_logits=True)),
            "learned_logits must be False where votes are convolutions, got True",
        ),
        (
            lambda: ConvVoteCaps(2, 3, 4, 5, 3, routing=DynamicRouting(backend="triton")),
            "backend must be auto, reference, cpu where votes are convolutions, got 'triton'",
        ),
        (lambda: DeconvVoteCaps(2, 3, 4, 5, 1), r"kernel_size must be at least the stride \(2, 2\), got \(1, 1\)"),
        (
            lambda: ConvVoteCaps(2, 3, 4, 5, 3)(torch.zeros(1, 2, 2, 5, 4)),
            "a 3×3 kernel does not fit into a map of 2×5",
        ),
        (
            lambda: DeconvVoteCaps(2, 3, 4, 5)(torch.zeros(1, 3, 2, 5, 4)),
            r"capsules must be \[B, T=2, H, W, d_in=4\], got shape \[1, 3, 2, 5, 4\]",
        ),
        (
            lambda: DeconvVoteCaps(2, 3, 4, 5)(torch.zeros(1, 2, 2, 5, 4).double()),
            "capsules must be torch.float32 as the parameters are, got torch.float64",
        ),
        (
            lambda: ConvVoteCaps(2, 3, 4, 5, 1)(torch.zeros(1, 2, 2, 5, 4), n_iters=0),
            "n_iters must be an integer of at least 1, got 0",
        ),
        (lambda: locally_constrained_routing(torch.zeros(1, 2, 3, 4, 5)), r"votes must be \[B, T, J, d_out, H, W\]"),
        (
            lambda: locally_constrained_routing(torch.zeros(1, 2, 3, 4, 1, 1), bias=torch.zeros(3, 5)),
            r"bias must be \[J, d_out\] with d_out=4",
        ),
        (
            lambda: locally_constrained_routing(torch.zeros(1, 2, 3, 4, 1, 1), backprop="x"),
            "backprop must be one of full, last; got 'x'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_activations_of_the_map_below_are_not_read() -> None:
    layer, u = ConvVoteCaps(T, J, D_IN, D_OUT, 3), lower().float()
    told = layer(Capsules(u, torch.rand(B, T, HEIGHT, WIDTH)))
    torch.testing.assert_close(told, layer(u))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("n_iters", [1, 3])
def test_over_the_map_all_places_compete(shared: bool, n_iters: int) -> None:
    layer = drawn(ConvVoteCaps(T, J, D_IN, D_OUT, 3, padding="same", shared=shared, compete="map", n_places=30))
    u = lower()
    got = layer(u, n_iters=n_iters, return_coupling=True)
    wanted = dynamic_routing_3d(layer._votes(u), n_iters=n_iters, bias=layer.bias, return_coupling=True)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    one = drawn(ConvVoteCaps(T, 1, D_IN, D_OUT, 3, shared=shared, compete="map"))
    torch.testing.assert_close(one(u).pose, dynamic_routing_3d(one._votes(u), bias=one.bias).pose)
    assert "compete=map" in repr(one)


@pytest.mark.parametrize("n_places", [4, 64])
def test_over_the_map_capsules_start_neither_dead_nor_saturated(n_places: int) -> None:
    side = math.isqrt(n_places)
    layer = ConvVoteCaps(32, 32, 8, 8, 3, padding="same", compete="map", n_places=n_places)
    poses = torch.randn(2, 32, side, side, 8)
    poses = 0.5 * poses / poses.norm(dim=-1, keepdim=True)
    routed = layer(poses, return_coupling=True)
    total = routed.activation.square().sum(dim=(2, 3)).sqrt()  # of an upper type, over the map
    assert 0.25 < total.mean() < 0.95
    assert routed.coupling is not None and routed.coupling.amax(dim=(1, 2, 4)).mean() < 0.6


def test_options_over_the_map_are_refused_where_they_say_nothing() -> None:
    with pytest.raises(ValueError, match="compete must be one of place, map; got 'all'"):
        ConvVoteCaps(T, J, D_IN, D_OUT, 3, compete="all")
    with pytest.raises(ValueError, match="n_places must be 1 where types compete at each place, got 9"):
        ConvVoteCaps(T, J, D_IN, D_OUT, 3, n_places=9)
    with pytest.raises(ValueError, match="leaky must be False where types compete over the map, got True"):
        ConvVoteCaps(T, J, D_IN, D_OUT, 3, compete="map", routing=DynamicRouting(leaky=True))
