"""Calls of every routing that layers are given."""

from __future__ import annotations

from tools.arguments import FLAG, Maker, choice, real, whole
from tools.call import Call
from torchcaps import layers
from torchcaps.ops import EMSettings

ITERATIONS = whole(1, 3)
_SCALES: dict[str, Maker] = {"pose_scale": real(0.1, 1), "weight_std": real(0.01, 1)}
_STD: dict[str, Maker] = {"weight_std": real(0.01, 1), "vote_scale": real(0.1, 1)}
CALLS = {
    "torchcaps.layers.DynamicRouting": Call(
        layers.DynamicRouting,
        {},
        {
            **_STD,
            "n_iters": ITERATIONS,
            "leaky": FLAG,
            "bias": FLAG,
            "bias_init": real(-1, 1),
            "learned_logits": FLAG,
            "shared": choice(True, False, "pairs"),
            "backprop": choice("full", "last"),
            "backend": choice("auto", "reference", "cpu"),
        },
    ),
    "torchcaps.layers.DynamicRouting (drawn logits)": Call(
        layers.DynamicRouting, {"drawn_logits": whole(1, 9)}, {"shared": choice(True, False, "pairs"), "bias": FLAG}
    ),
    "torchcaps.layers.EMRouting": Call(
        layers.EMRouting,
        {},
        {
            "n_iters": ITERATIONS,
            "pose": choice("matrix", "vector"),
            "settings": choice("released", "paper", EMSettings()),
            "pose_scale": real(0.1, 1),
            "weight_std": real(0.01, 1),
            "beta_u_init": real(-1, 1),
            "beta_a_init": real(-1, 1),
            "backprop": choice("full", "last"),
            "backend": choice("auto", "reference", "cpu"),
            "compete": choice("all", "positions", None),
            "start": choice("parents", "types", None),
            "final_lambda": real(0, 1),
            "lambda_decay": real(0, 0.9),
            "damping": real(0, 0.9),
            "variance_floor": real(0.001, 1),
            "mass_floor": real(0.001, 1),
            "cost_scale": real(0, 1),
            "beta_u_scale": real(0, 1),
            "beta_a_scale": real(0, 1),
            "normalize": choice(True, False, None),
        },
    ),
    "torchcaps.layers.SelfAttentionRouting": Call(
        layers.SelfAttentionRouting, {}, {**_STD, "scale": choice("upper", "lower")}
    ),
    "torchcaps.layers.InvertedAttentionRouting": Call(
        layers.InvertedAttentionRouting,
        {},
        {"n_iters": ITERATIONS, "pose": choice("matrix", "vector"), "scores": choice(True, False, None)},
    ),
    "torchcaps.layers.SelfRouting": Call(layers.SelfRouting, {}, {"poses": FLAG, **_SCALES}),
    "torchcaps.layers.UniformRouting": Call(layers.UniformRouting, {}, {**_STD, "shared": FLAG, "bias": FLAG}),
    "torchcaps.layers.RandomRouting": Call(
        layers.RandomRouting, {}, {**_STD, "low": real(0.1, 0.9), "high": real(0.9, 2), "shared": FLAG, "bias": FLAG}
    ),
    "torchcaps.layers.ElementwiseRouting": Call(layers.ElementwiseRouting),
    "torchcaps.layers.DegreeRouting": Call(layers.DegreeRouting, {}, {"weight_std": real(0.01, 1)}),
    "torchcaps.layers.AttentionRouting": Call(layers.AttentionRouting, {}, _SCALES),
    "torchcaps.layers.HeinsenMatrixRouting": Call(
        layers.HeinsenMatrixRouting,
        {},
        {
            "n_iters": ITERATIONS,
            "pose": choice("matrix", "vector"),
            "shared": FLAG,
            "logits": choice(True, False, None),
            "backend": choice("auto", "reference", "cpu"),
        },
    ),
    "torchcaps.layers.HeinsenVectorRouting": Call(
        layers.HeinsenVectorRouting, {}, {"n_iters": ITERATIONS, "shared": FLAG}
    ),
    "torchcaps.layers.VariationalBayesRouting": Call(
        layers.VariationalBayesRouting,
        {},
        {"n_iters": ITERATIONS, "pose": choice("matrix", "vector"), "normalize": FLAG, **_SCALES}
        | {"backend": choice("auto", "reference", "cpu")},
    ),
}
