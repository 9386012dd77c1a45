"""Calls of every network: made and shown images, or shown images that are spoiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tools.arguments import FLAG, Maker, Sizes, choice, float32, real, whole
from tools.call import Call, layer
from torchcaps import layers, models
from torchcaps.hub import HubModel
from torchcaps.models.baselines import BaselineCNN

ITERATIONS = whole(1, 3)
_SHAPE = {"image_shape": choice((1, 20, 21), (2, 20, 21), [1, 20, 20]), "n_classes": whole(1, 4)}
_SIZE2 = choice(3, 2, (2, 3))


def _images(sizes: Sizes) -> torch.Tensor:
    """Draw images for a network whose shape is not drawn yet: it is made to fit by :func:`_network`."""
    return torch.rand(sizes["B"], 1, 20, 21)


def _network(function: Callable[..., nn.Module]) -> Callable[..., Any]:
    """Make a network and show it images of its shape, in evaluation."""

    def call(**arguments: Any) -> Any:
        call = {name: arguments.pop(name) for name in ("n_iters", "return_coupling") if name in arguments}
        made = function(**arguments).eval()
        shape = arguments.get("image_shape")
        with torch.no_grad():
            return made(torch.rand(2, *map(int, shape)), **call) if shape is not None else made

    return call


def _scores(sizes: Any, arguments: Any, result: Any) -> str | None:
    del sizes
    if isinstance(result, nn.Module):  # of its own image_shape
        return None
    if isinstance(result, models.Reconstruction | models.StackedOutput):
        made = result.images
        return None if made is not None and made.shape[1:] == tuple(arguments["image_shape"]) else "of another shape"
    wanted = [2, int(arguments.get("n_classes", result.scores.shape[1]))]
    if isinstance(result, models.SegmentationOutput):
        wanted += list(arguments["image_shape"][1:])
    return None if list(result.scores.shape) == wanted else f"of shape {list(result.scores.shape)}"


def _model(
    function: Callable[..., nn.Module], options: dict[str, Maker], needed: dict[str, Maker], *names: str
) -> Call:
    return Call(_network(function), needed, options, _scores, names=names)


_STEM = choice((), [{"channels": 3, "kernel_size": 3}], [models.HiddenConv(2, 3)])
_DECODER = choice(None, (8,), [4, 5])
PASSES = {"return_coupling": FLAG, "n_iters": ITERATIONS}
_CAPSNET = {
    "channels": choice(4),
    "kernel_size": choice(5, 3),
    "n_types": whole(1, 3),
    "d_primary": choice(4),
    "d_class": choice(4),
    "decoder": choice(None),
}
_CAPSNET_OPTIONS = {
    "padding": choice(0, 1),
    "stem": _STEM,
    "primary_scale": real(0.1, 1),
    "hidden": choice((), [{"n_types": 2, "d_out": 4}], (models.HiddenCaps(2, 4, 3),)),
    "routing": choice("dynamic", layers.DynamicRouting(2)),
    "standardize": FLAG,
    "decoder": _DECODER,
    **PASSES,
}
_AUTO = {"image_shape": choice((1, 20, 21), (2, 24, 24))}

CALLS = {
    "torchcaps.models.CapsNet": _model(models.CapsNet, _CAPSNET_OPTIONS, {**_SHAPE, **_CAPSNET}),
    **{
        f"torchcaps.models.{name}": _model(getattr(models, name), _CAPSNET_OPTIONS, {**_SHAPE, **_CAPSNET}, "routing")
        for name in ("capsnet", "capsnet_small")
    },
    "torchcaps.models.capsnet_stacked": _model(
        models.capsnet_stacked,
        {"standardize": FLAG, **PASSES},
        {**_SHAPE, **_CAPSNET, "kernel_size": choice(3)},
    ),
    "torchcaps.models.capsnet_deep": _model(
        models.capsnet_deep,
        {"standardize": FLAG, **PASSES},
        {"image_shape": choice((1, 36, 36)), "n_classes": whole(1, 4), "decoder": choice(None)},
    ),
    "torchcaps.models.HiddenCaps": Call(models.HiddenCaps, {}, {"n_types": whole(1, 3), "d_out": whole(1, 3)}),
    "torchcaps.models.HiddenConv": Call(models.HiddenConv, {}, {"channels": whole(1, 3), "kernel_size": _SIZE2}),
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {
                "frozen": FLAG,
                "mean": choice([0.5], (0.5,)),
                "std": choice([0.5]),
                "layout": choice("NCHW"),
                "kernel_size": choice(1, 2),
                "stride": choice(1, 2),
                "routing": choice("dynamic", layers.DynamicRouting(2)),
                **PASSES,
            },
            {
                "backbone": lambda _: nn.Sequential(nn.Conv2d(1, 4, 3, stride=3), nn.ReLU()),
                "image_shape": choice((1, 20, 21)),
                "n_classes": whole(1, 4),
                "n_types": whole(1, 3),
                "d_primary": choice(4),
                "d_class": choice(4),
            },
        )
        for function in (models.BackboneCapsNet, models.capsnet_backbone)
    },
    "torchcaps.models.MatrixCapsNet": _model(
        models.MatrixCapsNet,
        {
            "routing": choice("em", layers.EMRouting(2), layers.EMRouting(2, pose="vector")),
            "standardize": FLAG,
            "stem": choice((), [{"channels": 3, "kernel_size": 3}]),
            "normalize": FLAG,
            "initial": choice("half-active", "released"),
            **PASSES,
        },
        {
            "image_shape": choice((1, 20, 21), (2, 22, 22)),
            "n_classes": whole(1, 3),
            **{name: whole(1, 3) for name in "ABCD"},
            "coordinates": choice(None),
        },
    ),
    **{
        f"torchcaps.models.{name}": _model(
            getattr(models, name),
            {"standardize": FLAG, **PASSES},
            {
                "image_shape": choice((1, 20, 21)),
                "n_classes": whole(1, 3),
                "B": choice(2),
                "C": choice(2),
                "D": choice(2),
            },
            *("A", "routing"),
        )
        for name in ("matrix_capsnet", "matrix_capsnet_small", "matrix_capsnet_deep")
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {
                "trunk": choice("mnist", "multimnist"),
                "d_primary": choice(8, 4, 16),
                "d_class": choice(4),
                "routing": choice("self_attention", "uniform"),
                "standardize": FLAG,
                "return_coupling": FLAG,
            },
            {"image_shape": choice((1, 36, 36), (2, 36, 37)), "n_classes": whole(1, 4), "decoder": choice(None, (4,))},
        )
        for function in (models.EfficientCapsNet, models.efficient_capsnet)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {
                "d_pose": choice(4, 9, 16),
                "dense": choice((), (3,), [2]),
                "n_iters": whole(1, 2),
                "schedule": choice("concurrent", "sequential"),
                "return_coupling": FLAG,
            },
            {
                "image_shape": choice((1, 14, 15)),
                "n_classes": whole(1, 3),
                "trunk": choice("simple"),
                "channels": choice(4),
                "n_types": whole(1, 2),
            },
        )
        for function in (models.AttentionCapsNet, models.attention_capsnet)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {"d_pose": choice(4, 16), "return_coupling": FLAG},
            {
                "image_shape": choice((1, 16, 17)),
                "n_classes": whole(1, 3),
                "depth": choice(0, 1, 2),
                "n_types": whole(1, 2),
                "width": choice(2),
            },
        )
        for function in (models.SelfRoutingResNet, models.self_routing_resnet)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {"n_iters": whole(1, 2), "return_coupling": FLAG, "padding": choice(None, 1)},
            {
                "image_shape": choice((1, 28, 30), (2, 33, 32)),
                "n_classes": whole(2, 4),
                "channels": whole(1, 4),
                "n_parts": whole(2, 4),
            },
        )
        for function in (models.HeinsenCapsNet, models.heinsen_capsnet)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {
                "d_pose": choice(4, 9, 16),
                "n_iters": whole(1, 2),
                "coordinates": FLAG,
                "backend": choice("auto", "reference"),
                "standardize": FLAG,
                "return_coupling": FLAG,
            },
            {
                "image_shape": choice((1, 28, 30), (2, 32, 32)),
                "n_classes": whole(1, 4),
                **dict.fromkeys(("A", "B", "C", "D"), whole(1, 3)),
            },
        )
        for function in (models.VariationalBayesCapsNet, models.variational_bayes_capsnet)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {
                "d_class": whole(1, 4),
                "routing": choice("dynamic", layers.DynamicRouting(2)),
                "decoder": _DECODER,
                "standardize": FLAG,
                **PASSES,
            },
            {
                "image_shape": choice((1, 16, 24), (2, 8, 16)),
                "n_classes": whole(1, 4),
                "n_types": choice((1, 2, 3), [2, 2, 2]),
                "d_pose": choice((4, 3, 5)),
                "kernel_size": choice(3, 2),
            },
        )
        for function in (models.SegCaps, models.segcaps, models.segcaps_small)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {
                "map_iters": ITERATIONS,
                "routing": choice("dynamic", "uniform", layers.DynamicRouting(2)),
                "decoder": _DECODER,
                "standardize": FLAG,
                **PASSES,
            },
            {
                "image_shape": choice((1, 16, 24), (2, 9, 16)),
                "n_classes": whole(1, 4),
                "channels": whole(1, 4),
                "n_types": whole(1, 3),
                "d_pose": choice((2, 3, 3, 3), [2, 2, 2, 2]),
                "d_class": whole(1, 4),
            },
        )
        for function in (models.DeepCaps, models.deepcaps, models.deepcaps_small)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {"image_scale": real(0.1, 1), "noise": real(0, 2), "n_layers": whole(1, 2), "n_classes": whole(1, 4)},
            {
                "encoder": choice("set_transformer", "mlp"),
                "part_weight": real(0, 2),
                "image_shape": choice((1, 23, 24), [2, 25, 23]),
                "n_parts": whole(1, 4),
                "n_objects": whole(1, 4),
                "n_features": whole(1, 4),
                "template": choice(5, 6),
                "channels": choice(4),
                "width": choice(4),
                "d_features": choice(4),
                "d_code": choice(3),
                "hidden": choice(5),
            },
        )
        for function in (models.StackedCapsuleAutoencoder, models.scae, models.scae_small)
    },
    **{
        f"torchcaps.models.{function.__name__}": layer(
            function,
            {"n_objects": whole(1, 4), "n_points": whole(1, 4), "width": choice(4), "d_features": choice(8)},
            {
                "n_heads": choice(1, 2),
                "n_layers": whole(1, 2),
                "d_code": whole(1, 4),
                "hidden": whole(1, 4),
                "rigid": FLAG,
                "noise": real(0, 2),
                "dynamic_weight": real(0, 10),
                "sparsity_weight": real(0, 10),
            },
            forward={"x": float32("B M 2")},
            right=lambda _, a, r: None if r.prior.shape[1] == a["n_objects"] else f"of shape {list(r.prior.shape)}",
        )
        for function in (models.ConstellationAutoencoder, models.constellation_autoencoder)
    },
    "torchcaps.models.TransformingAutoencoder": _model(
        models.TransformingAutoencoder,
        {"field": choice(None, 5), "stride": choice(None), "patch": choice(None)},
        {
            **_AUTO,
            "n_capsules": whole(1, 3),
            "n_recognition": whole(1, 3),
            "n_generation": whole(1, 3),
            "pose": choice("translation", "affine", "parts"),
        },
    ),
    **{
        f"torchcaps.models.{name}": _model(
            getattr(models, name),
            {"n_recognition": whole(1, 3), "n_generation": whole(1, 3)},
            {**_AUTO, "n_capsules": whole(1, 3)},
        )
        for name in ("translation_autoencoder", "affine_autoencoder", "parts_autoencoder", "local_autoencoder")
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function,
            {"channels": choice((2, 3)), "most_scale": real(1.5, 3)},
            {**_AUTO, "n_capsules": whole(1, 3), "template": choice(3, 5), "width": choice(4)},
        )
        for function in (models.TemplateAutoencoder, models.template_autoencoder)
    },
    **{
        f"torchcaps.models.{function.__name__}": _model(
            function, {"hidden": choice((4, 3), [5])}, {**_AUTO, "code": whole(1, 3), "hidden": choice((4,))}
        )
        for function in (models.PlainAutoencoder, models.plain_autoencoder)
    },
    "torchcaps.models.UNet": _model(models.UNet, {}, {**_SHAPE, "width": whole(1, 3)}),
    "torchcaps.models.matched_unet": _model(models.matched_unet, {}, {**_SHAPE, "n_parameters": choice(20000)}),
    "torchcaps.models.matched_cnn": _model(
        models.matched_cnn, {"dropout": real(0, 0.9), "standardize": FLAG}, {**_SHAPE, "n_parameters": choice(20000)}
    ),
    **{
        f"torchcaps.models.{name}": _model(
            getattr(models, name),
            {"dropout": real(0, 0.9)},
            {"image_shape": choice((1, 8, 8), (2, 9, 8)), "n_classes": whole(1, 4)},
        )
        for name in ("baseline_cnn", "multimnist_cnn", "norb_cnn")
    },
    "torchcaps.models.baselines.BaselineCNN": _model(
        BaselineCNN,
        {"pool": FLAG, "dropout": real(0, 0.9), "standardize": FLAG, "kernel_sizes": choice(None, (3, 3))},
        {**_SHAPE, "channels": choice((2, 3)), "hidden": choice((4, 5))},
    ),
    "torchcaps.models.Scores": layer(
        models.Scores,
        {"model": lambda _: models.capsnet_small((1, 12, 12), 3, channels=4, kernel_size=3, decoder=None).eval()},
        forward={"x": float32("B 1 12 12")},
    ),
    "torchcaps.models.build": _model(
        models.build,
        {"pretrained": choice(False), "n_iters": ITERATIONS},
        {"name": choice("capsnet_small"), **_SHAPE, **_CAPSNET},
        "model",
        "routing",
        *_CAPSNET_OPTIONS,
    ),
    "torchcaps.models.build (any)": Call(
        models.build,
        {
            "name": choice("efficient_capsnet", "self_routing_resnet", "norb_cnn", "plain_autoencoder"),
            "image_shape": choice((1, 28, 28)),
            "n_classes": whole(1, 4),
        },
        {"pretrained": choice(False)},
        names=("model",),
    ),
    "torchcaps.models.build (pretrained)": Call(
        models.build,
        {
            "name": choice("capsnet_small"),
            "image_shape": choice((1, 28, 28)),
            "pretrained": choice("mnist-small"),
            "n_classes": choice(10),
        },
        raises=(UserWarning,),  # of another number of classes, whose capsules are new
        names=("model",),
    ),
    "torchcaps.models.cards": Call(models.cards),
    "torchcaps.hub.HubModel": Call(
        HubModel,
        {
            "model_name": choice("capsnet_small"),
            "image_shape": choice((1, 28, 28), [1, 28, 28]),
            "classes": choice(("a", "b"), ["x", "y", "z"]),
        },
        {"options": choice({"channels": 4}, None)},
        names=("n_classes", "model"),
    ),
}
