"""The networks: sizes, counts, and what they refuse."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchcaps.data import load
from torchcaps.data.images import to_float
from torchcaps.layers import ROUTINGS, ClassCaps, DynamicRouting, Standardize
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.convolution import ReLUConv2d
from torchcaps.layers.init import truncated_normal_
from torchcaps.models import MODELS, CapsNet, HiddenConv, build
from torchcaps.models.baselines import BaselineCNN, count_parameters
from torchcaps.types import SegmentationOutput

#: Those that take long to build.
BIG = ("capsnet", "attention_capsnet", "baseline_cnn", "matrix_capsnet", "multimnist_cnn")


def test_options_reach_every_layer_that_routes() -> None:
    model = build("capsnet_stacked", (1, 28, 28), 10, n_iters=2, backprop="last", backend="reference")
    routed = [layer for layer in model.modules() if isinstance(layer, RoutedLayer)]
    assert len(routed) == 2
    assert all(layer.routing == DynamicRouting(2, backprop="last", backend="reference") for layer in routed)


def test_defaults_that_recorded_results_rest_on() -> None:
    """Recipes name what differs from them."""
    assert isinstance(build("norb_cnn", (2, 32, 32), 5).standardize, Standardize)
    model = build("matrix_capsnet_small", (2, 32, 32), 5)
    assert isinstance(model.standardize, Standardize) and model.classes.coordinates == "column"
    assert ClassCaps(2, 3, 16, 16).coordinate_scale == 100  # pixels, as in the released code
    assert [layer.n_iters for layer in (*model.hidden, model.classes)] == [3, 3, 3]


def test_a_capsnet_layer_by_layer() -> None:
    options = {"channels": 4, "n_types": 2, "standardize": True}
    model, x = build("capsnet_stacked", (1, 24, 26), 3, **options), torch.rand(2, 1, 24, 26)
    wanted = model.primary(model.conv(model.standardize(x)).clamp_min(0))
    for layer in model.hidden:
        wanted = layer(wanted, n_iters=1)
    torch.testing.assert_close(model(x, n_iters=1).scores, model.classes(wanted, n_iters=1).activation)


def test_hidden_capsules_are_as_far_apart_as_asked_for() -> None:
    """Of 20×24 pixels 12×16 features, of these 2×4 primary capsules, and of 2×2 of them by two places 1×2."""
    hidden = ({"n_types": 3, "d_out": 4, "kernel_size": 1}, {"n_types": 5, "d_out": 6, "kernel_size": 2, "stride": 2})
    model = build("capsnet_small", (1, 20, 24), 3, channels=4, n_types=2, hidden=hidden, decoder=None)
    shapes = [tuple(routed.pose.shape) for routed in model(torch.rand(2, 1, 20, 24)).capsules]
    assert shapes == [(2, 2, 2, 4, 8), (2, 3, 2, 4, 4), (2, 5, 1, 2, 6), (2, 3, 16)] and model.map_shape == (5, 1, 2)


def test_dropout_is_as_asked_for() -> None:
    x = torch.rand(2, 1, 9, 8)
    for dropout, alike in ((0.0, True), (0.5, False)):
        model = BaselineCNN((1, 9, 8), 3, (4,), (64,), dropout=dropout)
        assert torch.equal(model(x).scores, model(x).scores) == alike


def test_capsnet_has_the_papers_parameters() -> None:
    model = build("capsnet", (1, 28, 28), 10)
    # conv 256·(81+1); primary 256·256·81 + 32·8; class 1152·10·8·16 + 10·16;
    # decoder 160·512 + 512, 512·1024 + 1024, 1024·784 + 784.
    without = 20_992 + 5_308_672 + 1_474_720
    assert without == 6_804_384
    assert count_parameters(model) == without + 82_432 + 525_312 + 803_600 == 8_215_728
    assert count_parameters(build("capsnet", (1, 28, 28), 10, decoder=None)) == without
    assert model.map_shape == (32, 6, 6)


def test_further_convolutions_stand_before_the_capsules_with_a_relu_behind_each() -> None:
    torch.manual_seed(0)
    further = (HiddenConv(3, kernel_size=(3, 5), stride=(2, 1), padding=(0, 2)), {"channels": 5})
    model = CapsNet((2, 24, 26), 3, channels=4, kernel_size=3, stem=further, n_types=2).eval()
    x = torch.rand(2, 2, 24, 26)
    features, sizes = x, [((1, 1), (0, 0)), ((2, 1), (0, 2)), ((1, 1), (1, 1))]
    for layer, (stride, padding) in zip((model.conv, *model.stem), sizes, strict=True):
        features = F.conv2d(features, layer.weight, layer.bias, stride=stride, padding=padding).clamp_min(0)
    assert features.shape == (2, 5, 10, 24)
    torch.testing.assert_close(model(x).capsules[0].pose, model.primary(features).pose)


def test_capsnet_deep_has_its_parameters() -> None:
    # conv 64·(9+1), 64·(64·9+1), 128·(64·9+1), twice 128·(128·9+1); primary 128·256·9 + 256; class 32·7·7·10·8·16 + 160
    stem = 640 + 36_928 + 73_856 + 2 * 147_584
    model = build("capsnet_deep", (1, 28, 28), 10, decoder=None)
    assert count_parameters(model) == stem + 295_168 + 2_007_200
    assert model.map_shape == (32, 7, 7)


@pytest.mark.parametrize(
    ("option", "value"), [("dropout", 1.5), ("dropout", -0.1), ("dropout", "half"), ("pool", "no")]
)
def test_a_cnns_options_are_checked_as_it_is_made(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{option} must be .*{value}"):
        BaselineCNN((1, 9, 8), 3, (4,), (64,), **{option: value})  # type: ignore[arg-type]


def test_baseline_cnn_has_the_papers_parameters() -> None:
    # 256·(25+1) + 256·(256·25+1) + 128·(256·25+1) + (128·28·28)·328 + 328 + 328·192 + 192 + 192·10 + 10 = 35.4 M
    count = count_parameters(build("baseline_cnn", (1, 28, 28), 10))
    assert count == 6_656 + 1_638_656 + 819_328 + 32_915_784 + 63_168 + 1_930
    assert round(count / 1e6, 1) == 35.4


def test_matrix_capsnet_has_the_papers_parameters() -> None:
    # Conv1 5·5·1·32 + 32; primary 32·32·(16+1); ConvCaps 3·3·32·32·16 + 2·32, twice; class 32·5·16 + 2·5.
    count = count_parameters(build("matrix_capsnet", (1, 32, 32), 5))
    assert count == 832 + 17_408 + 2 * 147_520 + 2_570 == 315_850  # "310 K" in the paper; of two eyes 800 more
    assert count_parameters(build("matrix_capsnet", (2, 32, 32), 5)) == 316_650
    # 5·5·2·64 + 64; 64·8·17; 9·8·16·16 + 32; 9·16·16·16 + 32; 16·5·16 + 10: the paper's 68 K
    assert count_parameters(build("matrix_capsnet_small", (2, 32, 32), 5)) == 3_264 + 8_704 + 18_464 + 36_896 + 1_290


def test_matrix_capsnet_has_the_papers_maps() -> None:
    model = build("matrix_capsnet", (1, 32, 32), 5, A=3, B=2, C=4, D=3)
    shapes = [list(capsules.pose.shape[1:]) for capsules in model(torch.rand(1, 1, 32, 32)).capsules]
    assert shapes == [[2, 14, 14, 4, 4], [4, 6, 6, 4, 4], [3, 4, 4, 4, 4], [5, 4, 4]]
    # The last map's places see the image around the pixels 8, 12, 16, 20, about 14; the image's centre is 15.5.
    assert model.classes.spacing == (4, 4) and model.classes.centre == (-1.5, -1.5)


@pytest.mark.parametrize("stem", [(), ({"kernel_size": (3, 5), "stride": (1, 2), "channels": 8, "padding": (0, 3)},)])
def test_receptive_fields_lie_where_coordinates_say(stem: tuple[dict[str, Any], ...]) -> None:
    options = {"A": 3, "B": 2, "C": 4, "D": 3, "standardize": False, "stem": stem}
    model = build("matrix_capsnet", (1, 36, 60), 5, n_iters=1, **options)
    x = torch.rand(1, 1, 36, 60, requires_grad=True)
    features = model(x).capsules[-2]
    _, height, width = model.map_shape
    assert features.pose.shape[2:4] == (height, width)
    for row, column in ((1, 1), (height - 2, width - 2)):  # those at the edge see padding, too
        (seen,) = torch.autograd.grad(features.pose[:, :, row, column].sum(), x, retain_graph=True)
        rows, columns = (seen.abs().sum(dim=(0, 1, axis)).nonzero().flatten() for axis in (3, 2))
        centre = ((rows[0] + rows[-1]) / 2 - 17.5, (columns[0] + columns[-1]) / 2 - 29.5)
        (down, right), (above, left) = model.classes.spacing, model.classes.centre
        wanted = (above + down * (row - (height - 1) / 2), left + right * (column - (width - 1) / 2))
        assert tuple(float(c) for c in centre) == wanted


def test_matrix_capsules_have_convolutions_and_normalization_before_routing() -> None:
    torch.manual_seed(0)
    further = ({"channels": 6, "kernel_size": 2, "stride": 2},)
    model = build("matrix_capsnet", (2, 48, 48), 3, A=4, B=2, C=2, D=2, stem=further, normalize=True)
    x = torch.rand(5, 2, 48, 48)
    made = F.conv2d(model.standardize(x), model.conv.weight, model.conv.bias, stride=2)
    made = normalized(made).clamp_min(0)
    (second,) = model.stem
    made = normalized(F.conv2d(made, second.weight, second.bias, stride=2, padding=1)).clamp_min(0)
    made = normalized(F.conv2d(made, model.primary.weight))
    pose = made[:, :32].unflatten(1, (2, 4, 4)).permute(0, 1, 4, 5, 2, 3)
    found = model(x).capsules[0]
    torch.testing.assert_close(found.pose, pose, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.activation, torch.sigmoid(2 * made[:, 32:]), atol=1e-5, rtol=1e-5)


def normalized(x: torch.Tensor) -> torch.Tensor:
    """Zero mean and unit variance of every channel over the batch."""
    centred = x - x.mean(dim=(0, 2, 3), keepdim=True)
    return centred / (centred.square().mean(dim=(0, 2, 3), keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("name", ["capsnet_deep", "matched_cnn", "matrix_capsnet_deep", "template_autoencoder"])
def test_backward_hooks_see_convolutions(name: str) -> None:
    """As Grad-CAM hangs them: nothing that a module returned may be altered in place afterwards."""
    model, seen = build(name, (1, 28, 28), 3), set[str]()
    stem = {inner: module for inner, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    for inner, module in stem.items():
        module.register_full_backward_hook(lambda *_, inner=inner: seen.add(inner))
    model(torch.rand(2, 1, 28, 28, requires_grad=True))[0].sum().backward()
    assert stem and seen == stem.keys()


def test_matrix_capsnet_deep_has_its_parameters() -> None:
    # To the small network's: 64·64·9 + 64, and two numbers for each of 64 + 64 + 8·17 channels.
    small = count_parameters(build("matrix_capsnet_small", (2, 32, 32), 5))
    model = build("matrix_capsnet_deep", (2, 32, 32), 5)
    assert count_parameters(model) == small + 36_928 + 2 * (64 + 64 + 136) == 106_074
    assert model.classes.spacing == (4, 4) and model.classes.centre == (-1.5, -1.5)  # as without it


def test_norb_cnns_have_their_parameters() -> None:
    # 32·(2·25+1) + 64·(32·25+1) + (64·8·8+1)·1024 + (1024+1)·5: the paper's 4.2 M
    assert count_parameters(build("norb_cnn", (2, 32, 32), 5)) == 1_632 + 51_264 + 4_195_328 + 5_125
    small = build("matched_cnn", (2, 32, 32), 5, n_parameters=68_618, standardize=True)
    assert count_parameters(small) == pytest.approx(68_618, rel=0.02)


def test_multimnist_cnn_has_the_papers_parameters() -> None:
    # 512·(81+1) + 256·(512·25+1) + (256·9·9+1)·1024 + (1024+1)·10: 24.56 M in the paper, on pairs' 36×36
    count = count_parameters(build("multimnist_cnn", (1, 36, 36), 10))
    assert count == 41_984 + 3_277_056 + 21_234_688 + 10_250 == 24_563_978


def test_capsnet_that_standardizes_does_not_see_light_and_contrast() -> None:
    options = {"channels": 4, "n_types": 2, "decoder": (8,)}
    model = build("capsnet", (1, 20, 20), 3, **options, standardize=True)
    x = torch.rand(2, 1, 20, 20)
    torch.testing.assert_close(model(0.5 * x + 0.2).scores, model(x).scores)
    plain = build("capsnet", (1, 20, 20), 3, **options)
    plain.load_state_dict(model.state_dict())  # it has no weights
    assert not torch.allclose(plain(0.5 * x + 0.2).scores, plain(x).scores)


def activities(name: str, folder: Path, **options: str | bool) -> list[float]:
    """Mean activation in every layer, on a few real images of both eyes."""
    images = load("smallnorb", folder).train.images[:8, :, 8:40, 8:40].float() / 255
    with torch.no_grad():
        return [c.activation.mean().item() for c in build(name, (2, 32, 32), 5, **options)(images).capsules]


@pytest.mark.parametrize(
    ("name", "standardize"),
    [
        ("matrix_capsnet", True),
        ("matrix_capsnet_deep", True),
        ("matrix_capsnet_deep", False),
        ("matrix_capsnet_small", True),
    ],
)
def test_matrix_capsules_start_half_active(name: str, standardize: bool, shared_smallnorb: Path) -> None:
    """As the authors asked for, in every layer."""
    torch.manual_seed(0)
    found = activities(name, shared_smallnorb, standardize=standardize)
    assert len(found) == 4 and all(0.3 < activity < 0.7 for activity in found), found


@pytest.mark.parametrize("name", ["capsnet_deep", "capsnet_small", "capsnet_stacked"])
@pytest.mark.parametrize("standardize", [False, True])
def test_vector_capsules_start_of_middling_length(name: str, standardize: bool) -> None:
    """Whether features come of images of 0 … 1 or of standardised ones."""
    torch.manual_seed(0)
    model = build(name, (1, 28, 28), 10, standardize=standardize)
    with torch.no_grad():
        found = model(to_float(load("digits").test.images[:32])).capsules
    assert all(0.3 < float(routed.activation.mean()) < 0.75 for routed in found)


def test_matrix_capsules_run_on_the_smallest_images_they_are_made_for() -> None:
    assert build("matrix_capsnet_small", (1, 21, 21), 3)(torch.rand(1, 1, 21, 21)).scores.shape == (1, 3)


def test_the_released_start_has_few_active_capsules(shared_smallnorb: Path) -> None:
    """What the authors' code starts with; its own settings leave the convolutional capsules almost silent."""
    for name in ("matrix_capsnet", "matrix_capsnet_deep", "matrix_capsnet_small"):
        found = activities(name, shared_smallnorb, initial="released", coordinates="row")
        assert all(activity < 0.25 for activity in found[1:]), found


