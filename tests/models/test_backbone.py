"""Capsules behind any backbone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps.models import BackboneCapsNet, build
from torchcaps.models.baselines import count_parameters
from torchcaps.training import Data, Model
from torchcaps.training.checkpoint import load_model
from torchcaps.training.recipes import recipe
from torchcaps.training.train import train

SHAPE = (3, 24, 20)


def convolutions(factor: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2))
    layers[2].weight.data *= factor
    layers[2].bias.data *= factor
    return layers


class Several(nn.Module):
    """Gives maps of several sizes, channels last, as some backbones do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> list[Tensor]:
        found = self.inner(x)
        return [x, found.permute(0, 2, 3, 1)]


def test_it_is_a_network_with_class_capsules() -> None:
    model = BackboneCapsNet(convolutions(), SHAPE, 4, n_types=2, d_class=6).eval()
    output = model(torch.rand(2, *SHAPE))
    assert output.scores.shape == (2, 4) and output.capsules[-1].pose.shape == (2, 4, 6)
    assert output.capsules[0].pose.shape == (2, 2, 5, 4, 8)
    torch.testing.assert_close(output.scores, output.capsules[-1].activation)


def test_the_scale_of_features_does_not_matter() -> None:
    x = torch.rand(8, *SHAPE)
    for factor in (1e-3, 1.0, 1e3):
        torch.manual_seed(1)
        model = BackboneCapsNet(convolutions(factor), SHAPE, 4)
        lower = model(x).capsules[0].activation
        assert 0.2 < lower.mean() < 0.8, factor  # neither dead nor saturated


def test_maps_may_come_in_lists_and_with_their_channels_last() -> None:
    torch.manual_seed(1)
    plain = BackboneCapsNet(convolutions(), SHAPE, 4).eval()
    torch.manual_seed(1)
    other = BackboneCapsNet(Several(convolutions()), SHAPE, 4, layout="NHWC").eval()
    x = torch.rand(2, *SHAPE)
    torch.testing.assert_close(other(x).scores, plain(x).scores)


def test_images_are_normalized_as_the_backbone_knows_them() -> None:
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    torch.manual_seed(1)
    model = BackboneCapsNet(convolutions(), SHAPE, 4, mean=mean, std=std).eval()
    x = torch.rand(2, *SHAPE)
    wanted = model.backbone((x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1))
    torch.testing.assert_close(model.features(x), wanted)


def test_a_frozen_backbone_stays_as_it_is(tmp_path: Path) -> None:
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    model = BackboneCapsNet(backbone, (1, 28, 28), 10, frozen=True, n_types=2)
    assert not model.train().backbone.training and model.primary.training
    config = replace(recipe("digits"), data=Data("digits", n_train=32, n_eval=8), epochs=1, batch_size=16)
    train(config, tmp_path, model=model, progress="none")
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    x = torch.rand(1, 1, 28, 28, requires_grad=True)
    model(x).scores.sum().backward()  # an attack wants the gradient of the image all the same
    assert x.grad is not None and x.grad.abs().max() > 0


class Timm(nn.Module):
    """A backbone as timm makes them with features_only."""

    output_fmt = "NHWC"

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, stride=4)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.conv(x).permute(0, 2, 3, 1)]


def test_a_backbone_of_timm_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def create_model(name: str, **options: Any) -> nn.Module:
        if name != "some":
            raise RuntimeError(f"Unknown model ({name})")
        asked.append(options)
        return Timm(options["in_chans"])

    settings = SimpleNamespace(mean=(0.1,), std=(0.2,))
    stub = SimpleNamespace(create_model=create_model, get_pretrained_cfg=lambda name: settings)
    monkeypatch.setitem(sys.modules, "timm", stub)
    options = {"backbone": "timm:some", "pretrained": True, "n_types": 2}
    data = Data("digits", n_train=32, n_eval=8)
    config = replace(recipe("digits"), data=data, model=Model("capsnet_backbone", options), epochs=1, batch_size=16)
    train(config, tmp_path, progress="none")
    assert asked[0] == {"pretrained": True, "features_only": True, "out_indices": (-1,), "in_chans": 1}
    model = load_model(tmp_path).model
    assert not asked[-1]["pretrained"], "nothing is downloaded for weights that the run has"
    assert isinstance(model, BackboneCapsNet) and model.layout == "NHWC"
    assert model.mean.flatten().tolist() == pytest.approx([0.1])
    with pytest.raises(ValueError, match="timm makes no backbone other: Unknown model"):
        build("capsnet_backbone", SHAPE, 4, backbone="timm:other")


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        (nn.Flatten(), {}, r"must return a feature map \[B, F, h, w\], got shape \[1, 1440\]: leave its pooling"),
        (nn.Sequential(nn.Flatten()), {"layout": "HWC"}, "layout must be one of NCHW, NHWC; got 'HWC'"),
        ("resnet18", {}, "backbone must be a module, 'plain' or 'timm:NAME', got 'resnet18'"),
        (18, {}, "backbone must be a module, 'plain' or 'timm:NAME', got a int"),
        (convolutions(), {"mean": [0.5]}, r"mean must have a number for each of 3 channels, got \[0.5\]"),
        (convolutions(), {"pretrained": True}, "pretrained must be False for a backbone of your own"),
    ],
)
def test_bad_input(backbone: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BackboneCapsNet(backbone, SHAPE, 4, **options)


def test_without_timm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"backbone timm:resnet18 needs timm, .*: pip install timm"):
        build("capsnet_backbone", SHAPE, 4, backbone="timm:resnet18")


def test_the_plain_one_is_small_at_the_size_of_photographs() -> None:
    model = build("capsnet_backbone", (3, 224, 224), 5)
    assert count_parameters(model.backbone) == 979_232 and count_parameters(model) < 2.1e6  # type: ignore[arg-type]


def test_it_can_be_made_without_memory_and_given_values() -> None:
    code = """
import torch
from torchcaps.models import build

with torch.device("meta"):
    model = build("capsnet_backbone", (1, 28, 28), 3)
model.to_empty(device="cpu").reset_parameters()
print(bool(model.eval()(torch.rand(2, 1, 28, 28)).scores.isfinite().all()), float(model.std))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "1.0"]
