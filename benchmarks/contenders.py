"""The ways of routing that are compared, as layers take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compiled import compiled
from benchmarks.floor import conv_equal_votes, equal_votes, in_place_of_votes
from benchmarks.textbook import FORMULATIONS
from benchmarks.textbook_em import stored_votes
from torchcaps.checks import check_choice
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.routings import ROUTINGS, Routing
from torchcaps.ops import Routed, conv, conv_em_routing, dynamic_routing, safe_norm, which_impl

Vectors = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]


def vectors(contender: str) -> Vectors:
    """Dynamic routing of u, weight, bias and n_iters by a contender's name; returns the pose.

    Raises:
        ValueError: an unknown name.
    """
    check_choice("contender", contender, DYNAMIC)
    return DYNAMIC[contender]


def maps(contender: str) -> Callable[..., Routed]:
    """EM routing of maps by a contender's name; called as :func:`torchcaps.ops.conv_em_routing`.

    Raises:
        ValueError: an unknown name.
    """
    check_choice("contender", contender, EM)
    return EM[contender]


def why_no_triton(routing: str, device: torch.device) -> str | None:
    """Why the GPU kernels of a routing cannot be timed on a device; None where they can.

    Args:
        routing: "dynamic" or "em".
        device: where it would run.
    """
    reason = why_triton_fails(routing, device)
    if reason is None and device.type != "cuda":
        return "they run in Triton's interpreter here, whose times say nothing"
    return reason


def why_triton_fails(routing: str, device: torch.device) -> str | None:
    """Why the GPU kernels of a routing cannot run on a device, not even interpreted; None where they can."""
    try:
        which_impl(routing, "triton", torch.empty(1, device=device))
    except (ValueError, RuntimeError) as error:  # Unavailable is a RuntimeError
        return str(error)
    return None


def _library(u: Tensor, weight: Tensor, bias: Tensor | None, n_iters: int, *, impl: str) -> Tensor:
    return dynamic_routing(u, weight, bias=bias, n_iters=n_iters, impl=impl).pose


#: Dynamic routing of vectors, by contender.
DYNAMIC: dict[str, Vectors] = {
    "ours": partial(_library, impl="auto"),
    "reference": partial(_library, impl="reference"),
    "triton": partial(_library, impl="triton"),
    "floor": equal_votes,
    **FORMULATIONS,
}


def _dense(capsules: Routed, *, weight: Tensor, bias: Tensor, n_iters: int, by: Vectors, **_: Any) -> Routed:
    pose = by(capsules.pose, weight, bias, n_iters)
    return Routed(pose, safe_norm(pose))


def _no_maps(*_: Any, **__: Any) -> Routed:
    raise NotImplementedError("the formulations of dynamic routing route densely")


def _em_maps(
    capsules: Routed,
    *,
    weight: Tensor,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    by: Callable[..., Routed],
    **given: Any,
) -> Routed:
    weight = weight.unflatten(0, (capsules.pose.shape[1], *kernel_size))
    return by(capsules.pose.unflatten(-1, (4, 4)), capsules.activation, weight, stride=stride, **_em_given(by, given))


def _em_dense(
    capsules: Routed, *, weight: Tensor, by: Callable[..., Routed], offset: Tensor | None = None, **given: Any
) -> Routed:
    pose = capsules.pose.unflatten(-1, (4, 4))[:, :, None, None]
    offset = None if offset is None else offset[:, None, None]
    made = by(
        pose,
        capsules.activation[:, :, None, None],
        weight[:, None, None],
        offset=offset,
        **_em_given(by, given | {"dense": True}),
    )
    return Routed(made.pose[:, :, 0, 0], made.activation[:, :, 0, 0])


def _em_given(by: Callable[..., Routed], given: dict[str, Any]) -> dict[str, Any]:
    """What the formulation wants to know of a layer's options."""
    wanted = ("beta_u", "beta_a") if by is conv_equal_votes else ("beta_u", "beta_a", "n_iters", "settings", "dense")
    return {name: given[name] for name in wanted if name in given}


def _routing(by: Vectors) -> Routing:
    return ROUTINGS["dynamic"]._replace(dense=partial(_dense, by=by), conv=_no_maps)


#: EM routing of maps of matrices, by contender.
EM: dict[str, Callable[..., Routed]] = {
    "ours": partial(conv_em_routing, impl="auto"),
    "reference": partial(conv_em_routing, impl="reference"),
    "triton": partial(conv_em_routing, impl="triton"),
    "stored_votes": stored_votes,
}
#: The library's own ways, by contender.
_IMPLS = {"ours": "auto", "reference": "reference", "compiled": "reference", "triton": "triton"}
_EM = {"floor": conv_equal_votes, "stored_votes": stored_votes}
_ADDED = {f"dynamic by {name}": _routing(by) for name, by in DYNAMIC.items()} | {
    f"em by {name}": ROUTINGS["em"]._replace(dense=partial(_em_dense, by=by), conv=partial(_em_maps, by=by))
    for name, by in _EM.items()
}


@contextmanager
def known_to_layers() -> Iterator[None]:
    """Layers find the contenders among the routings; afterwards these are the library's own again."""
    ROUTINGS.update(_ADDED)
    try:
        yield
    finally:
        for name in _ADDED:
            del ROUTINGS[name]


@contextmanager
def torchs_convolutions() -> Iterator[None]:
    """No convolution goes by frequencies."""
    before, conv.worthwhile = conv.worthwhile, lambda *_: False
    try:
        yield
    finally:
        conv.worthwhile = before


def take(model: nn.Module, contender: str) -> None:
    """Let all routed layers of a model route in another way: same parameters, same names.

    Args:
        model: a capsule network, or one without routed layers, which stays as it is.
        contender: "ours", "reference", "compiled" (the reference through torch.compile), "triton", "floor", one of
            :data:`~benchmarks.textbook.FORMULATIONS`, or "stored_votes" for EM routing.

    Raises:
        ValueError: an unknown one.
    """
    for layer in (layer for layer in model.modules() if isinstance(layer, RoutedLayer)):
        if contender in _IMPLS:
            layer.impl = _IMPLS[contender]
            if contender == "compiled":
                layer.forward = compiled(layer.forward)
            continue
        prefix = f"{layer.routing} by "
        check_choice("contender", prefix + contender, [name for name in _ADDED if name.startswith(prefix)])
        if prefix + contender == "dynamic by floor":
            assert isinstance(layer.weight, nn.Parameter)
            layer.weight = nn.Parameter(in_place_of_votes(layer.weight.detach()))
        layer.routing = prefix + contender