@pytest.mark.parametrize("n_parameters", [100_000, 707_000, 6_804_384])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 40)])
def test_matched_cnn_comes_near(n_parameters: int, shape: tuple[int, int, int]) -> None:
    count = count_parameters(build("matched_cnn", shape, 10, n_parameters=n_parameters))
    assert count == pytest.approx(n_parameters, rel=0.01)


def test_a_matched_cnn_of_large_images_is_narrower() -> None:
    for n in (20_000, 280_000):
        model = build("matched_cnn", (1, 512, 512), 10, n_parameters=n)
        neuron = model.dense[0].in_features + 1 + 10
        assert abs(count_parameters(model) - n) <= neuron / 2


@pytest.mark.parametrize(
    ("name", "shape"), [(n, s) for n in MODELS if n not in BIG for s in ((1, 28, 28), (3, 28, 28))]
)
def test_parameters_are_contiguous(name: str, shape: tuple[int, int, int]) -> None:
    """Else they make no one vector, as LBFGS and others want them."""
    options = {} if name.endswith("_autoencoder") else {"n_classes": 3}
    model = build(name, shape, **options)
    assert len(torch.nn.utils.parameters_to_vector(model.parameters())) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kernel_sizes", [(4, 4), (5,)])
def test_kernels_that_keep_no_size(kernel_sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="kernel_sizes must be 2 odd numbers, one for each of channels, got"):
        BaselineCNN((1, 28, 28), 10, (8, 8), (16,), kernel_sizes=kernel_sizes)


