"""SegCaps: the paper's parameters, its layers and skip connections, and masks of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps import build
from torchcaps.layers import DynamicRouting, PixelDecoder
from torchcaps.models import Scores, SegCaps, SegmentationOutput, segcaps_small
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import dice_loss, dice_score, locally_constrained_routing, squash

#: Of the paper's table, layer by layer: kernel, lower pose size, upper types and size; a bias each.
PAPER = {
    "conv": 25 * 1 * 16 + 16,
    "primary": 25 * 16 * 2 * 16 + 32,
    "down.0": 25 * 16 * 4 * 16 + 64,
    "down.1": 25 * 16 * 4 * 32 + 128,
    "down.2": 25 * 32 * 8 * 32 + 256,
    "down.3": 25 * 32 * 8 * 64 + 512,
    "down.4": 25 * 64 * 8 * 32 + 256,
    "up.0": 16 * 32 * 8 * 32 + 256,
    "joined.0": 25 * 32 * 4 * 32 + 128,
    "up.1": 16 * 32 * 4 * 16 + 64,
    "joined.1": 25 * 16 * 4 * 16 + 64,
    "up.2": 16 * 16 * 2 * 16 + 32,
    "classes": 16 * 16 + 16,
    "decoder": (16 * 64 + 64) + (64 * 128 + 128) + (128 + 1),
}


def test_has_the_papers_parameters_layer_by_layer() -> None:
    model = build("segcaps", (1, 512, 512), 1)
    assert {name: count_parameters(model.get_submodule(name)) for name in PAPER} == PAPER
    assert count_parameters(model) == sum(PAPER.values()) == 1_425_649
    assert count_parameters(build("segcaps", (1, 512, 512), 1, decoder=None)) == 1_416_112
    assert count_parameters(segcaps_small((1, 32, 32))) < 40_000


def small(**options: Any) -> SegCaps:
    sizes: dict[str, Any] = {"n_types": (2, 3, 4), "d_pose": (3, 4, 5), "d_class": 6, "kernel_size": 3}
    return SegCaps((2, 16, 24), 3, **{**sizes, **options})


def test_layer_by_layer() -> None:
    torch.manual_seed(0)
    model = small().double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    x = torch.rand(2, 2, 16, 24, dtype=torch.float64)

    def kernels(layer: Any) -> Tensor:
        """``[J·d_out, d_in, K, K]``"""
        k = layer.kernel_size[0]
        return layer.weight.unflatten(0, (k, k)).permute(2, 4, 3, 0, 1).flatten(0, 1)

    def conv(layer: Any, u: Tensor, stride: int = 1) -> Tensor:
        """A convolution of each type by itself, then routing at each place."""
        edges = (0, 1, 0, 1) if stride == 2 else (1, 1, 1, 1)
        edges = edges if layer.kernel_size[0] == 3 else (0, 0, 0, 0)
        votes = [
            F.conv2d(F.pad(u[:, t].movedim(3, 1), edges), kernels(layer), stride=stride) for t in range(u.shape[1])
        ]
        return routed(layer, votes)

    def deconv(layer: Any, u: Tensor) -> Tensor:
        weight = kernels(layer).transpose(0, 1)
        votes = [F.conv_transpose2d(u[:, t].movedim(3, 1), weight, stride=2, padding=1) for t in range(u.shape[1])]
        return routed(layer, votes)

    def routed(layer: Any, votes: list[Tensor]) -> Tensor:
        each = torch.stack([vote.unflatten(1, (layer.n_out, layer.d_out)) for vote in votes], dim=1)
        return locally_constrained_routing(each, bias=layer.bias).pose

    features = F.conv2d(x, model.conv.weight, model.conv.bias, padding=1).relu()
    primary = F.conv2d(F.pad(features, (0, 1, 0, 1)), model.primary.weight.permute(3, 2, 0, 1), stride=2)
    primary = primary.unflatten(1, (2, 3)) * model.primary.scale + model.primary.bias[:, :, None, None]
    primary = squash(primary.movedim(2, 4))
    down, (up, joined) = model.down, (model.up, model.joined)
    conv_2_1 = conv(down[0], primary)
    conv_3_1 = conv(down[2], conv(down[1], conv_2_1, 2))
    conv_4_1 = conv(down[4], conv(down[3], conv_3_1, 2))
    up_1 = conv(joined[0], torch.cat((deconv(up[0], conv_4_1), conv_3_1), dim=1))
    up_2 = conv(joined[1], torch.cat((deconv(up[1], up_1), conv_2_1), dim=1))
    last = torch.cat((deconv(up[2], up_2), features.movedim(1, 3).unsqueeze(1)), dim=1)
    output = model(x)
    torch.testing.assert_close(output.capsules[0].pose, primary)
    torch.testing.assert_close(output.capsules[5].pose, conv_4_1)
    torch.testing.assert_close(output.capsules[-1].pose, conv(model.classes, last))
    torch.testing.assert_close(output.scores, output.capsules[-1].pose.norm(dim=-1))
    sizes = [tuple(each.activation.shape[1:]) for each in output.capsules]
    assert sizes == [
        *((2, 8, 12), (3, 8, 12), (3, 4, 6), (4, 4, 6), (4, 2, 3), (4, 2, 3)),
        *((4, 4, 6), (3, 4, 6), (3, 8, 12), (3, 8, 12), (2, 16, 24), (3, 16, 24)),
    ]


def test_images_are_filled_up_with_zeros() -> None:
    model, x = small(), torch.rand(1, 2, 13, 20)
    filled = torch.zeros(1, 2, 16, 24)
    filled[:, :, :13, :20] = x
    torch.testing.assert_close(model(x).scores, model(filled).scores[:, :, :13, :20])


def test_images_of_any_size_and_options() -> None:
    model = small(standardize=True, routing=DynamicRouting(2, bias=False))
    for height, width in ((8, 8), (16, 40), (9, 7), (1, 1)):
        output = model(torch.rand(2, 2, height, width), return_coupling=True)
        assert isinstance(output, SegmentationOutput)
        assert output.scores.shape == (2, 3, height, width)
        coupling = output.capsules[-1].coupling
        assert coupling is not None and coupling.shape == (2, height, width, 3, 3)
    assert model.classes.bias is None and model.classes.n_iters == 2
    x = torch.rand(1, 2, 16, 16)
    even = small(routing=DynamicRouting(1, bias=False), standardize=True)
    even.load_state_dict({k: v for k, v in model.state_dict().items() if "_extra" not in k}, strict=False)
    torch.testing.assert_close(model(x, n_iters=1).scores, even(x).scores)
    for standardize in (False, True):  # a black image is background
        assert not small(standardize=standardize)(torch.zeros(1, 2, 16, 16)).scores.any()


def test_scores_alone() -> None:
    """As export writes them."""
    model, x = small().eval(), torch.rand(1, 2, 16, 16)
    torch.testing.assert_close(Scores(model)(x), model(x).scores, rtol=0, atol=0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be \[B, C=2, H, W\], got shape \[1, 1, 16, 16\]"):
        small()(torch.zeros(1, 1, 16, 16))
    with pytest.raises(ValueError, match=r"n_types must list three sizes, got \(2, 4\)"):
        small(n_types=(2, 4))
    with pytest.raises(ValueError, match="d_pose must list integers of at least 1, got 16"):
        small(d_pose=16)
    with pytest.raises(ValueError, match="routing must be dynamic where votes are convolutions, got em"):
        build("segcaps_small", (1, 16, 16), 1, routing="em")


def test_the_decoder_sees_the_masked_capsules_alone() -> None:
    torch.manual_seed(0)
    decoder = PixelDecoder(2, 3, 1, (4,))
    pose = torch.randn(1, 2, 2, 2, 3)
    mask = torch.tensor([[[[1, 0], [0, 0]], [[0, 1], [0, 0]]]])
    got = decoder(pose, mask)
    nothing = decoder(torch.zeros_like(pose))[0, 0, 0, 0]
    torch.testing.assert_close(got[0, 0, 1], nothing.expand(2))
    first, last = decoder.layers
    x = torch.cat((pose[0, 0, 0, 0], torch.zeros(3)))
    hidden = F.relu(first.weight[:, :, 0, 0] @ x + first.bias)
    torch.testing.assert_close(got[0, 0, 0, 0], torch.sigmoid(last.weight[0, :, 0, 0] @ hidden + last.bias[0]))
    torch.testing.assert_close(decoder(pose, torch.ones(1, 2, 2, 2)), decoder(pose))
    with pytest.raises(
        ValueError, match=r"mask must be \[B, J, H, W\] with H=2 as in capsules, got shape \[1, 2, 3, 2\]"
    ):
        decoder(pose, torch.ones(1, 2, 3, 2))
    with pytest.raises(ValueError, match=r"capsules must be \[B, J=2, H, W, D=3\], got shape \[1, 1, 2, 2, 3\]"):
        decoder(pose[:, :1])


def test_learns_to_segment() -> None:
    """Bright squares on a dim ground, in a few steps."""
    torch.manual_seed(0)
    target = torch.zeros(8, 1, 16, 16)
    for image in target:
        row, column = torch.randint(0, 10, (2,)).tolist()
        image[0, row : row + 6, column : column + 6] = 1
    x = 0.3 * torch.rand_like(target) + 0.4 * target
    model = segcaps_small((1, 16, 16), n_types=(2, 2, 2), d_pose=(4, 4, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = dice_score(model(x).scores, target).item()
    for _ in range(30):
        optimizer.zero_grad()
        dice_loss(model(x).scores, target).backward()
        optimizer.step()
    assert dice_score(model(x).scores, target).item() > max(0.8, before + 0.2)
