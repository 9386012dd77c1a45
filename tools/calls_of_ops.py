"""Calls of every operation."""

from __future__ import annotations

from typing import Any

import torch

from tools.arguments import FLAG, Both, Maker, Shaped, Size, Sizes, choice, classes, real, whole
from tools.call import Call, returns
from torchcaps import ops
from torchcaps.ops.backends.errors import Unavailable

T = Shaped
BACKEND = choice("auto", "reference", "cpu")
ITERATIONS = whole(1, 4)
BACKPROP = choice("full", "last")
SETTINGS = choice("paper", "released", ops.EMSettings(variance_floor=0.01))


def maybe(*makers: Maker) -> Maker:
    """Draw one of several."""
    return lambda sizes: sizes.draw.choice(makers)(sizes)


def multi_hot(sizes: Sizes) -> Any:
    """Draw any number of classes for each image."""
    return torch.randint(2, (sizes["B"], sizes["J"]))


def _parts(sizes: Sizes) -> ops.AffineParts:
    return ops.AffineParts(T("B")(sizes), T("B 2", low=0.5)(sizes), T("B")(sizes), T("B 2")(sizes))


def _mask(sizes: Sizes) -> torch.Tensor:
    return torch.rand(sizes["B"], sizes["I"]) < 0.7


def _last(sizes: Sizes) -> int:
    return sizes.draw.choice((-1, 2, 1, 0, -3))


def _affine(sizes: Sizes) -> torch.Tensor:
    made = torch.eye(3).expand(sizes["B"], 3, 3) + 0.1 * torch.rand(sizes["B"], 3, 3)
    made = made.clone()
    made[:, 2] = torch.tensor([0.0, 0.0, 1.0])
    return made.to(sizes["dtype"])


_SQUASHED: dict[str, Any] = {"needed": {"s": maybe(T("B I D"))}, "optional": {"dim": _last}}
_ROUTED = {"u": T("B I d_in"), "weight": T("I J d_in d_out")}
_EM = {"activation": T("B I", low=0), "beta_u": T("J"), "beta_a": T("J")}
_EM_OPTIONS = {
    "n_iters": ITERATIONS,
    "settings": SETTINGS,
    "backprop": BACKPROP,
    "backend": choice("auto", "reference"),
    "return_coupling": FLAG,
    "final_lambda": real(0.001, 1),
    "variance_floor": real(0.001, 1),
    "compete": choice("all"),
}


def _same_as(name: str) -> Any:
    def right(sizes: Any, arguments: Any, result: Any) -> str | None:
        del sizes
        given = arguments[name]
        return None if (result.shape, result.dtype) == (given.shape, given.dtype) else f"of shape {list(result.shape)}"

    return right


def _norm(sizes: Any, arguments: Any, result: Any) -> str | None:
    del sizes
    wanted = torch.linalg.vector_norm(
        arguments["s"].float(), dim=int(arguments.get("dim", -1)), keepdim=bool(arguments.get("keepdim", False))
    ).shape
    return None if result.shape == wanted else f"of shape {list(result.shape)}"


def _fields(sizes: Any, arguments: Any, result: Any) -> str | None:
    (rows, columns), (down, right) = arguments["kernel_size"], arguments["stride"]
    height, width = (sizes["H"] - rows) // down + 1, (sizes["W"] - columns) // right + 1
    wanted = [sizes["B"], height, width, sizes["T"] * rows * columns, sizes["D"]]
    return None if list(result.shape) == wanted else f"of shape {list(result.shape)}, not {wanted}"


def _which_backend(routing: Any, backend: Any, first: Any, second: Any) -> str:
    return ops.which_backend(routing, backend, first, second)