@pytest.mark.parametrize(
    "name", [n for n in MODELS if n not in BIG and not n.endswith("_autoencoder") and "scae" not in n]
)
@pytest.mark.parametrize(("shape", "n_classes"), [((1, 28, 28), 10), ((3, 25, 32), 2), ((2, 40, 29), 7)])
def test_any_size_channels_and_classes(name: str, shape: tuple[int, int, int], n_classes: int) -> None:
    model = build(name, shape, n_classes).eval()
    with torch.no_grad():
        output = model(torch.rand(2, *shape))
    if isinstance(output, SegmentationOutput):
        assert output.scores.shape == (2, n_classes, *shape[1:])
        decoder = getattr(model, "decoder", None)
        assert decoder is None or decoder(output.capsules[-1]).shape == (2, *shape)
        return
    assert output.scores.shape == (2, n_classes)
    if output.capsules and name not in ("heinsen_capsnet", "deepcaps", "deepcaps_small"):  # of no map, and of two
        assert output.capsules[-2].pose.shape[1:4] == model.map_shape
    if getattr(model, "decoder", None) is not None:
        torch.testing.assert_close(output.scores, output.capsules[-1].pose.norm(dim=-1))  # lengths, as they are
        assert model.decoder(output.capsules[-1].pose).shape == (2, *shape)


