"""Networks of one's own are explained as the library's are: whatever routes a map of capsules to its classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps import explain
from torchcaps.layers import (
    ClassCaps,
    ConvCaps,
    DenseCaps,
    EMRouting,
    MatrixPrimaryCaps,
    PrimaryCaps,
    Routing,
    SelfRouting,
)
from torchcaps.models import CapsNet, MatrixCapsNet
from torchcaps.types import Capsules, ModelOutput

SHAPE = (1, 22, 26)


class Own(nn.Module):
    """The parts of a CapsNet in a module of one's own, that flattens its capsules and returns what ``form`` says."""

    def __init__(self, like: CapsNet, form: str) -> None:
        super().__init__()
        self.stem, self.below, self.top, self.form = like.conv, like.primary, like.classes, form

    def forward(self, x: Tensor) -> Any:
        lower = self.below(self.stem(x).relu())
        given: Any = lower
        if self.form == "poses":
            given = lower.pose.flatten(1, 3)
        elif self.form == "flat":
            given = Capsules(lower.pose.flatten(1, 3), lower.activation.flatten(1))
        upper = self.top(capsules=given) if self.form == "flat" else self.top(given)
        return ModelOutput(upper.activation, (lower, upper)) if self.form == "output" else upper


@pytest.mark.parametrize("form", ["map", "flat", "poses", "output"])
def test_the_same_parts_give_the_same_explanation(form: str) -> None:
    model = CapsNet(SHAPE, 3, channels=4, n_types=2, decoder=None).eval()
    own, x = Own(model, form).eval(), torch.rand(2, *SHAPE)
    extent = explain.map_edges(model)
    ours, theirs = explain.coupling_maps(model, x), explain.coupling_maps(own, x, extent=extent)
    torch.testing.assert_close(theirs.maps, ours.maps)
    torch.testing.assert_close(theirs.scores, ours.scores)
    assert theirs.extent == ours.extent
    for one, other in zip(explain.parse_tree(model, x[0]), explain.parse_tree(own, x[0], extent=extent), strict=True):
        torch.testing.assert_close(torch.as_tensor(other), torch.as_tensor(one))
    torch.testing.assert_close(explain.part_maps(own, x).maps, explain.part_maps(model, x).maps)
    angles = torch.arange(2.0)
    views = [explain.view_responses(each, x, 1, angles, angles).pose for each in (own, model)]
    torch.testing.assert_close(*views, equal_nan=True)


def test_where_nothing_is_known_of_its_fields_a_map_covers_the_image() -> None:
    model = Own(CapsNet(SHAPE, 3, channels=4, n_types=2, decoder=None), "map").eval()
    x = torch.rand(1, *SHAPE)
    assert explain.coupling_maps(model, x).extent == (-0.5, 25.5, 21.5, -0.5)
    tree = explain.parse_tree(model, x[0], n_capsules=1000)  # 2 types of 3×5 capsules: cells of 22/3 by 26/5 pixels
    assert tree.places[tree.types == 0].unique(dim=0)[0].tolist() == pytest.approx([22 / 6 - 0.5, 26 / 10 - 0.5])
    assert tree.places.amax(dim=0).tolist() == pytest.approx([22 - 22 / 6 - 0.5, 26 - 26 / 10 - 0.5])


class OwnMatrices(nn.Module):
    def __init__(self, like: MatrixCapsNet) -> None:
        super().__init__()
        self.like = nn.ModuleList([like.conv, like.primary, *like.hidden, like.classes])

    def forward(self, x: Tensor) -> Capsules:
        conv, *layers = self.like
        x = conv(x).relu()
        for layer in layers:
            x = layer(x)
        return x


def test_parts_are_traced_through_layers_of_ones_own() -> None:
    model = MatrixCapsNet((2, 24, 26), 3, A=4, B=2, C=3, D=2, standardize=False).eval()
    own, x = OwnMatrices(model).eval(), torch.rand(2, 2, 24, 26)
    ours, theirs = explain.part_maps(model, x), explain.part_maps(own, x)
    torch.testing.assert_close(theirs.maps, ours.maps)
    assert theirs.extent != ours.extent and ours.extent == explain.map_edges(model, 0)
    for one, other in zip(explain.class_votes(model, x[0], 1), explain.class_votes(own, x[0], 1), strict=True):
        torch.testing.assert_close(other, one)


def test_a_routing_without_iterations_has_one() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 9), MatrixPrimaryCaps(8, 2), ClassCaps(2, 3, d_in=16, d_out=16, routing=SelfRouting())
    ).eval()
    x = torch.rand(2, 1, 12, 12)
    found = explain.coupling_maps(model, x)
    assert found.maps.shape == (1, 2, 3, 4, 4)
    torch.testing.assert_close(found.scores[0], model(x).activation)
    with pytest.raises(ValueError, match="n_iters must be None with"):
        explain.coupling_maps(model, x, 2)


class Silent(Routing):
    """Returns no couplings."""

    name = "silent"

    def parts(self, sizes: Any) -> dict[str, Any]:
        return {}

    def route(self, lower: Capsules, parts: Any, *, return_coupling: bool = False) -> Capsules:
        pose = lower.pose.mean(dim=1, keepdim=True).expand(-1, 3, -1)
        return Capsules(pose, pose.norm(dim=-1))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Flatten(), nn.Linear(144, 3)], "model must have a routed layer, .* got a Sequential without"),
        ([PrimaryCaps(1, 2, 4, 3), ConvCaps(2, 3, 4, 4, kernel_size=3)], "which ends in a map of capsules"),
        (
            [PrimaryCaps(1, 2, 4, 3), DenseCaps(200, 5, 4, 4), DenseCaps(5, 3, 4, 4)],
            r"model must route a map of capsules .* got capsules without places, \[B, I=5, D\]",
        ),
        (
            [PrimaryCaps(1, 2, 4, 3), DenseCaps(200, 3, 4, 4, routing=Silent())],
            "model must route by a routing that returns its couplings, got silent",
        ),
    ],
)
def test_what_cannot_be_explained_is_named(layers: list[nn.Module], message: str) -> None:
    model = nn.Sequential(*layers)
    if len(layers) == 2 and isinstance(layers[1], ConvCaps):
        model.append(Mean())
    with pytest.raises(ValueError, match=message):
        explain.coupling_maps(model, torch.rand(1, 1, 12, 12))


class Mean(nn.Module):
    def forward(self, capsules: Capsules) -> Tensor:
        return capsules.activation.mean(dim=(2, 3))


def test_em_routing_in_a_dense_layer_has_couplings_too() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 9), MatrixPrimaryCaps(8, 2), DenseCaps(32, 3, 16, 16, routing=EMRouting(2))
    ).eval()
    found = explain.coupling_maps(model, torch.rand(1, 1, 12, 12))
    assert found.maps.shape == (2, 1, 3, 4, 4) and bool(found.maps.isfinite().all())
