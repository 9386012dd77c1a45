"""Calls of every layer, with what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tools.arguments import FLAG, Both, Maker, Shaped, Size, Sizes, choice, classes, float32, real, whole
from tools.call import Call, Right, layer
from torchcaps import layers
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.init import step_scale
from torchcaps.ops import Capsules

T = Shaped
PER_POSE = choice("dynamic", "self_attention", "uniform", "random", "inverted_attention", "self", "elementwise")
ITERATIONS = whole(1, 3)


def _capsules(pose: str, activation: str) -> Maker:
    def make(sizes: Sizes) -> Any:
        sizes["dtype"] = torch.float32
        return Both(pose, activation)(sizes)

    return make


def _routing(*kinds: Callable[..., Any]) -> Maker:
    return lambda sizes: sizes.draw.choice(kinds)()


def _upper(forms: str, count: str) -> Right:
    """Check capsules of so many types, whose poses have ``d_out`` numbers."""

    def right(sizes: Any, arguments: Any, result: Any) -> str | None:
        del sizes
        if not isinstance(result, Capsules):
            return f"of type {type(result).__name__}"
        pose, activation = result.pose.shape, result.activation.shape
        if len(activation) != len(forms.split()) or activation[1] != int(arguments[count]):
            return f"of activations {list(activation)}"
        return None if pose[: len(activation)] == activation else f"of poses {list(pose)}"

    return right


_FEATURES: dict[str, Maker] = {"x": float32("B C 5 6")}
_ROUTED: dict[str, Maker] = {"n_iters": choice(None), "return_coupling": FLAG}
_DENSE: dict[str, Maker] = {"n_in": Size("I"), "n_out": Size("J"), "d_in": choice(4), "d_out": choice(4)}
_EM = partial(layers.EMRouting, 2, pose="vector")
_ANY = _routing(
    layers.DynamicRouting,
    layers.SelfAttentionRouting,
    layers.UniformRouting,
    layers.RandomRouting,
    layers.ElementwiseRouting,
    partial(layers.InvertedAttentionRouting, pose="vector"),
    layers.SelfRouting,
    layers.DegreeRouting,
    layers.AttentionRouting,
    partial(layers.HeinsenMatrixRouting, pose="vector"),
    partial(layers.VariationalBayesRouting, pose="vector"),
    _EM,
)

CALLS = {
    "torchcaps.layers.PrimaryCaps": layer(
        layers.PrimaryCaps,
        {"in_channels": Size("C"), "n_types": Size("T"), "d_out": Size("D"), "kernel_size": choice(2, (2, 3))},
        {
            "stride": choice(1, 2, (1, 2)),
            "padding": choice(0, 1, (0, 1)),
            "scale": real(0.1, 1),
            "mean_square": real(0.1, 1),
            "weight_std": real(0.01, 0.1),
            "bias_init": real(-0.1, 0.1),
        },
        forward=_FEATURES,
        right=_upper("B T H W", "n_types"),
    ),
    "torchcaps.layers.MatrixPrimaryCaps": layer(
        layers.MatrixPrimaryCaps,
        {"in_channels": Size("C"), "n_types": Size("T")},
        {
            "kernel_size": choice(1, 2, (2, 3)),
            "stride": choice(1, 2),
            "padding": choice(0, 1),
            "pose": choice("matrix", "vector"),
            "d_out": choice(16, 4),
            "pose_std": real(0.1, 1),
            "activation_std": real(0.1, 1),
            "activation_bias": real(-1, 1),
            "normalize": FLAG,
        },
        forward={"x": float32("2 C 5 6")},
        right=_upper("B T H W", "n_types"),
    ),
    "torchcaps.layers.DepthwisePrimaryCaps": layer(
        layers.DepthwisePrimaryCaps,
        {"in_channels": choice(4), "d_out": choice(2, 4, 1), "kernel_size": choice(2, (5, 6))},
        {"stride": choice(1, 2)},
        forward={"x": float32("B 4 5 6")},
    ),
    "torchcaps.layers.DenseCaps": layer(
        layers.DenseCaps,
        _DENSE,
        {"routing": _ANY, "n_places": whole(1, 4)},
        forward={"capsules": _capsules("2 I 4", "2 I")},
        forward_optional={**_ROUTED, "mask": choice(None), "initial_logits": choice(None), "state": choice(None)},
        right=_upper("B J", "n_out"),
    ),
    "torchcaps.layers.DenseCaps (state)": layer(
        layers.DenseCaps,
        {**_DENSE, "routing": _routing(partial(layers.InvertedAttentionRouting, 2, pose="vector"))},
        forward={"capsules": _capsules("2 I 4", "2 I")},
        forward_optional={**_ROUTED, "n_iters": ITERATIONS, "state": _capsules("2 J 4", "2 J")},
    ),
    "torchcaps.layers.DenseCaps (sets)": layer(
        layers.DenseCaps,
        {**_DENSE, "n_in": choice(None), "routing": _routing(partial(layers.DynamicRouting, shared=True))},
        forward={"capsules": float32("2 I 4")},
        forward_optional={
            **_ROUTED,
            "mask": lambda sizes: torch.rand(2, sizes["I"]) < 0.7,
            "initial_logits": float32("I J", "2 I J"),
        },
        right=_upper("B J", "n_out"),
    ),
    "torchcaps.layers.DenseCaps (poses)": layer(
        layers.DenseCaps,
        _DENSE,
        {"routing": choice("dynamic")},
        forward={"capsules": float32("B I 4")},
        forward_optional={**_ROUTED, "n_iters": ITERATIONS},
        right=_upper("B J", "n_out"),
    ),
    "torchcaps.layers.ConvCaps": layer(
        layers.ConvCaps,
        {**_DENSE, "kernel_size": choice(2, (2, 3))},
        {"stride": choice(1, (1, 2)), "padding": choice(0, 1, (0, 1)), "routing": _ANY},
        forward={"capsules": _capsules("2 I 4 5 4", "2 I 4 5")},
        forward_optional={**_ROUTED, "state": choice(None)},
        right=_upper("B J H W", "n_out"),
    ),
    "torchcaps.layers.ConvVoteCaps": layer(
        layers.ConvVoteCaps,
        {**_DENSE, "kernel_size": choice(2, (2, 3))},
        {
            "stride": choice(1, (1, 2)),
            "padding": choice(0, "same", (0, 1)),
            "shared": FLAG,
            "routing": choice("dynamic", layers.DynamicRouting(2)),
            "compete": choice("map"),
        },
        forward={"capsules": _capsules("2 I 4 5 4", "2 I 4 5")},
        forward_optional={**_ROUTED, "n_iters": ITERATIONS},
        right=_upper("B J H W", "n_out"),
        names=("learned_logits", "backend"),
    ),
    "torchcaps.layers.DeconvVoteCaps": layer(
        layers.DeconvVoteCaps,
        _DENSE,
        {
            "kernel_size": choice(4, (2, 3)),
            "stride": choice(2, (1, 2)),
            "shared": FLAG,
            "routing": choice("dynamic", layers.DynamicRouting(2)),
        },
        forward={"capsules": _capsules("2 I 2 3 4", "2 I 2 3")},
        forward_optional={**_ROUTED, "n_iters": ITERATIONS},
        right=_upper("B J H W", "n_out"),
        names=("learned_logits", "backend"),
    ),
    "torchcaps.layers.ClassCaps": layer(
        layers.ClassCaps,
        {"n_types": Size("I"), "n_out": Size("J"), "d_in": choice(4), "d_out": choice(4)},
        {
            "routing": _ANY,
            "map_size": choice((2, 3), (1, 1)),
            "spacing": choice((1.0, 2.0)),
            "centre": choice((0.0, 0.5)),
            "coordinate_scale": real(1, 100),
        },
        forward={"capsules": _capsules("2 I 2 3 4", "2 I 2 3")},
        forward_optional={**_ROUTED, "state": choice(None)},
        right=_upper("B J", "n_out"),
    ),
    "torchcaps.layers.ClassCaps (coordinates)": layer(
        layers.ClassCaps,
        {
            "n_types": Size("I"),
            "n_out": Size("J"),
            "d_in": choice(16),
            "d_out": choice(16),
            "routing": choice("em"),
            "coordinates": choice("column", "row"),
        },
        {"spacing": choice((1.0, 2.0)), "centre": choice((0.0, 0.5)), "coordinate_scale": real(1, 100)},
        forward={"capsules": _capsules("2 I 2 3 4 4", "2 I 2 3")},
        forward_optional={**_ROUTED, "n_iters": ITERATIONS},
    ),
    "torchcaps.layers.base.RoutedLayer": Call(
        RoutedLayer, _DENSE, {"routing": choice("dynamic", "self_routing"), "n_places": whole(1, 4)}, names=("pose",)
    ),
    "torchcaps.layers.Decoder": layer(
        layers.Decoder,
        {"n_classes": Size("J"), "d_in": Size("D"), "image_shape": choice((1, 4, 5))},
        {"hidden": choice((3, 4), [5], ()), "pose_scale": real(0.1, 1), "shared": FLAG},
        forward={"capsules": float32("B J D")},
        forward_optional={"target": classes("B", "J")},
        right=lambda _, a, r: None if list(r.shape[1:]) == list(a["image_shape"]) else f"of shape {list(r.shape)}",
    ),
    "torchcaps.layers.PixelDecoder": layer(
        layers.PixelDecoder,
        {"n_classes": Size("J"), "d_in": Size("D"), "channels": whole(1, 3)},
        {"hidden": choice((3, 4), [5], ())},
        forward={"capsules": float32("B J H W D")},
        forward_optional={"mask": float32("B J H W")},
        right=lambda _, a, r: None if r.shape[1] == a["channels"] else f"of shape {list(r.shape)}",
    ),
    "torchcaps.layers.Standardize": layer(
        layers.Standardize,
        {},
        forward={"x": float32("B C 5 6")},
        right=lambda _, a, r: None if r.shape == a["x"].shape else f"of shape {list(r.shape)}",
    ),
    "torchcaps.layers.Conv2d": layer(
        layers.Conv2d,
        {"in_channels": Size("C"), "out_channels": Size("E"), "kernel_size": choice(2, (2, 3))},
        {"stride": choice(1, 2), "padding": choice(0, 1), "bias": FLAG},
        forward={"input": float32("B C 5 6")},
        names=("x", "weight"),
    ),
    "torchcaps.layers.route_concurrently": Call(
        layers.route_concurrently,
        {
            "layers": lambda sizes: [
                layers.DenseCaps(sizes["I"], 3, 4, 4, routing=layers.InvertedAttentionRouting(pose="vector")),
                layers.DenseCaps(3, 2, 4, 4, routing=layers.InvertedAttentionRouting(pose="vector")),
            ],
            "capsules": _capsules("B I 4", "B I"),
            "n_passes": ITERATIONS,
        },
        {"return_coupling": FLAG},
    ),
    "torchcaps.layers.init.step_scale": Call(step_scale, {"reach": real(0.001, 1), "d_out": whole(1, 20)}),
}