@pytest.mark.parametrize("name", ["capsnet_stacked", "matched_cnn", "matrix_capsnet_small"])
def test_state_dict_is_plain(name: str) -> None:
    model = build(name, (1, 22, 24), 3)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = build(name, (1, 22, 24), 3)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.rand(2, 1, 22, 24)
    torch.testing.assert_close(other.eval()(x).scores, model.eval()(x).scores)


def test_paper_settings_of_cifar_build() -> None:
    model = build("capsnet", (3, 24, 24), 10, padding=4, n_types=64, leaky=True, decoder=None, channels=8)
    assert model.map_shape == (64, 12, 12) and model.classes.routing.leaky


def test_iterations_and_couplings_of_one_call() -> None:
    model = build("capsnet_small", (1, 20, 20), 3)
    x = torch.rand(2, 1, 20, 20)
    one = model(x, n_iters=1, return_coupling=True).capsules[-1]
    torch.testing.assert_close(one.coupling, torch.full_like(one.coupling, 1 / 3))
    assert model(x).capsules[-1].coupling is None


def test_positions_compete_in_convolutional_layers_alone() -> None:
    model = build("matrix_capsnet_small", (1, 24, 24), 3, settings="paper", compete="positions")
    given = build("matrix_capsnet_small", (1, 24, 24), 3, settings=model.hidden[0].routing.settings)
    for one in (model, given):
        competes = [layer.routing.settings.compete for layer in (*one.hidden, one.classes)]
        assert competes == ["positions", "positions", "all"]
    assert len({layer.routing.settings for layer in (*given.hidden, model.hidden[0])}) == 1
    assert model(torch.rand(2, 1, 24, 24)).scores.shape == (2, 3)


