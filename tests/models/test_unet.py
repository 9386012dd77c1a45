"""The U-Net: its parameters, its skip connections, and the width that matches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torchcaps import build
from torchcaps.models import SegmentationOutput, UNet, matched_unet
from torchcaps.models.baselines import count_parameters


def test_has_as_many_parameters_as_counted_by_hand() -> None:
    def pair(a: int, b: int) -> int:
        return (9 * a * b + b + 2 * b) + (9 * b * b + b + 2 * b)

    w = 5
    wanted = pair(2, w) + pair(w, 2 * w) + pair(2 * w, 4 * w) + (4 * 4 * w * 2 * w + 2 * w) + (4 * 2 * w * w + w)
    wanted += pair(4 * w, 2 * w) + pair(2 * w, w) + (3 * w + 3)
    assert count_parameters(UNet((2, 8, 8), 3, w)) == wanted


def test_level_by_level() -> None:
    torch.manual_seed(0)
    model = UNet((1, 8, 12), 2, 3).eval()
    x = torch.rand(2, 1, 8, 12)
    top = model.down[0](x)
    middle = model.down[1](F.max_pool2d(top, 2))
    low = model.down[2](F.max_pool2d(middle, 2))
    assert low.shape == (2, 12, 2, 3)
    up = model.up[0](torch.cat((model.grow[0](low), middle), dim=1))
    up = model.up[1](torch.cat((model.grow[1](up), top), dim=1))
    output = model(x)
    assert isinstance(output, SegmentationOutput) and output.capsules == ()
    torch.testing.assert_close(output.scores, model.classes(up).sigmoid())
    assert model(torch.rand(1, 1, 16, 4)).scores.shape == (1, 2, 16, 4)


@pytest.mark.parametrize("wanted", [2_000, 32_776, 1_416_112])
def test_comes_nearest_to_the_parameters(wanted: int) -> None:
    model = build("matched_unet", (1, 32, 32), 3, n_parameters=wanted)
    width = model.classes.in_channels
    apart = {w: abs(count_parameters(UNet((1, 32, 32), 3, w)) - wanted) for w in (width - 1, width, width + 1) if w}
    assert min(apart, key=lambda w: apart[w]) == width


def test_the_seed_gives_the_network() -> None:
    torch.manual_seed(0)
    first = matched_unet((1, 8, 8), 1, 5_000)
    torch.manual_seed(0)
    alone = UNet((1, 8, 8), 1, first.classes.in_channels).state_dict()  # that widths were tried changes nothing
    assert all(torch.equal(first.state_dict()[name], value) for name, value in alone.items())


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"image_shape must have a height and width that are multiples of 4, got \(6, 8"
    ):
        UNet((1, 6, 8), 1)
    with pytest.raises(ValueError, match=r"x must have a height and width that are multiples of 4, got \(8, 7\)"):
        UNet((1, 8, 8), 1)(torch.rand(1, 1, 8, 7))
    with pytest.raises(ValueError, match="n_parameters must be at least .* images, got 10"):
        matched_unet((1, 8, 8), 1, 10)
    with pytest.raises(ValueError, match="width must be an integer of at least 1, got 0"):
        UNet((1, 8, 8), 1, 0)
