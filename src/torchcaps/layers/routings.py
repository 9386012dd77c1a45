"""The kinds of routing as layers see them: what parameters each needs, and how it is called."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchcaps.checks import check_choice, check_flag, check_number, check_positive
from torchcaps.layers.em_init import em_init
from torchcaps.layers.init import routing_std, step_scale, truncated_normal_, votes_reach
from torchcaps.ops import Routed, conv_em_routing, dynamic_routing, em_routing, receptive_fields
from torchcaps.ops.em_settings import SMALLEST, EMSettings, em_settings
from torchcaps.ops.votes import check_overlap

POSES = ("matrix", "vector")


class Initial(NamedTuple):
    """A parameter before it has values.

    Attributes:
        shape: of it.
        fill: gives it its initial values, in place.
        per_child: its first axis is the lower capsules; where these stand at several places with one matrix, all
            places have the same values.
    """

    shape: tuple[int, ...]
    fill: Callable[[Tensor], object]
    per_child: bool = False

    @staticmethod
    def constant(shape: tuple[int, ...], value: float) -> Initial:
        """All of it one number."""
        return Initial(shape, partial(nn.init.constant_, val=value))


class Made(NamedTuple):
    """What a layer is made of.

    Attributes:
        parameters: under the names that the operation gives them.
        options: the operation's own.
        pose_scale: deviation that the poses which come out have at first.
        vote_scale: fixed factor on the poses below, see :func:`torchcaps.layers.init.step_scale`; None for none.
    """

    parameters: Mapping[str, Initial | None]
    options: dict[str, Any]
    pose_scale: float
    vote_scale: float | None = None


class Routing(NamedTuple):
    """One kind of routing.

    Attributes:
        make: from the layer's sizes ``(n_in, n_out, d_in, d_out)``, whether it is ``dense``, at how many places
            (``n_places``) each of the n_in stands with the same matrix, and the user's options.
        dense: routes ``[B, I, ...]``.
        activations: the lower capsules' are asked for; else bare poses will do.
        conv: routes a map ``[B, T, H, W, ...]`` within receptive fields, with I = T·K_h·K_w; besides it is given
            ``kernel_size`` and ``stride``, each of rows and columns. None: each field by itself, as ``dense`` does.
        options: names of the user's options, which ``make`` takes.

    ``dense`` and ``conv`` are called with the parameters and options that ``make`` names, and with every layer's
    ``n_iters``, ``gradient``, ``impl`` and ``return_coupling``: they refuse what they cannot do.
    """

    make: Callable[..., Made]
    dense: Callable[..., Routed]
    activations: bool
    conv: Callable[..., Routed] | None = None
    options: tuple[str, ...] = ()

    def on_map(
        self, capsules: Routed, *, kernel_size: tuple[int, int], stride: tuple[int, int], **options: Any
    ) -> Routed:
        """What ``conv`` makes of a map; without one each receptive field is routed as ``dense`` does."""
        if self.conv is not None:
            return self.conv(capsules, kernel_size=kernel_size, stride=stride, **options)
        fields = receptive_fields(capsules.pose, kernel_size, stride)  # [B, H', W', I, d_in]
        active = fields  # any numbers do, of which none is read
        if self.activations:
            active = receptive_fields(capsules.activation.unsqueeze(-1), kernel_size, stride)
        places = fields.shape[:3]
        lower = Routed(fields.flatten(0, 2), active.flatten(0, 2)[..., 0])
        pose, activation, coupling = self.dense(lower, **options)
        return Routed(
            pose.unflatten(0, places).movedim(3, 1),  # [B, J, H', W', d_out]
            activation.unflatten(0, places).movedim(3, 1),
            None if coupling is None else coupling.unflatten(0, places),
        )


def _make_dynamic(
    n_in: int,
    n_out: int,
    d_in: int,
    d_out: int,
    *,
    dense: bool,
    n_places: int,
    weight_std: float | None = None,
    bias: bool = True,
    bias_init: float = 0.0,
    learned_prior: bool = False,
    leaky: bool = False,
    vote_scale: float | None = None,
) -> Made:
    del dense  # it routes within each receptive field as it does in all
    check_number("bias_init", bias_init)
    for name, value in {"bias": bias, "learned_prior": learned_prior, "leaky": leaky}.items():
        check_flag(name, value)
    if vote_scale is None:
        votes = votes_reach(n_in * n_places, n_out, d_in)
        vote_scale = step_scale(votes, d_out) if weight_std is None else 1.0
    check_positive("vote_scale", vote_scale)
    std = routing_std(n_in * n_places, n_out, d_out, n_out + leaky) / vote_scale if weight_std is None else weight_std
    parameters = {
        "weight": Initial((n_in, n_out, d_in, d_out), partial(truncated_normal_, std=std), per_child=True),
        "bias": Initial.constant((n_out, d_out), bias_init) if bias else None,
        "prior": Initial.constant((n_in, n_out), 0.0)._replace(per_child=True) if learned_prior else None,
    }
    return Made(parameters, {"leaky": leaky}, 0.5 / math.sqrt(d_out), vote_scale)  # of length ½


def _make_em(
    n_in: int,
    n_out: int,
    d_in: int,
    d_out: int,
    *,
    dense: bool,
    n_places: int,
    pose: str = "matrix",
    pose_scale: float = 1.0,
    weight_std: float | None = None,
    beta_u_init: float | None = None,
    beta_a_init: float = 0.0,
    settings: str | EMSettings = "released",
    **changes: Any,
) -> Made:
    check_choice("pose", pose, POSES)
    for name, value in {"beta_u_init": 0.0 if beta_u_init is None else beta_u_init, "beta_a_init": beta_a_init}.items():
        check_number(name, value)
    if pose == "matrix" and (d_in, d_out) != (16, 16):
        raise ValueError(f"d_in and d_out must be 16 for 4×4 matrices, got {d_in} and {d_out}; or take pose='vector'")
    inner = (4, 4) if pose == "matrix" else (d_in, d_out)
    check_positive("pose_scale", pose_scale)
    pose_scale = float(pose_scale)
    given = em_settings(settings, dense=dense, **changes)
    if isinstance(settings, str) and "variance_floor" not in changes:
        # The named settings are for poses that spread by 1. Each layer's spread less than those below, and a floor that
        # stays would cover their votes' agreement.
        floor = given.variance_floor * pose_scale * pose_scale
        if not SMALLEST <= floor < math.inf:
            raise ValueError(
                f"pose_scale must leave the variance floor, {given.variance_floor} · pose_scale², "
                f"at {SMALLEST:.3g} or more and finite, got {pose_scale}"
            )
        given = replace(given, variance_floor=floor)
    initial = em_init(n_in * n_places, inner[0], pose_scale, given)
    std = initial.weight_std if weight_std is None else weight_std
    parameters = {
        "weight": Initial((n_in, n_out, *inner), partial(truncated_normal_, std=std), per_child=True),
        "beta_u": Initial.constant((n_out,), initial.beta_u if beta_u_init is None else beta_u_init),
        "beta_a": Initial.constant((n_out,), beta_a_init),
    }
    return Made(parameters, {"pose": pose, "settings": given}, initial.pose_scale)


def _dense_dynamic(capsules: Routed, **options: Any) -> Routed:
    return dynamic_routing(capsules.pose, **options)


def _dense_em(capsules: Routed, *, pose: str, **options: Any) -> Routed:
    return em_routing(_shaped(capsules.pose, pose), capsules.activation, **options)


def _conv_em(
    capsules: Routed,
    *,
    pose: str,
    weight: Tensor,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    n_iters: int,
    settings: EMSettings,
    **options: Any,
) -> Routed:
    if settings.compete == "positions" and n_iters > 1:  # else it would be no routing, without a word
        check_overlap(capsules.pose.shape[2:4], kernel_size, stride)
    options |= {"n_iters": n_iters, "settings": settings}
    weight = weight.unflatten(0, (capsules.pose.shape[1], *kernel_size))
    return conv_em_routing(_shaped(capsules.pose, pose), capsules.activation, weight, stride=stride, **options)


def _shaped(vectors: Tensor, pose: str) -> Tensor:
    """Poses ``[..., 16]`` as 4×4 matrices where they are such."""
    return vectors.unflatten(-1, (4, 4)) if pose == "matrix" else vectors


def _options(make: Callable[..., Made]) -> tuple[str, ...]:
    every = inspect.signature(make).parameters.values()
    given = (one.name for one in every if one.kind is one.KEYWORD_ONLY)
    return tuple(name for name in given if name not in ("dense", "n_places"))


#: Every routing, by the name under which layers take it.
ROUTINGS = {
    "dynamic": Routing(_make_dynamic, _dense_dynamic, False, options=_options(_make_dynamic)),
    "em": Routing(
        _make_em, _dense_em, True, _conv_em, (*_options(_make_em), *(field.name for field in fields(EMSettings)))
    ),
}