def test_they_are_of_every_routing() -> None:
    model, x = build("capsnet_stacked", (1, 24, 24), 3), torch.rand(2, 1, 24, 24)
    _, hidden, classes = model(x, n_iters=1, return_coupling=True).capsules
    torch.testing.assert_close(hidden.coupling, torch.full_like(hidden.coupling, 1 / 16))
    torch.testing.assert_close(classes.coupling, torch.full_like(classes.coupling, 1 / 3))


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet", (1, 28, 28), {}, "model must be one of affine_autoencoder, .*; got 'resnet'"),
        (
            "capsnet",
            (1, 28, 28),
            {"depth": 3},
            "capsnet must be one of channels, .*; or of its routing n_iters, .*'depth'",
        ),
        ("matched_cnn", (1, 28, 28), {"depth": 3}, "model matched_cnn: .*unexpected keyword argument 'depth'"),
        ("matrix_capsnet", (1, 28, 28), {"depth": 3}, "matrix_capsnet must be one of A, .* n_iters, .*'depth'"),
        ("matrix_capsnet", (1, 28, 28), {"normalize": "no"}, "normalize must be True or False, got 'no'"),
        ("matrix_capsnet", (1, 28, 28), {"routing": "dynamic", "normalize": True}, "normalize must be False with dyn"),
        ("matrix_capsnet", (1, 28, 28), {"stem": ({"depth": 3},)}, "a field of stem.0. must be one"),
        ("matrix_capsnet", (1, 28, 28), {"initial": "mine"}, "initial must be one of half-active, released"),
        ("matrix_capsnet", (1, 28, 28), {"initial": "released", "routing": "dynamic"}, "initial must be half-active"),
        ("matrix_capsnet", (1, 28, 28), {"pose": "row"}, "pose must be one of matrix, vector"),
        (
            "matrix_capsnet",
            (1, 28, 28),
            {"routing": "dynamic", "pose": "vector"},
            "options of matrix_capsnet .* got 'pose'",
        ),
        ("matrix_capsnet", (1, 28, 28), {"routing": "dynamic", "coordinates": "up"}, "coordinates must be one of "),
        ("capsnet", (1, 28, 28), {"padding": "same"}, "padding must be an integer of at least 0, got 'same'"),
        ("plain_autoencoder", (1, 28, 28), {"hidden": 5}, "hidden must be the widths of layers, got 5"),
        ("template_autoencoder", (1, 28, 28), {"most_scale": "2"}, "most_scale must be a number, got '2'"),
        (
            "matrix_capsnet",
            (1, 28, 28),
            {"routing": "mine"},
            f"routing must be one of {', '.join(ROUTINGS)}; got 'mine'",
        ),
        (
            "matrix_capsnet",
            (1, 28, 28),
            {"initial": "released", "beta_u_init": 3.0},
            "beta_u_init must be left to initial='released', got 3.0",
        ),
        ("capsnet_small", (1, 28, 28), {"standardize": True, "primary_scale": 0.0}, "scale must be positive, got 0.0"),
        ("matrix_capsnet", (1, 20, 20), {}, r"image_shape .* must be larger, got \(1, 20, 20\): compete must be 'all'"),
        ("matrix_capsnet", (1, 28, 28), {"B": 0}, "B must be an integer of at least 1, got 0"),
        ("matrix_capsnet", (1, 28, 28), {"pose_scale": 5.0}, "pose_scale must be left to the layers"),
        ("capsnet_small", (1, 28, 28), {"pose_scale": 5.0, "routing": "em"}, "pose_scale must be left to the layers"),
        (
            "matrix_capsnet",
            (1, 16, 28),
            {},
            r"image_shape .* larger, got \(1, 16, 28\): kernel_size must fit into the map, got 3 where H=2",
        ),
        (
            "capsnet_small",
            (1, 16, 28),
            {},
            r"image_shape .* larger, got \(1, 16, 28\): a 9×9 kernel does not fit into a map of 8×20",
        ),
        (
            "capsnet_small",
            (1, 8, 28),
            {},
            r"image_shape .* larger, got \(1, 8, 28\): a 9×9 kernel does not fit into a map of 8×28",
        ),
        (
            "capsnet_stacked",
            (1, 20, 28),
            {},
            r"image_shape .* larger, got \(1, 20, 28\): a 3×3 kernel does not fit into a map of 2×6",
        ),
        ("capsnet", 28, {}, r"image_shape must be \(channels, height, width\), got 28"),
        ("capsnet", (1, 28, 28), {"d_class": 0}, "d_class must be an integer of at least 1, got 0"),
        ("capsnet", (1, 28, 28), {"d_primary": 0}, "d_primary must be an integer of at least 1, got 0"),
        ("capsnet", (1, 28, 28), {"decoder": False}, "decoder must list layers, got False"),
        ("capsnet", (1, 28, 28), {"hidden": 2}, "hidden must list layers, got 2"),
        ("capsnet", (1, 28, 28), {"hidden": [16]}, r"hidden\[0\] must be a HiddenCaps or a dict of its fields, got 16"),
        ("capsnet", (1, 28, 28), {"stem": 2}, "stem must list layers, got 2"),
        ("capsnet", (1, 28, 28), {"stem": [64]}, r"stem\[0\] must be a HiddenConv or .*, got 64"),
        (
            "capsnet",
            (1, 28, 28),
            {"stem": [{}, {"width": 64}]},
            r"a field of stem\[1\] must be one of channels, kernel_size, stride, padding; got 'width'",
        ),
        (
            "capsnet",
            (1, 28, 28),
            {"stem": [HiddenConv(0)]},
            r"stem\[0\].channels must be an integer of at least 1, got 0",
        ),
        (
            "capsnet",
            (1, 28, 28),
            {"stem": [{"padding": -1}]},
            r"stem\[0\].padding must be an integer of at least 0, got -1",
        ),
        (
            "capsnet",
            (1, 24, 28),
            {"stem": [{"kernel_size": 18, "padding": 0}]},
            r"image_shape .* larger, got \(1, 24, 28\): a 18×18 kernel does not fit into a map of 16×20",
        ),
        ("capsnet", (1, 28, 28), {"decoder": [0.5]}, "each width of decoder must be an integer of at least 1, got 0.5"),
        ("capsnet", (1, 28, 28), {"primary_scale": "1"}, "primary_scale must be positive, got '1'"),
        ("capsnet", (1, 28, 28), {"leaky": "no"}, "leaky must be True or False, got 'no'"),
        ("capsnet", (1, 28, 28), {"bias": 0}, "bias must be True or False, got 0"),
        ("capsnet", (1, 28, 28), {"standardize": "no"}, "standardize must be True or False, got 'no'"),
        ("matrix_capsnet", (2, 32, 32), {"standardize": "no"}, "standardize must be True or False, got 'no'"),
        ("norb_cnn", (2, 32, 32), {"standardize": "no"}, "standardize must be True or False, got 'no'"),
        ("capsnet", (1, 28, 28), {"hidden": [{"n_types": 0}]}, r"hidden\[0\].n_types must be .* at least 1, got 0"),
        ("local_autoencoder", (1, 28, 28), {"field": 40}, "field must be at most 28 in images of 28×28, got 40"),
        ("template_autoencoder", (1, 28, 28), {"channels": (32,)}, r"channels must be two numbers, got \(32,\)"),
        ("capsnet", (28, 28), {}, r"image_shape must be \(channels, height, width\), got \(28, 28\)"),
        ("matched_cnn", (1, 7, 28), {}, "image_shape must be at least 8×8"),
        ("matched_cnn", (1, 28, 28), {"n_parameters": 10}, "n_parameters must be at least"),
        ("baseline_cnn", (1, 28, 28), {"dropout": True}, "dropout must be .*, got True"),
        ("capsnet", (1, 28, 28), {"bias_init": True}, "bias_init must be a number, got True"),
        ("capsnet", (1, 28, 28), {"weight_std": math.inf}, "weight_std must be finite, got inf"),
        (
            "capsnet",
            (1, 28, 28),
            {"hidden": [{"n_type": 3}]},
            r"a field of hidden\[0\] must be one of n_types, .*; got",
        ),
        (
            "capsnet_stacked",
            (1, 28, 28),
            {"stride": 3},
            "options of capsnet_stacked must be one of channels, .*'stride'",
        ),
        ("matrix_capsnet", (1, 32, 32), {"stride": 3}, "options of matrix_capsnet must be one of A, .*'stride'"),
    ],
)
def test_what_cannot_be_built(name: str, shape: tuple[int, int, int], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, shape, 10, **options)


