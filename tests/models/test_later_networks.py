"""Networks of later works: Efficient-CapsNet, its parameters and layers; and all of them exported."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torchcaps import build
from torchcaps.layers import DepthwisePrimaryCaps
from torchcaps.models import EfficientCapsNet
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import exponential_squash, self_attention_routing


@pytest.mark.parametrize(
    ("trunk", "shape", "n_classes", "wanted", "decoder"),
    [
        # Convolutions 5·5·32 + 32, 9·32·64 + 64, 9·64·64 + 64, 9·64·128 + 128 and two numbers a channel for each
        # normalization; primary 81·128 + 128; classes 16·10·8·16 + 16·10.
        ("mnist", (1, 28, 28), 10, 832 + 18_496 + 36_928 + 73_856 + 576 + 10_496 + 20_640, 1_411_344),
        ("smallnorb", (2, 48, 48), 5, 151_664, None),
        ("multimnist", (1, 36, 36), 10, 154_656, 1_936_144),
    ],
)
def test_has_the_papers_parameters(
    trunk: str, shape: tuple[int, int, int], n_classes: int, wanted: int, decoder: int | None
) -> None:
    model = build("efficient_capsnet", shape, n_classes, trunk=trunk, decoder=None)
    assert count_parameters(model) == wanted == {"mnist": 161_824}.get(trunk, wanted)
    assert model.map_shape == (16, 1, 1)
    if decoder is not None:
        assert count_parameters(build("efficient_capsnet", shape, n_classes, trunk=trunk)) - wanted == decoder


@pytest.mark.parametrize("trunk", ["mnist", "smallnorb"])
def test_layer_by_layer(trunk: str) -> None:
    torch.manual_seed(0)
    model = EfficientCapsNet((2, 25, 29), 3, trunk=trunk, decoder=None).double().eval()
    x = features = torch.rand(2, 2, 25, 29, dtype=torch.float64)
    for norm in model.norms:  # at first a batch normalization changes nothing, as evaluated
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    for conv, norm, stride in zip(
        model.convs, model.norms, (1, 1, 1, 2) if trunk == "mnist" else (2, 1, 1, 2), strict=True
    ):
        features = F.conv2d(features, conv.weight, conv.bias, stride=stride)
        if trunk == "mnist":
            features = F.batch_norm(
                features.clamp_min(0), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-3
            )
        else:
            features = torch.where(features > 0, features, 0.3 * features)
            features = F.instance_norm(features, weight=norm.weight, bias=norm.bias, eps=1e-3)
    # Each number of the 16 capsules of 8 is one channel's map times one filter.
    filters = model.primary.conv.weight[:, 0]
    u = (torch.einsum("bchw,chw->bc", features, filters) + model.primary.conv.bias).view(2, 16, 8)
    lower, classes = model(x).capsules
    torch.testing.assert_close(lower.pose.flatten(1, 3), exponential_squash(u))
    assert model.classes.scale == 1
    wanted = self_attention_routing(exponential_squash(u), model.classes.weight, prior_bias=model.classes.prior_bias)
    torch.testing.assert_close(classes.pose, wanted.pose)
    torch.testing.assert_close(model(x).scores, wanted.activation)


def test_images_of_any_size_and_other_routings() -> None:
    for trunk in ("mnist", "smallnorb", "multimnist"):
        assert EfficientCapsNet((3, 40, 33), 4, trunk=trunk, decoder=None)(torch.rand(2, 3, 40, 33)).scores.shape == (
            2,
            4,
        )
    for name in ("dynamic", "uniform"):
        model = build("efficient_capsnet", (1, 28, 28), 10, routing=name, decoder=None)
        assert model(torch.rand(2, 1, 28, 28)).scores.shape == (2, 10)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image_shape .* must be larger, got \(1, 8, 8\)"):
        EfficientCapsNet((1, 8, 8))
    with pytest.raises(ValueError, match=r"image_shape .* must be larger, got \(1, 21, 21\): instance normalization"):
        EfficientCapsNet((1, 21, 21), trunk="smallnorb")
    with pytest.raises(ValueError, match="trunk must be one of mnist, multimnist, smallnorb; got 'cifar'"):
        EfficientCapsNet(trunk="cifar")
    with pytest.raises(ValueError, match="in_channels must be a multiple of d_out=7, got 128"):
        EfficientCapsNet(d_primary=7)
    with pytest.raises(ValueError, match="in_channels must be a multiple of d_out=4, got 6"):
        DepthwisePrimaryCaps(6, 4, 3)
    with pytest.raises(ValueError, match="decoder must list integers of at least 1, got 512"):
        EfficientCapsNet(decoder=512)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("efficient_capsnet", (2, 23, 25), {"trunk": "smallnorb", "decoder": None}),
        ("attention_capsnet", (2, 19, 17), {"trunk": "simple", "channels": 4, "n_types": 2}),
        ("self_routing_resnet", (2, 11, 13), {"n_types": 2, "d_pose": 4, "width": 2, "depth": 2}),
        ("heinsen_capsnet", (2, 39, 35), {"channels": 4, "n_parts": 3}),
        ("deepcaps_small", (2, 20, 17), {"channels": 4, "n_types": 2, "d_pose": (2, 3, 3, 3)}),
        ("segcaps_small", (2, 24, 16), {"n_types": (1, 2, 2), "d_pose": (2, 3, 4)}),
        ("variational_bayes_capsnet", (2, 21, 25), {"A": 3, "B": 2, "C": 3, "D": 2, "d_pose": 4}),
    ],
)
def test_networks_of_later_works_are_exported(
    name: str, shape: tuple[int, int, int], options: dict[str, object]
) -> None:
    model, x = build(name, shape, 3, **options).eval(), torch.rand(4, *shape)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},)).module()
    for n in (1, 4, 9):
        given = torch.rand(n, *shape)
        torch.testing.assert_close(program(given).scores, model(given).scores)
