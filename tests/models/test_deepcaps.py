"""DeepCaps: its parameters, its layers one by one in plain torch, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps import build
from torchcaps.models import DeepCaps
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import dynamic_routing, dynamic_routing_3d, squash

SMALL: dict[str, Any] = {"channels": 5, "n_types": 3, "d_pose": (2, 4, 4, 4), "d_class": 6}


@pytest.mark.parametrize(
    ("shape", "wanted"), [((3, 64, 64), 13_359_424), ((3, 32, 32), 8_444_224), ((1, 28, 28), 8_441_920)]
)
def test_has_the_published_parameters(shape: tuple[int, int, int], wanted: int) -> None:
    with torch.device("meta"):
        model = build("deepcaps", shape, 10, decoder=None)
    assert count_parameters(model) == wanted
    # A convolution and its normalization; one cell of 128 channels, two of 256; the 3-D routing's shared kernel and
    # bias; the classes' matrices and bias.
    height = -(-shape[1] // 8)
    n_lower = 32 * (height**2 + (-(-height // 2)) ** 2)
    first = shape[0] * 9 * 128 + 128 + 256
    cells = 4 * 9 * 128 * 128 + (9 * 128 * 256 + 3 * 9 * 256 * 256) + 4 * 9 * 256 * 256 + 3 * 9 * 256 * 256
    assert wanted == first + cells + 9 * 8 * 256 + 256 + n_lower * 10 * 8 * 32 + 10 * 32


def conv_capsules(x: Tensor, layer: Any, stride: int) -> Tensor:
    """Squash a convolution over all types and numbers, of maps ``[B, T·d_in, H, W]``."""
    n_types, n_out, d_in, d_out = layer.n_types, layer.n_out, layer.d_in, layer.d_out
    kernel = (
        layer.weight.view(n_types, 3, 3, n_out, d_in, d_out).permute(3, 5, 0, 4, 1, 2).reshape(n_out * d_out, -1, 3, 3)
    )
    edges = [max(0, (-(-extent // stride) - 1) * stride + 3 - extent) for extent in x.shape[2:]]
    x = F.pad(x, (edges[1] // 2, edges[1] - edges[1] // 2, edges[0] // 2, edges[0] - edges[0] // 2))
    s = F.conv2d(x, kernel * layer.scale / n_out, stride=stride).unflatten(1, (n_out, d_out))
    return squash(s, dim=2).flatten(1, 2)


@pytest.mark.parametrize("map_iters", [1, 3])
def test_layer_by_layer(map_iters: int) -> None:
    torch.manual_seed(0)
    model: Any = DeepCaps((2, 20, 17), 3, map_iters=map_iters, decoder=None, **SMALL).double().eval()
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(parameter)
    images = torch.rand(2, 2, 20, 17, dtype=torch.float64)
    x = F.conv2d(images, model.conv.weight, model.conv.bias, padding=1).clamp_min(0)
    norm = model.norm
    x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-3)
    maps = []
    for place, cell in enumerate(model.cells):
        x = conv_capsules(x, cell.first, 2)
        deep = conv_capsules(conv_capsules(x, cell.second, 1), cell.last, 1)
        if place < 3:
            skip = conv_capsules(x, cell.skip, 1)
        else:  # one kernel for all types
            kernel = cell.skip.weight.view(3, 3, 3, 4, 4).permute(2, 4, 3, 0, 1).reshape(12, 4, 3, 3) * cell.skip.scale
            votes = F.conv2d(x.unflatten(1, (3, 4)).flatten(0, 1), kernel, padding=1).view(2, 3, 3, 4, *x.shape[2:])
            routed = dynamic_routing_3d(votes, n_iters=map_iters, bias=cell.skip.bias)
            skip = routed.pose.movedim(4, 2).flatten(1, 2)
        x = deep + skip
        maps.append(x.unflatten(1, (3, -1)).movedim(2, 4))
    output = model(images)
    assert [each.shape[2:4] for each in maps] == [(10, 9), (5, 5), (3, 3), (2, 2)]
    for got, wanted in zip(output.capsules, maps, strict=False):
        torch.testing.assert_close(got.pose, wanted)
        torch.testing.assert_close(got.activation, wanted.norm(dim=-1))
    lower = torch.cat((maps[3].flatten(1, 3), maps[2].flatten(1, 3)), dim=1) * model.classes.scale
    wanted = dynamic_routing(lower, model.classes.weight, bias=model.classes.bias, backend="reference")
    torch.testing.assert_close(output.capsules[-1].pose, wanted.pose)
    torch.testing.assert_close(output.scores, wanted.activation)


def test_couplings_are_those_of_the_two_routed_layers() -> None:
    model = DeepCaps((1, 16, 16), 3, decoder=None, **SMALL)
    output = model(torch.rand(2, 1, 16, 16), return_coupling=True)
    shapes = [None if each.coupling is None else tuple(each.coupling.shape) for each in output.capsules]
    assert shapes == [None, None, None, (2, 1, 1, 3, 3), (2, 3 * (4 + 1), 3)]
    even = model(torch.rand(2, 1, 16, 16), n_iters=1, return_coupling=True).capsules
    assert even[3].coupling is not None and (even[3].coupling == 1 / 3).all()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_capsules_of_the_small_one_are_alive_in_all_layers(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model: Any = build("deepcaps_small", shape, 10).train()
    output = model(torch.rand(8, *shape))
    for capsules in output.capsules:
        assert 0.2 < capsules.activation.mean() < 1.5
    images = model.decoder(output.capsules[-1], torch.arange(8))
    (output.scores.sum() + images.sum()).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(each is not None and each.isfinite().all() and each.any() for each in gradients)


def test_another_routing_of_the_classes() -> None:
    for name in ("uniform", "self_attention"):
        model = build("deepcaps_small", (1, 12, 12), 3, routing=name)
        assert model(torch.rand(2, 1, 12, 12)).scores.shape == (2, 3)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"d_pose must list four sizes, got \(4, 8\)"):
        DeepCaps(d_pose=(4, 8))
    with pytest.raises(ValueError, match=r"d_pose must end in two equal sizes, .* got \(4, 8, 8, 4\)"):
        DeepCaps(d_pose=(4, 8, 8, 4))
    with pytest.raises(ValueError, match="map_iters must be an integer of at least 1, got 0"):
        DeepCaps(map_iters=0)
    with pytest.raises(ValueError, match=r"x must be images of \[1, 12, 12\], got \[1, 12, 13\]"):
        build("deepcaps_small", (1, 12, 12), 3)(torch.rand(2, 1, 12, 13))