@pytest.mark.parametrize("name", sorted(MODELS.keys() - set(BIG)))
def test_images_that_are_no_tensor(name: str) -> None:
    model = build(name, (1, 28, 28), 10)
    with pytest.raises(ValueError, match="x must be a torch.Tensor, got a ndarray"):
        model(np.zeros((1, 1, 28, 28), np.float32))


def test_classifiers_want_a_number_of_classes() -> None:
    with pytest.raises(ValueError, match="n_classes must be given for capsnet, got None"):
        build("capsnet", (1, 28, 28))
    assert build("template_autoencoder", (1, 12, 12)).n_capsules == 16


def test_iterations_of_matrix_capsules_reach_every_layer() -> None:
    model, x = build("matrix_capsnet_small", (1, 24, 24), 3), torch.rand(2, 1, 24, 24)
    layers = (*model.hidden, model.classes)
    wanted = model.primary(model.conv(model.standardize(x)).clamp_min(0))
    for layer in layers:
        wanted = layer(wanted, n_iters=1)
    torch.testing.assert_close(model(x, n_iters=1).scores, wanted.activation)
    assert not torch.allclose(model(x).scores, wanted.activation, atol=1e-4)


def test_the_scale_of_the_primary_capsules_reaches_them() -> None:
    assert build("capsnet_small", (1, 28, 28), 10, primary_scale=0.125).primary.scale == 0.125


