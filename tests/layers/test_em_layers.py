"""Capsule layers with EM routing, and the layers around them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchcaps.data import load
from torchcaps.data.images import to_float
from torchcaps.layers import (
    ClassCaps,
    ConvCaps,
    DenseCaps,
    DynamicRouting,
    EMRouting,
    MatrixPrimaryCaps,
    PrimaryCaps,
    Standardize,
)
from torchcaps.models import build
from torchcaps.ops import Capsules, EMSettings, conv_em_routing, coordinate_offset, dynamic_routing, em_routing


def matrices(*shape: int, dtype: torch.dtype = torch.float64) -> Capsules:
    return Capsules(torch.randn(*shape, 4, 4, dtype=dtype), torch.rand(*shape, dtype=dtype))


def test_conv_caps_calls_the_convolutional_form() -> None:
    layer = ConvCaps(2, 3, 16, 16, (2, 3), stride=2, routing=EMRouting(2, compete="all", damping=0.2)).double()
    lower = matrices(2, 2, 5, 6)
    got = layer(lower, return_coupling=True)
    wanted = conv_em_routing(
        *lower[:2],
        layer.weight.unflatten(0, (2, 2, 3)),
        layer.beta_u,
        layer.beta_a,
        stride=2,
        n_iters=2,
        settings="released",
        compete="all",
        damping=0.2,
        return_coupling=True,
    )
    for one, two in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, two)
    assert got.pose.shape == (2, 3, 2, 2, 4, 4) and layer.output_size(5, 6) == (2, 2)


@pytest.mark.parametrize("compete", ["all", "positions"])
def test_beyond_the_edge_there_are_no_capsules(compete: str) -> None:
    """Inactive ones of any pose make no difference."""
    routing = EMRouting(compete=compete, final_lambda=0.1)
    layer = ConvCaps(2, 3, 16, 16, (2, 3), padding=1, routing=routing).double()
    without = ConvCaps(2, 3, 16, 16, (2, 3), routing=routing).double()
    without.load_state_dict(layer.state_dict())
    lower, around = matrices(2, 2, 3, 4), matrices(2, 2, 5, 6)
    around.activation.zero_()
    around.pose[:, :, 1:-1, 1:-1], around.activation[:, :, 1:-1, 1:-1] = lower[:2]
    got, wanted = layer(lower), without(around)
    assert got.pose.shape == (2, 3, *layer.output_size(3, 4), 4, 4) == (2, 3, 4, 4, 4, 4)
    torch.testing.assert_close(got.pose, wanted.pose)
    torch.testing.assert_close(got.activation, wanted.activation)


def test_convolution_over_the_whole_map_is_dense() -> None:
    routing = EMRouting(settings="paper")
    conv, dense = ConvCaps(3, 5, 16, 16, (2, 4), routing=routing), DenseCaps(24, 5, 16, 16, routing=routing)
    dense.load_state_dict(conv.state_dict())
    lower = matrices(2, 3, 2, 4, dtype=torch.float32)
    one, two = conv(lower, return_coupling=True), dense(lower, return_coupling=True)
    torch.testing.assert_close(one.pose[:, :, 0, 0], two.pose)
    torch.testing.assert_close(one.activation[:, :, 0, 0], two.activation)
    torch.testing.assert_close(one.coupling[:, 0, 0], two.coupling)


@pytest.mark.parametrize("coordinates", ["column", "row", None])
def test_class_caps_share_matrices_and_add_coordinates(coordinates: str | None) -> None:
    layer = ClassCaps(
        2, 3, 16, 16, routing="em", coordinates=coordinates, spacing=(4, 5), centre=(1, -2), coordinate_scale=10
    ).double()
    assert ("coordinate_scale=10" in repr(layer)) == (coordinates is not None)
    lower = matrices(2, 2, 3, 4)
    got = layer(lower, return_coupling=True)
    weight = torch.stack([layer.weight[t] for t, _, _ in product(range(2), range(3), range(4))])
    offset = torch.zeros(24, 16, dtype=torch.float64)
    if coordinates is not None:
        place = coordinate_offset(
            3, 4, 16, placement=coordinates, spacing=(4, 5), centre=(1, -2), scale=10, dtype=torch.float64
        )
        offset = torch.stack([place[y, x] for _, y, x in product(range(2), range(3), range(4))])
    wanted = em_routing(
        lower.pose.flatten(1, 3),
        lower.activation.flatten(1),
        weight,
        layer.beta_u,
        layer.beta_a,
        settings="released",
        offset=offset.unflatten(1, (4, 4)),
        return_coupling=True,
    )
    for one, two in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, two)
    assert layer(matrices(1, 2, 5, 2)).pose.shape == (1, 3, 4, 4)  # any height and width


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_class_caps_keep_of_places_belongs_to_no_mode_and_to_no_caller(dtype: torch.dtype) -> None:
    layer = ClassCaps(
        2, 3, 16, 16, routing="em", coordinates="column", spacing=[3, 7], centre=(1, 4), coordinate_scale=10
    ).to(dtype)
    lower = matrices(2, 2, 3, 4, dtype=dtype)
    with torch.inference_mode():
        answered = layer(lower)
    offset = layer.offset(3, 4, dtype)
    assert offset is not None
    offset.fill_(torch.nan)
    learned = layer(lower)
    for one, two in zip(answered[:2], learned[:2], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    learned.activation.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()


def test_class_caps_with_dynamic_routing() -> None:
    layer = ClassCaps(2, 3, 4, 5, routing=DynamicRouting(learned_logits=True))
    nn.init.normal_(layer.initial_logits)  # type: ignore[arg-type]
    x = torch.randn(2, 2, 3, 2, 4)
    weight, initial_logits = (p.repeat_interleave(6, dim=0) for p in (layer.weight, layer.initial_logits))
    wanted = dynamic_routing(x.flatten(1, 3), weight, bias=layer.bias, initial_logits=initial_logits)
    torch.testing.assert_close(layer(x).pose, wanted.pose)


def test_routings_are_interchangeable_by_name() -> None:
    lower = MatrixPrimaryCaps(3, 4)(torch.randn(2, 3, 7, 6))
    for first, second, third in product(("em", "dynamic"), repeat=3):
        stack = nn.Sequential(
            ConvCaps(4, 3, 16, 16, 3, routing=first),
            ConvCaps(3, 5, 16, 16, 2, stride=2, routing=EMRouting(compete="all") if second == "em" else second),
            DenseCaps(5 * 2 * 2, 6, 16, 16, routing=third),
        )
        routed = stack(lower)
        assert routed.pose.shape == ((2, 6, 4, 4) if third == "em" else (2, 6, 16))
        assert routed.activation.shape == (2, 6)


def test_fields_that_do_not_overlap_route_among_all_types() -> None:
    """With types by themselves each child would belong to each of them as a whole: no routing, which is refused."""
    lower = matrices(2, 4, 4, 4)
    layer = ConvCaps(4, 3, 16, 16, 2, stride=2, routing=EMRouting(compete="all")).double()
    shares = layer(lower, return_coupling=True).coupling
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones_like(shares[..., 0]))
    assert shares.std() > 0.01
    # One iteration never asks, and where fields overlap in one direction alone there is a choice.
    assert ConvCaps(4, 3, 16, 16, 2, stride=2, routing=EMRouting(1)).double()(lower).pose.shape == (2, 3, 2, 2, 4, 4)
    assert ConvCaps(4, 3, 16, 16, (3, 4), routing="em").double()(lower).pose.shape == (2, 3, 2, 1, 4, 4)


@pytest.mark.parametrize(
    "first", [MatrixPrimaryCaps(32, 8), MatrixPrimaryCaps(32, 8, pose_std=0.44), PrimaryCaps(32, 8, 16, 1)]
)
def test_primary_layers_say_how_large_their_poses_are(first: nn.Module) -> None:
    """And layers that learn it from the one below do not drift."""
    pose = "matrix" if isinstance(first, MatrixPrimaryCaps) else "vector"
    features = torch.randn(4, 32, 12, 12) if pose == "matrix" else 0.45 * torch.randn(4, 32, 12, 12)
    below, capsules = first, first(features)
    assert capsules.pose.std().item() / first.pose_scale == pytest.approx(1.0, abs=0.3)
    for _ in range(2):
        layer = ConvCaps(8, 8, 16, 16, 3, routing=EMRouting(pose=pose, pose_scale=below.pose_scale))
        below, capsules = layer, layer(capsules)
        assert 0.3 < capsules.activation.mean() < 0.7
        assert 0.5 < capsules.pose.std() / layer.pose_scale < 2


def test_vector_capsules_are_routed_by_em_too() -> None:
    lower = PrimaryCaps(3, 4, 6, 3)(torch.randn(2, 3, 7, 6))
    layer = ConvCaps(4, 5, 6, 7, 3, routing=EMRouting(pose="vector"))
    assert layer(lower).pose.shape == (2, 5, 3, 2, 7)


@pytest.mark.parametrize("pose_scale", [0.3, 1.0, 3.0])
def test_class_capsules_start_half_active(pose_scale: float) -> None:
    """From random capsules, whatever their size: so many that the price of their votes decides."""
    pose, activation = matrices(4, 32, 6, 6, dtype=torch.float32)[:2]
    layer = ClassCaps(32, 5, 16, 16, routing=EMRouting(pose_scale=pose_scale))
    assert 0.4 < layer(Capsules(pose_scale * pose, activation)).activation.mean() < 0.6


@pytest.mark.parametrize("settings", ["released", "paper"])
@pytest.mark.parametrize("coordinates", [None, "column"])
def test_a_layer_does_the_same_however_far_the_poses_below_spread(settings: str, coordinates: str | None) -> None:
    """Told so, and at once as after its prices have been learned: floors, prices and coordinates follow the poses."""
    lower, scale = matrices(2, 4, 5, 6), 0.03
    where = {"coordinates": coordinates, "spacing": (4, 5), "centre": (1, -2)}
    for make in (lambda r: ConvCaps(4, 3, 16, 16, 3, routing=r), lambda r: ClassCaps(4, 3, 16, 16, **where, routing=r)):
        one, small = (make(EMRouting(settings=settings, pose_scale=k)).double() for k in (1.0, scale))
        with torch.no_grad():
            nn.init.normal_(one.weight)
            small.weight.copy_(one.weight)
            change = torch.randn_like(one.beta_u)
            for layer in (one, small):
                layer.beta_u += change
        wanted = one(lower, return_coupling=True)
        got = small(lower._replace(pose=scale * lower.pose), return_coupling=True)
        torch.testing.assert_close(got.pose, scale * wanted.pose)
        torch.testing.assert_close(got.activation, wanted.activation)
        torch.testing.assert_close(got.coupling, wanted.coupling)
        assert wanted.activation.std() > 0.01 and wanted.coupling.std() > 0.01


def test_a_floor_that_is_given_stays() -> None:
    """By its number, or in settings; those that have a name are for poses that spread by 1."""
    for options, wanted in (
        ({}, 5e-4 * 0.04),
        ({"settings": "paper"}, 1e-6 * 0.04),
        ({"variance_floor": 0.3}, 0.3),
        ({"settings": EMSettings(variance_floor=0.1)}, 0.1),
    ):
        layer = DenseCaps(4, 3, 16, 16, routing=EMRouting(pose_scale=0.2, **options))
        assert layer.routing.settings.variance_floor == pytest.approx(wanted)
        assert f"variance_floor={wanted:.3g}" in repr(layer)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_stacked_layers_start_half_active(n_layers: int) -> None:
    """From random capsules, each layer told what deviation the poses below have."""
    lower, scale = matrices(4, 8, 10, 10, dtype=torch.float32), 1.0
    for k in range(n_layers):
        layer = ConvCaps(8 if k == 0 else 16, 16, 16, 16, 3, routing=EMRouting(pose_scale=scale))
        lower, scale = layer(lower), layer.pose_scale
        assert 0.3 < lower.activation.mean() < 0.7
        assert 0.5 < lower.pose.std() / scale < 2


def test_matrix_capsules_are_read_off_a_place() -> None:
    layer = MatrixPrimaryCaps(3, 2, kernel_size=2, stride=2, activation_bias=-1.0)
    x = torch.randn(2, 3, 6, 5)
    routed = layer(x)
    assert routed.pose.shape == (2, 2, 3, 2, 4, 4) and layer.output_size(6, 5) == (3, 2)
    patch = x[1, :, 2:4, 2:4].flatten()
    pose, logit = layer.weight[:32].flatten(1) @ patch, layer.weight[32:].flatten(1) @ patch
    torch.testing.assert_close(routed.pose[1, :, 1, 1].flatten(), pose)
    torch.testing.assert_close(routed.activation[1, :, 1, 1], (logit - 1).sigmoid())
    padded = MatrixPrimaryCaps(3, 2, kernel_size=2, stride=2, padding=1, activation_bias=-1.0)
    padded.load_state_dict(layer.state_dict())
    torch.testing.assert_close(padded(x).pose, layer(F.pad(x, (1,) * 4)).pose)
    assert padded(x).pose.shape[2:4] == padded.output_size(6, 5)


def test_matrix_capsules_start_with_deviation_one_and_half_active() -> None:
    features = torch.randn(4, 32, 8, 8).relu() * 2**0.5  # of mean square 1
    routed = MatrixPrimaryCaps(32, 8, kernel_size=3)(features)
    assert 0.8 < routed.pose.std() < 1.2
    assert 0.4 < routed.activation.mean() < 0.6


@torch.no_grad()
def test_normalized_matrix_capsules_spread_as_asked_for_whatever_the_features() -> None:
    features = 7 + 50 * torch.randn(16, 32, 8, 8)
    layer = MatrixPrimaryCaps(32, 8, pose_std=0.5 / 32**0.5, activation_std=3 / 32**0.5, normalize=True)
    assert layer.pose_scale == pytest.approx(0.5)
    routed = layer(features)
    assert routed.pose.std(correction=0) == pytest.approx(0.5, rel=1e-3)
    assert routed.activation.logit().std(correction=0) == pytest.approx(3, rel=1e-3)
    layer.set_spreads(2.0, 1.0)
    routed = layer(features)
    assert routed.pose.std(correction=0) == pytest.approx(2, rel=1e-3)
    assert routed.activation.logit().std(correction=0) == pytest.approx(1, rel=1e-3)


def test_standardized_images() -> None:
    x = torch.rand(3, 2, 5, 4, dtype=torch.float64)
    got = Standardize()(x)
    for image, wanted in zip(got, x, strict=True):
        mean, deviation = wanted.mean(), wanted.std(unbiased=False)
        torch.testing.assert_close(image, (wanted - mean) / deviation)
    torch.testing.assert_close(Standardize()(3 * x - 1), got)


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 48, 48), (3, 100, 100)])
def test_standardized_flat_image_is_zero_of_every_grey_and_size(shape: tuple[int, int, int]) -> None:
    """The float32 mean of so many equal numbers is off by some rounding, which the least deviation would enlarge."""
    greys = (torch.arange(256) / 255).view(-1, 1, 1, 1).expand(-1, *shape)
    assert Standardize()(greys).abs().max() < 1e-6


@pytest.mark.parametrize("grey", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_standardized_flat_image_is_zero_in_half_precision(grey: float, dtype: torch.dtype) -> None:
    got = Standardize()(torch.full((1, 1, 28, 28), grey, dtype=dtype))
    assert got.dtype == dtype and got.float().abs().max() < 1e-2


def test_the_released_code_has_the_same_constants_in_every_layer() -> None:
    """Recorded results rest on them."""
    for standardize in (True, False):
        model = build(
            "matrix_capsnet_small", (2, 32, 32), 5, settings="released", initial="released", standardize=standardize
        )
        floors = [layer.routing.settings.variance_floor for layer in (*model.hidden, model.classes)]
        assert floors == [0.0005] * 3 and model.classes.coordinate_scale == 100
        first, second = (layer.pose_scale for layer in model.hidden)  # which still shrink
        assert second < 0.2 * first < 0.1


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_networks_are_traced_for_any_batch(routing: str) -> None:
    model = build("matrix_capsnet_small", (1, 24, 20), 3, routing=routing).eval()

    class Scores(nn.Module):  # torch.jit knows no NamedTuple with something None in it
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).scores

    x = torch.rand(3, 1, 24, 20)
    with torch.no_grad():
        traced = torch.jit.trace(Scores(), x[:2])
        torch.testing.assert_close(traced(x), model(x).scores)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_matrix_networks_start_alive(routing: str, standardize: bool) -> None:
    """Whether features come of images of 0 … 1, most of whose pixels are black, or of standardised ones."""
    torch.manual_seed(0)
    model = build("matrix_capsnet_small", (1, 28, 28), 5, routing=routing, standardize=standardize)
    output = model(to_float(load("digits").test.images[:16]))
    least, most = (0.15, 0.75) if routing == "dynamic" else (0.35, 0.65)
    for layer in output.capsules:
        assert least < layer.activation.mean() < most
    output.scores.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("size", [(1, 1), (6, 6), (12, 12)])
def test_class_capsules_of_dynamic_routing_start_near_length_one_half(size: tuple[int, int]) -> None:
    lower = torch.randn(4, 16, *size, 8)
    lower = 0.5 * lower / lower.norm(dim=-1, keepdim=True)
    lengths = ClassCaps(16, 10, 8, 16, map_size=size)(lower).activation
    assert 0.2 < lengths.mean() < 0.7


def test_standardized_flat_image_is_zero_with_a_finite_gradient() -> None:
    x = torch.full((2, 1, 4, 4), 0.5, requires_grad=True)
    got = Standardize()(x)
    got.sum().backward()
    assert not got.any() and x.grad is not None and bool(x.grad.isfinite().all())
    # A deviation of 1/255 at one of 16 pixels: that of all is √15/16/255, just below the least, 1/4/255.
    x = torch.full((1, 1, 4, 4), 0.5, dtype=torch.float64)
    x[0, 0, 0, 0] += 1 / 255
    torch.testing.assert_close(Standardize()(x)[0, 0, 0, 0].item(), 15 / 16 * 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ClassCaps(6, 3, 8, 8, coordinates="column", routing=EMRouting(pose="vector")),
            "votes that are square",
        ),
        (lambda: DenseCaps(6, 3, 16, 12, routing="em"), "d_in and d_out must be 16 for 4×4 matrices, got 16 and 12"),
        (lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(pose="tensor")), "pose must be one of matrix, vector"),
        (
            lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(compete="positions")),
            "compete must be 'all' in dense routing, got 'positions'",
        ),
        (lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(damping=2.0)), "damping must be at least 0 and below 1"),
        (lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(pose_scale=0.0)), "pose_scale must be positive, got 0.0"),
        (
            lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(pose_scale=1e-18)),
            "pose_scale must leave the variance floor",
        ),
        (
            lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(pose_scale=float("inf"))),
            "pose_scale .* and finite, got inf",
        ),
        (lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(pose_scale="1")), "pose_scale must be positive, got '1'"),
        (lambda: DenseCaps(6, 3, 16, 16, routing="em")(torch.zeros(2, 6, 16)), "capsules must be a Capsules"),
        (lambda: DenseCaps(6, 3, 16, 16, routing="em")(matrices(2, 7)), r"got shape \[2, 7, 4, 4\]"),
        (lambda: ClassCaps(6, 3, 16, 16, routing="em")(matrices(2, 7, 2, 2)), r"T=6, .* got shape \[2, 7, 2, 2, 16\]"),
        (lambda: ClassCaps(6, 3, 4, 4, coordinates="row"), "coordinates must be None with dynamic routing"),
        (lambda: ClassCaps(6, 3, 16, 16, routing="em", coordinates="up"), "coordinates must be one of column, row"),
        (lambda: ClassCaps(0, 3, 16, 16), "n_types must be an integer of at least 1, got 0"),
        (lambda: ClassCaps(6, 3, 16, 16, map_size=6), "map_size must be two numbers, got 6"),
        (lambda: ClassCaps(6, 3, 16, 16, spacing=4.0), "spacing must be two numbers, got 4.0"),
        (lambda: ClassCaps(6, 3, 16, 16, spacing=("a", 1.0)), "each of spacing must be a number, got 'a'"),
        (lambda: ClassCaps(6, 3, 16, 16, centre=(0.0, float("nan"))), "each of centre must be a number, got nan"),
        (lambda: ClassCaps(6, 3, 16, 16, coordinate_scale=0.0), "coordinate_scale must be positive, got 0.0"),
        (
            lambda: ConvCaps(7, 3, 16, 16, 2, stride=2, routing="em")(matrices(2, 7, 5, 4)),
            r"compete must be 'all' where fields do not overlap \(kernel_size \(2, 2\), stride \(2, 2\)",
        ),
        (lambda: ConvCaps(7, 3, 16, 16, 3, routing="em")(matrices(2, 7, 3, 3)), "compete must be 'all'"),
        (
            lambda: ConvCaps(7, 3, 16, 16, 5, routing="em")(matrices(2, 7, 4, 4)),
            "kernel_size must fit into the map, got 5 where H=4",
        ),
        (lambda: DenseCaps(6, 3, 16, 16, routing=DynamicRouting(bias_init="x")), "bias_init must be a number, got 'x'"),
        (lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(beta_u_init="x")), "beta_u_init must be a number, got 'x'"),
        (
            lambda: DenseCaps(6, 3, 16, 16, routing=EMRouting(beta_a_init=None)),
            "beta_a_init must be a number, got None",
        ),
        (
            lambda: DenseCaps(6, 3, 16, 16)(torch.zeros(2, 6, 16), return_coupling="no"),
            "return_coupling must be True or False, got 'no'",
        ),
        (lambda: PrimaryCaps(3, 4, 8, 3, bias_init="x"), "bias_init must be a number, got 'x'"),
        (lambda: MatrixPrimaryCaps(3, 4, pose_std="x"), "pose_std must be positive, got 'x'"),
        (lambda: MatrixPrimaryCaps(3, 4, activation_bias="x"), "activation_bias must be a number, got 'x'"),
        (lambda: MatrixPrimaryCaps(3, 4, activation_std="x"), "activation_std must be positive, got 'x'"),
        (lambda: MatrixPrimaryCaps(3, 4, normalize=1), "normalize must be True or False, got 1"),
        (lambda: MatrixPrimaryCaps(3, 4, d_out=8), "d_out must be a square number for matrices, got 8"),
        (lambda: MatrixPrimaryCaps(3, 4, activation_std=0.0), "activation_std must be positive, got 0.0"),
    ],
)
def test_bad_layers_and_capsules(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_standardize_refuses_pixels_and_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"x must be floating point, got torch.uint8"):
        Standardize()(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"x must be \[B, C, H, W\], got shape \[1, 4, 4\]"):
        Standardize()(torch.zeros(1, 4, 4))


def test_initial_betas_are_arguments() -> None:
    layer = DenseCaps(6, 3, 16, 16, routing=EMRouting(beta_u_init=0.25, beta_a_init=-0.5))
    assert layer.beta_u.tolist() == [0.25] * 3 and layer.beta_a.tolist() == [-0.5] * 3
