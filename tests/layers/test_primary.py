"""Primary capsules: what a capsule is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torchcaps.layers import ConvCaps, DenseCaps, DynamicRouting, EMRouting, MatrixPrimaryCaps, PrimaryCaps
from torchcaps.models import build
from torchcaps.ops import squash


def test_a_capsule_is_the_channels_of_one_type_at_one_place() -> None:
    """Five public codes group neighbouring pixels of one channel instead."""
    layer = PrimaryCaps(3, 4, 8, 3, stride=2, scale=0.25, bias_init=0.1)
    x = torch.randn(2, 3, 9, 7)
    kernel = layer.weight.permute(3, 2, 0, 1)
    features = 0.25 * F.conv2d(x, kernel, stride=2) + 0.1  # [B, 32, 4, 3]
    pose = layer(x).pose
    assert pose.shape == (2, 4, 4, 3, 8)
    for capsule_type in range(4):
        for row, column in ((0, 0), (1, 2), (3, 1)):
            s = features[:, 8 * capsule_type : 8 * capsule_type + 8, row, column]
            torch.testing.assert_close(pose[:, capsule_type, row, column], squash(s))


@pytest.mark.parametrize(("size", "wanted"), [((20, 20), (6, 6)), ((9, 30), (1, 11)), ((17, 12), (5, 2))])
def test_output_size_is_that_of_the_output(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    layer = PrimaryCaps(1, 2, 3, 9, stride=2)
    assert layer.output_size(*size) == wanted
    assert layer(torch.zeros(1, 1, *size)).pose.shape == (1, 2, *wanted, 3)


def test_rows_and_columns_may_differ() -> None:
    x, sizes = torch.randn(2, 3, 7, 9), {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 0)}
    vectors, matrices = PrimaryCaps(3, 2, 4, **sizes), MatrixPrimaryCaps(3, 2, **sizes)
    library = {"stride": (1, 2), "padding": (1, 0)}
    wanted = F.conv2d(x, vectors.weight.permute(3, 2, 0, 1), **library).unflatten(1, (2, 4)).movedim(2, -1)
    torch.testing.assert_close(vectors(x).pose, squash(wanted))
    wanted = F.conv2d(x, matrices.weight, **library)[:, :32].unflatten(1, (2, 4, 4)).movedim((2, 3), (-2, -1))
    torch.testing.assert_close(matrices(x).pose, wanted)
    assert vectors.output_size(7, 9) == matrices.output_size(7, 9) == wanted.shape[2:4] == (8, 4)


def test_sizes_may_be_integers_of_numpy() -> None:
    three = np.int64(3)
    maps = PrimaryCaps(1, three, 3, three, stride=np.int32(2))(torch.rand(1, 1, 12, 13))
    assert maps.pose.shape == (1, 3, 5, 6, 3)
    assert ConvCaps(three, 2, 3, 4, three)(maps).pose.shape == (1, 2, 3, 4, 4)
    assert build("capsnet_small", (np.int64(1), np.int64(28), 28), three).image_shape == (1, 28, 28)


def test_initial_capsules_have_length_one_half() -> None:
    features = torch.randn(4, 64, 12, 12).relu()
    features = features * (0.2 / features.square().mean()).sqrt()
    for scale in (1.0, 1 / 32):
        lengths = PrimaryCaps(64, 16, 8, 5, scale=scale)(features).activation
        assert 0.4 < lengths.mean() < 0.6


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 2, 9, 9), r"x must be \[B, C=3, H, W\], got shape \[1, 2, 9, 9\]"),
        (torch.zeros(3, 9, 9), r"x must be \[B, C=3, H, W\], got shape \[3, 9, 9\]"),
        (
            torch.zeros(1, 3, 9, 9, dtype=torch.uint8),
            "x must be floating point, got torch.uint8: torchcaps.data.to_float",
        ),
        (torch.zeros(1, 3, 4, 9), "a 5×5 kernel does not fit into a map of 4×9"),
    ],
)
def test_wrong_maps(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrimaryCaps(3, 2, 4, 5)(x)


@pytest.mark.parametrize("name", ["scale", "mean_square"])
def test_factors_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0.0"):
        PrimaryCaps(3, 2, 4, 5, **{name: 0.0})


@pytest.mark.parametrize("name", ["in_channels", "n_types", "d_out", "kernel_size", "stride"])
def test_sizes_must_be_positive(name: str) -> None:
    sizes = {"in_channels": 1, "n_types": 1, "d_out": 1, "kernel_size": 1, "stride": 1} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
        PrimaryCaps(**sizes)


def test_initial_weights_are_as_wide_as_asked_for() -> None:
    torch.manual_seed(0)
    made = [
        PrimaryCaps(16, 8, 8, 5, weight_std=0.3),
        DenseCaps(50, 10, 8, 16, routing=DynamicRouting(weight_std=0.3)),
        DenseCaps(50, 10, 16, 16, routing=EMRouting(weight_std=0.3)),
        ConvCaps(8, 8, 16, 16, 3, routing=EMRouting(weight_std=0.3)),
    ]
    for layer in made:
        std = dict(layer.named_parameters())["weight"].std().item()
        assert std == pytest.approx(0.3, rel=0.15)  # cut off at two of them


def test_the_first_step_of_adam_does_not_saturate() -> None:
    """As of README's features: without the factor that step is 5 in each number, whatever the initial weights."""
    torch.manual_seed(0)
    features, after = torch.rand(4, 64, 20, 20), []
    for scale in (None, 1.0):
        layer = PrimaryCaps(64, 8, 8, 9, stride=2, scale=scale)
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        (-layer(features).activation.sum()).backward()
        optimizer.step()
        after.append(layer(features).activation.mean().item())
    assert after[0] < 0.85 and after[1] > 0.98


def test_the_factor_follows_the_number_of_inputs_and_is_kept_with_the_weights() -> None:
    assert [PrimaryCaps(channels, 8, 8, 9).scale.item() for channels in (1, 64, 256)] == [1, 1 / 8, 1 / 32]
    assert PrimaryCaps(64, 8, 8, 9, weight_std=0.088).scale == 1
    x = torch.rand(2, 64, 10, 10)
    trained, other = PrimaryCaps(64, 2, 4, 9, scale=1 / 32), PrimaryCaps(64, 2, 4, 9)
    other.load_state_dict(trained.state_dict())
    torch.testing.assert_close(other(x).pose, trained(x).pose)
    assert "scale=0.03125" in repr(other)


def test_weights_of_before_there_was_a_default_factor_compute_what_they_did() -> None:
    x, layer = torch.rand(2, 64, 10, 10), PrimaryCaps(64, 2, 4, 9)
    old = {name: value for name, value in PrimaryCaps(64, 2, 4, 9, scale=1.0).state_dict().items() if name != "scale"}
    layer.load_state_dict(old)
    wanted = F.conv2d(x, old["weight"].permute(3, 2, 0, 1)).unflatten(1, (2, 4)).movedim(2, -1)
    torch.testing.assert_close(layer(x).pose, squash(wanted))
    layer.reset_parameters()
    assert layer.scale == 1 / 4