def test_cnns_that_standardize_do_not_see_light_and_contrast() -> None:
    x = torch.rand(2, 2, 32, 32)
    for name in ("norb_cnn", "matched_cnn"):
        model = build(name, (2, 32, 32), 5, standardize=True).eval()
        torch.testing.assert_close(model(0.5 * x + 0.25).scores, model(x).scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in BIG])
def test_models_are_loaded_into_what_was_made_on_no_device(name: str) -> None:
    torch.manual_seed(1)
    model, x = build(name, (1, 28, 28), 3).eval(), torch.rand(2, 1, 28, 28)
    empty = build(name, (1, 28, 28), 3).eval().to("meta")
    assert empty(x.to("meta"))[0].is_meta
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    torch.testing.assert_close(filled(x)[0], model(x)[0])


#: The one behind a backbone runs that when it is made; the poisoned memory of these tests is on no other device.
@pytest.mark.parametrize("name", [name for name in MODELS if name not in (*BIG, "capsnet_backbone")])
def test_models_given_memory_and_values_start_as_new_ones(name: str) -> None:
    """As trainers of large models do; the numbers of a model are drawn in another order then."""
    torch.manual_seed(1)
    new = build(name, (1, 28, 28), 60)
    with torch.device("meta"):
        model = build(name, (1, 28, 28), 60)
    model.to_empty(device="cpu")
    for value in model.state_dict().values():
        value.fill_(torch.nan if value.is_floating_point() else -1)
    model.reset_parameters()
    for key, value in model.state_dict().items():
        wanted = new.state_dict()[key].float().square().mean().sqrt()
        torch.testing.assert_close(value.float().square().mean().sqrt(), wanted, rtol=0.25, atol=0, msg=key)


def test_released_initial_values_are_those_of_the_authors_code() -> None:
    """Widths before truncated normals are cut at two of them, and constants, in google-research's capsule_em."""
    model = build("matrix_capsnet", (2, 32, 32), 5, initial="released")
    poses, activations = model.primary.weight.split((32 * 16, 32))
    weights = {0.05: [model.conv.weight], 0.5: [poses], 3.0: [activations]}
    weights |= {0.3: [layer.weight for layer in model.hidden], 0.01: [model.classes.weight]}
    for width, parts in weights.items():
        for part in parts:
            assert part.abs().max() <= 2 * width
            assert part.detach().std().item() / width == pytest.approx(0.8796, abs=0.05)  # of a normal that is cut so
    constants = {0.1: [model.conv.bias], -1.0: [model.primary.activation_bias], 2.0: [model.classes.beta_u]}
    constants |= {0.5: [getattr(layer, beta) for layer in model.hidden for beta in ("beta_u", "beta_a")]}
    constants |= {1.0: [model.classes.beta_a]}
    for wanted, parts in constants.items():
        for part in parts:
            torch.testing.assert_close(part.detach(), torch.full_like(part, wanted), rtol=0, atol=0)