CALLS = {
    "torchcaps.ops.squash": Call(ops.squash, **_SQUASHED, right=_same_as("s")),
    "torchcaps.ops.exponential_squash": Call(ops.exponential_squash, **_SQUASHED, right=_same_as("s")),
    "torchcaps.ops.safe_norm": Call(
        ops.safe_norm, {"s": maybe(T("B I D"))}, {"dim": _last, "keepdim": FLAG}, right=_norm
    ),
    "torchcaps.ops.mask_capsules": Call(
        ops.mask_capsules,
        {"capsules": maybe(T("B J D"), Both("B J D", "B J"), Both("B J 4 4", "B J"))},
        {"target": maybe(classes("B", "J"), multi_hot)},
    ),
    "torchcaps.ops.dynamic_routing": Call(
        ops.dynamic_routing,
        {"u": T("B I d_in"), "weight": T("I J d_in d_out", "1 J d_in d_out")},
        {
            "n_iters": ITERATIONS,
            "bias": T("J d_out"),
            "initial_logits": T("I J", "1 J"),
            "mask": _mask,
            "leaky": FLAG,
            "backprop": BACKPROP,
            "backend": BACKEND,
            "return_coupling": FLAG,
        },
        right=returns("B J d_out", "B J", "B I J", dtype=("u", "weight")),
        raises=(Unavailable,),
        names=("d_out",),
    ),
    "torchcaps.ops.dynamic_routing (logits of each image)": Call(
        ops.dynamic_routing,
        {"u": T("B I d_in"), "weight": T("I J d_in d_out", "1 J d_in d_out"), "initial_logits": T("B I J")},
        {"mask": _mask, "backend": choice("auto", "reference"), "return_coupling": FLAG},
        right=returns("B J d_out", "B J", "B I J", dtype=("u", "weight")),
        raises=(Unavailable,),
        names=("d_out",),
    ),
    "torchcaps.ops.dynamic_routing_from_votes": Call(
        ops.dynamic_routing_from_votes,
        {"votes": T("B I J d_out")},
        {
            "n_iters": ITERATIONS,
            "bias": T("J d_out"),
            "initial_logits": T("I J", "1 J", "B I J"),
            "mask": _mask,
            "leaky": FLAG,
            "backprop": BACKPROP,
            "backend": choice("auto", "reference"),
            "return_coupling": FLAG,
        },
        right=returns("B J d_out", "B J", "B I J", dtype=("votes",)),
        names=("d_out",),
    ),
    "torchcaps.ops.locally_constrained_routing": Call(
        ops.locally_constrained_routing,
        {"votes": T("B T J d_out H W")},
        {
            "n_iters": ITERATIONS,
            "bias": T("J d_out"),
            "leaky": FLAG,
            "backprop": BACKPROP,
            "backend": choice("auto", "reference"),
            "return_coupling": FLAG,
        },
        right=returns("B J H W d_out", "B J H W", "B H W T J", dtype=("votes",)),
    ),
    "torchcaps.ops.dynamic_routing_3d": Call(
        ops.dynamic_routing_3d,
        {"votes": T("B T J d_out H W")},
        {
            "n_iters": ITERATIONS,
            "bias": T("J d_out"),
            "backprop": BACKPROP,
            "backend": choice("auto", "reference"),
            "return_coupling": FLAG,
        },
        right=returns("B J H W d_out", "B J H W", "B H W T J", dtype=("votes",)),
    ),
    "torchcaps.ops.fixed_routing": Call(
        ops.fixed_routing,
        {"u": T("B I d_in"), "weight": T("I J d_in d_out", "1 J d_in d_out")},
        {"coupling": T("I J", low=0), "bias": T("J d_out"), "return_coupling": FLAG},
        right=returns("B J d_out", "B J", "B I J", dtype=("u", "weight")),
    ),
    "torchcaps.ops.elementwise_sum": Call(
        ops.elementwise_sum, {"u": T("B I D"), "weight": T("I J D")}, right=returns("B J D", dtype=("u", "weight"))
    ),
    "torchcaps.ops.self_attention_routing": Call(
        ops.self_attention_routing,
        _ROUTED,
        {"prior_bias": T("I J"), "scale": choice("upper", "lower"), "return_coupling": FLAG},
        right=returns("B J d_out", "B J", "B I J", dtype=("u", "weight")),
    ),
    "torchcaps.ops.inverted_attention_routing": Call(
        ops.inverted_attention_routing,
        {"pose": T("B I d_in"), "weight": T("I J d_in d_out")},
        {
            "n_iters": ITERATIONS,
            "norm_weight": T("d_out"),
            "norm_bias": T("d_out"),
            "score_weight": T("d_out"),
            "score_bias": T(""),
            "initial": T("B J d_out"),
            "return_coupling": FLAG,
        },
    ),
    "torchcaps.ops.self_routing": Call(
        ops.self_routing,
        {
            "u": T("B I d_in"),
            "activation": T("B I", low=0),
            "weight": maybe(T("I J d_in d_out"), choice(None)),
            "route_weight": T("I J d_in"),
        },
        {"route_bias": T("I J"), "return_coupling": FLAG},
    ),
    "torchcaps.ops.em_routing": Call(
        ops.em_routing,
        {"pose": T("B I 4 4"), "weight": T("I J 4 4"), **_EM},
        {**_EM_OPTIONS, "backend": BACKEND, "offset": T("I 4 4")},
        raises=(Unavailable,),
    ),
    "torchcaps.ops.em_routing (vectors)": Call(
        ops.em_routing,
        {"pose": T("B I d_in"), "weight": T("I J d_in d_out"), **_EM},
        {**_EM_OPTIONS, "offset": T("I d_out")},
    ),
    "torchcaps.ops.conv_em_routing": Call(
        ops.conv_em_routing,
        {
            "pose": maybe(T("B T 5 6 4 4")),
            "activation": maybe(T("B T 5 6", low=0)),
            "weight": maybe(T("T 2 3 J 4 4")),
            "beta_u": T("J"),
            "beta_a": T("J"),
        },
        {
            **_EM_OPTIONS,
            "stride": choice(1, 2, (1, 2)),
            "offset": T("T 2 3 4 4"),
            "backend": BACKEND,
            "compete": choice("all", "positions"),
        },
        raises=(Unavailable,),
    ),
    "torchcaps.ops.em_routing_from_votes": Call(
        ops.em_routing_from_votes,
        {"votes": T("B I J 4 4", "B I J d_out"), **_EM},
        _EM_OPTIONS,
    ),
    "torchcaps.ops.EMSettings": Call(
        ops.EMSettings,
        {},
        {
            "compete": choice("all", "positions"),
            "start": choice("parents", "types"),
            "final_lambda": real(0, 1),
            "lambda_decay": real(0, 0.99),
            "damping": real(0, 0.99),
            "variance_floor": real(1e-6, 1),
            "mass_floor": real(1e-6, 1),
            "cost_scale": real(-1, 1),
            "beta_u_scale": real(-1, 1),
            "beta_a_scale": real(-1, 1),
            "normalize": FLAG,
        },
    ),
    "torchcaps.ops.degree_routing": Call(
        ops.degree_routing,
        _ROUTED,
        {"return_coupling": FLAG},
        right=returns("B J d_out", "B J", "B I J", dtype=("u", "weight")),
    ),
    "torchcaps.ops.attention_routing": Call(
        ops.attention_routing,
        {**_ROUTED, "attention_weight": T("I I J d_out"), "activation_weight": T("J d_out d_out")},
        {"vote_bias": T("I J d_out"), "activation_bias": T("J d_out"), "return_coupling": FLAG},
        right=returns("B J d_out", "B J", "B I J", dtype=("u", "weight")),
    ),
    "torchcaps.ops.heinsen_matrix_routing": Call(
        ops.heinsen_matrix_routing,
        {
            "pose": T("B I 3 4"),
            "activation": T("B I", low=0),
            "weight": T("I J 4 d_out", "1 J 4 d_out"),
            "beta_use": T("I J", "1 J"),
            "beta_ign": T("I J", "1 J"),
        },
        {
            "bias": T("I J 3 d_out", "1 J 3 d_out"),
            "n_iters": ITERATIONS,
            "mask": _mask,
            "backend": choice("auto", "reference"),
            "return_coupling": FLAG,
        },
        right=returns("B J 3 d_out", "B J", "B I J", dtype=("pose", "weight")),
    ),
    "torchcaps.ops.heinsen_vector_routing": Call(
        ops.heinsen_vector_routing,
        {
            "x": T("B I d_in"),
            "activation_weight": T("I d_in", "1 d_in"),
            "activation_bias": T("I", "1"),
            "vote_factor": T("2 d_in"),
            "vote_weight": T("d_in d_out"),
            "vote_bias": T("2 d_out"),
            "prediction_weight": T("d_out d_in"),
            "prediction_factor": T("2 d_in"),
            "prediction_bias": T("2 d_in"),
            "similarity_weight": T("I 2", "1 2"),
            "similarity_bias": T("I 2", "1 2"),
            "beta_use": T("I 2", "B I 2"),
            "beta_ign": T("I 2", "B I 2"),
        },
        {"n_iters": ITERATIONS, "mask": _mask, "return_coupling": FLAG},
        right=returns("B 2 d_out", "B 2", "B I 2", dtype=("x", "vote_weight")),
        names=("J",),
    ),
    "torchcaps.ops.variational_bayes_routing": Call(
        ops.variational_bayes_routing,
        {"pose": maybe(T("B I 4 4")), "weight": T("I J 4 4"), **_EM},
        {"n_iters": ITERATIONS, "offset": T("I 4 4"), "backend": BACKEND, "return_coupling": FLAG},
    ),
    "torchcaps.ops.conv_variational_bayes_routing": Call(
        ops.conv_variational_bayes_routing,
        {
            "pose": maybe(T("B T 5 6 4 4")),
            "activation": maybe(T("B T 5 6", low=0)),
            "weight": maybe(T("T 2 3 J 4 4")),
            "beta_u": T("J"),
            "beta_a": T("J"),
        },
        {
            "n_iters": ITERATIONS,
            "stride": choice(1, 2, (1, 2)),
            "offset": T("T 2 3 4 4"),
            "backend": BACKEND,
            "return_coupling": FLAG,
        },
    ),
    "torchcaps.ops.variational_bayes_routing_from_votes": Call(
        ops.variational_bayes_routing_from_votes,
        {"votes": T("B I J D"), **_EM},
        {"n_iters": ITERATIONS, "return_coupling": FLAG},
        right=returns("B J D", "B J", "B I J", dtype=("votes",)),
    ),
    "torchcaps.ops.dense_votes": Call(ops.dense_votes, _ROUTED, right=returns("B I J d_out", dtype=("u", "weight"))),
    "torchcaps.ops.matrix_votes": Call(
        ops.matrix_votes,
        {"pose": maybe(T("B I rows d")), "weight": T("I J d columns")},
        right=lambda _, arguments, result: (
            None
            if result.shape[-2:] == (arguments["pose"].shape[-2], arguments["weight"].shape[-1])
            else f"of shape {list(result.shape)}"
        ),
    ),
    "torchcaps.ops.receptive_fields": Call(
        ops.receptive_fields,
        {"capsules": T("B T H W D"), "kernel_size": choice((1, 1)), "stride": choice((1, 1), (2, 1))},
        right=_fields,
    ),
    "torchcaps.ops.coordinate_offset": Call(
        ops.coordinate_offset,
        {"height": Size("H"), "width": Size("W"), "d_out": choice(4, 9, 16)},
        {
            "placement": choice("column", "row"),
            "spacing": choice((1.0, 2.0)),
            "centre": choice((0.0, 0.5)),
            "scale": real(0.1, 100),
            "dtype": choice(torch.float32, torch.float64),
            "device": choice("cpu", torch.device("cpu")),
        },
        right=lambda _, arguments, result: (
            None
            if list(result.shape) == [int(arguments[name]) for name in ("height", "width", "d_out")]
            else f"of shape {list(result.shape)}"
        ),
    ),
    "torchcaps.ops.transform_pose": Call(
        ops.transform_pose,
        {"pose": T("B J 2", "B J 3 3"), "matrix": _affine},
        right=lambda _, a, r: None if r.shape == a["pose"].shape else f"of shape {list(r.shape)}",
    ),
    "torchcaps.ops.affine_matrix": Call(ops.affine_matrix, {"parts": _parts}, can_be_endless=True),
    "torchcaps.ops.affine_parts": Call(ops.affine_parts, {"matrix": _affine}, can_be_endless=True),
    "torchcaps.ops.affine_inverse": Call(ops.affine_inverse, {"matrix": _affine}, can_be_endless=True),
    "torchcaps.ops.warp": Call(
        ops.warp,
        {"images": T("B C H W", low=0), "matrix": _affine},
        {"size": choice((3, 5)), "fill": choice("zeros", "border", "reflection")},
        can_be_endless=True,  # a matrix without an inverse
    ),
    "torchcaps.ops.which_backend": Call(
        _which_backend,
        {
            "routing": choice("dynamic", "dynamic_votes", "em", "em_vectors", "variational_bayes"),
            "backend": choice("auto", "reference", "cpu"),
            "first": maybe(T("B I d_in")),
            "second": maybe(T("I J d_in d_out")),
        },
        raises=(Unavailable, NotImplementedError),
        names=("tensors",),
    ),
    "torchcaps.ops.conv2d": Call(
        ops.conv2d,
        {"x": maybe(T("B C 5 6")), "weight": maybe(T("E C 2 3"))},
        {"bias": T("E"), "stride": choice(1, 2, (1, 2)), "padding": choice(0, 1, (0, 1))},
    ),
}