def test_released_initial_values_activate_as_many_capsules_of_vectors() -> None:
    """A number of a vote has 16 terms instead of four: of as wide weights next to no capsule would be active."""
    images = torch.rand(8, 2, 32, 32)
    found = []
    for pose in ("matrix", "vector"):
        torch.manual_seed(0)
        model = build("matrix_capsnet", (2, 32, 32), 5, initial="released", pose=pose)
        with torch.no_grad():
            found.append([c.activation.mean().item() for c in model(images).capsules])
    for of_matrices, of_vectors in zip(*found, strict=True):
        assert 0.7 < of_vectors / of_matrices < 2, found


def test_a_seed_gives_the_first_convolution_that_it_always_gave() -> None:
    torch.manual_seed(5)
    nn.Conv2d(1, 4, 9)
    wanted = torch.empty(4, 1, 9, 9)
    truncated_normal_(wanted, (2 / 81) ** 0.5)
    torch.manual_seed(5)
    torch.testing.assert_close(ReLUConv2d(1, 4, 9).weight.detach(), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("n_hidden", [1, 2])
def test_a_capsnet_that_routes_by_em_starts_half_active(n_hidden: int) -> None:
    torch.manual_seed(0)
    options = {"routing": "em", "pose": "vector", "hidden": ({"n_types": 8},) * n_hidden}
    model = build("capsnet_small", (1, 28, 28), 10, **options)
    for layer in model(torch.rand(8, 1, 28, 28)).capsules[1:]:
        assert 0.35 < layer.activation.mean() < 0.6


def test_the_released_bias_of_activations_is_no_initial_value() -> None:
    model = build("matrix_capsnet_small", (1, 28, 28), 5, initial="released")
    model.primary.reset_parameters()
    assert model.primary.activation_bias == -1


def test_released_initial_values_are_drawn_anew() -> None:
    model = build("matrix_capsnet_small", (2, 28, 28), 5, initial="released")
    first = {name: value.clone() for name, value in model.state_dict().items()}
    model.reset_parameters()
    assert (model.conv.weight != first["conv.weight"]).any()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value.square().mean(), first[name].square().mean(), rtol=0.2, atol=0)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in BIG])
def test_models_are_exported_for_any_batch(name: str) -> None:
    options = {"standardize": True} if name == "capsnet_small" else {}
    model = build(name, (1, 28, 28), 3, **options).eval()
    # Sixteen layers of capsules behind one another amplify what convolutions round in another way.
    dtype = torch.float64 if name.startswith("segcaps") else torch.float32
    model, batch = model.to(dtype), torch.export.Dim("B")
    exported = torch.export.export(model, (torch.rand(2, 1, 28, 28, dtype=dtype),), dynamic_shapes=({0: batch},))
    x = torch.rand(5, 1, 28, 28, dtype=dtype)
    torch.testing.assert_close(exported.module()(x)[0], model(x)[0])


@pytest.mark.parametrize("name", ["capsnet_small", "matched_cnn"])
def test_images_of_another_shape(name: str) -> None:
    model = build(name, (1, 28, 28), 10)
    with pytest.raises(ValueError, match=r"x must be \[B, C=1, H, W\], got shape \[1, 3, 28, 28\]"):
        model(torch.zeros(1, 3, 28, 28))
    with pytest.raises(ValueError, match=r"x must be images of \[1, 28, 28\], got \[1, 32, 32\]"):
        model(torch.zeros(1, 1, 32, 32))


@pytest.mark.parametrize("pool", [False, True])
def test_a_cnn_layer_by_layer(pool: bool) -> None:
    cnn = BaselineCNN((2, 8, 12), 3, (3, 4), (5,), kernel_sizes=(3, 5), pool=pool).eval()
    x = torch.rand(2, 2, 8, 12)
    maps = x
    for conv, padding in zip(cnn.convs, (1, 2), strict=True):
        maps = torch.conv2d(maps, conv.weight, conv.bias, padding=padding).clamp_min(0)
        if pool:  # the largest of four
            rows = torch.maximum(maps[:, :, ::2], maps[:, :, 1::2])
            maps = torch.maximum(rows[..., ::2], rows[..., 1::2])
    (dense,) = cnn.dense
    hidden = (maps.flatten(1) @ dense.weight.T + dense.bias).clamp_min(0)
    torch.testing.assert_close(cnn(x).scores, hidden @ cnn.logits.weight.T + cnn.logits.bias)
    assert not torch.equal(cnn.train()(x).scores, cnn.eval()(x).scores)  # dropout
