"""The ways of routing that are compared, as layers take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
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
from torchcaps.layers.routings import DynamicRouting, EMRouting
from torchcaps.ops import (
    Capsules,
    conv,
    conv_em_routing,
    conv_variational_bayes_routing,
    dynamic_routing,
    safe_norm,
    which_backend,
)

Vectors = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]


def vectors(contender: str) -> Vectors:
    """Dynamic routing of u, weight, bias and n_iters by a contender's name; returns the pose.

    Raises:
        ValueError: an unknown name.
    """
    check_choice("contender", contender, DYNAMIC)
    return DYNAMIC[contender]


def maps(contender: str, routing: str = "em") -> Callable[..., Capsules]:
    """Route maps of matrices by a contender's name; called as :func:`torchcaps.ops.conv_em_routing`.

    Args:
        contender: a key of :data:`EM` or :data:`VARIATIONAL_BAYES`.
        routing: "em", or "variational_bayes", which has no settings.

    Raises:
        ValueError: an unknown name.
    """
    known = {"em": EM, "variational_bayes": VARIATIONAL_BAYES}
    check_choice("routing", routing, known)
    check_choice("contender", contender, known[routing])
    return known[routing][contender]


def why_no_triton(routing: str, device: torch.device) -> str | None:
    """Why the GPU kernels of a routing cannot be timed on a device; None where they can.

    Args:
        routing: "dynamic", "em" or "variational_bayes".
        device: where it would run.
    """
    reason = why_triton_fails(routing, device)
    if reason is None and device.type != "cuda":
        return "they run in Triton's interpreter here, whose times say nothing"
    return reason


def why_triton_fails(routing: str, device: torch.device) -> str | None:
    """Why the GPU kernels of a routing cannot run on a device, not even interpreted; None where they can."""
    try:
        which_backend(routing, "triton", torch.empty(1, device=device))
    except (ValueError, RuntimeError) as error:  # Unavailable is a RuntimeError
        return str(error)
    return None


def _library(u: Tensor, weight: Tensor, bias: Tensor | None, n_iters: int, *, backend: str) -> Tensor:
    return dynamic_routing(u, weight, bias=bias, n_iters=n_iters, backend=backend).pose


#: Dynamic routing of vectors, by contender.
DYNAMIC: dict[str, Vectors] = {
    "ours": partial(_library, backend="auto"),
    "reference": partial(_library, backend="reference"),
    "triton": partial(_library, backend="triton"),
    "floor": equal_votes,
    **FORMULATIONS,
}


@dataclass(frozen=True)
class DynamicBy(DynamicRouting):
    """Route vectors by a contender, with the parameters of dynamic routing."""

    by: str = "reference"

    def route(  # type: ignore[override]  # sets with a mask are not compared
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
    ) -> Capsules:
        """Route by the contender."""
        pose = DYNAMIC[self.by](capsules.pose, parts["weight"], parts["bias"], n_iters or self.n_iters)
        return Capsules(pose, safe_norm(pose))

    def route_map(self, *_: Any, **__: Any) -> Capsules:
        """Refuse maps, which the contenders do not route."""
        raise NotImplementedError("the formulations of dynamic routing route densely")


@dataclass(frozen=True)
class EMBy(EMRouting):
    """Route matrices by a contender, with the parameters of EM routing."""

    by: str = "stored_votes"

    def route_map(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        kernel_size: tuple[int, int],
        stride: tuple[int, int],
        state: Capsules | None = None,
        return_coupling: bool = False,
        n_iters: int | None = None,
        **_: Any,
    ) -> Capsules:
        """Route a map by the contender."""
        weight = parts["weight"].unflatten(0, (capsules.pose.shape[1], *kernel_size))
        pose = capsules.pose.unflatten(-1, (4, 4))
        return _EM[self.by](pose, capsules.activation, weight, stride=stride, **self._given(parts, n_iters))

    def route(
        self,
        capsules: Capsules,
        parts: Mapping[str, Any],
        *,
        return_coupling: bool = False,
        n_iters: int | None = None,
        offset: Tensor | None = None,
    ) -> Capsules:
        """Route a map of one place by the contender."""
        made = _EM[self.by](
            capsules.pose.unflatten(-1, (4, 4))[:, :, None, None],
            capsules.activation[:, :, None, None],
            parts["weight"][:, None, None],
            offset=None if offset is None else offset.unflatten(-1, (4, 4))[:, None, None],
            **self._given(parts, n_iters, dense=True),
        )
        return Capsules(made.pose[:, :, 0, 0], made.activation[:, :, 0, 0])

    def _given(self, parts: Mapping[str, Any], n_iters: int | None, **dense: bool) -> dict[str, Any]:
        """Return what the contender wants to know."""
        betas = {"beta_u": parts["beta_u"], "beta_a": parts["beta_a"]}
        if self.by == "floor":
            return betas
        return {**betas, "n_iters": n_iters or self.n_iters, "settings": self.settings, **dense}


#: EM routing of maps of matrices, by contender.
EM: dict[str, Callable[..., Capsules]] = {
    "ours": partial(conv_em_routing, backend="auto"),
    "reference": partial(conv_em_routing, backend="reference"),
    "triton": partial(conv_em_routing, backend="triton"),
    "stored_votes": stored_votes,
}
#: The same of variational Bayes.
VARIATIONAL_BAYES: dict[str, Callable[..., Capsules]] = {
    "ours": partial(conv_variational_bayes_routing, backend="auto"),
    "reference": partial(conv_variational_bayes_routing, backend="reference"),
    "triton": partial(conv_variational_bayes_routing, backend="triton"),
}
#: The library's own ways, by contender.
_IMPLS = {"ours": "auto", "reference": "reference", "compiled": "reference", "triton": "triton"}
_EM = {"floor": conv_equal_votes, "stored_votes": stored_votes}


@contextmanager
def torchs_convolutions() -> Iterator[None]:
    """No convolution goes by frequencies."""
    before, conv.is_faster = conv.is_faster, lambda *_: False
    try:
        yield
    finally:
        conv.is_faster = before


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
            if hasattr(layer.routing, "backend"):  # later routings have one implementation
                layer.routing = replace(layer.routing, backend=_IMPLS[contender])  # type: ignore[type-var]
            if contender == "compiled":
                layer.forward = compiled(layer.forward)
            continue
        kind, known = (EMBy, _EM) if isinstance(layer.routing, EMRouting) else (DynamicBy, DYNAMIC)
        check_choice(f"contender of {layer.routing.name} routing", contender, known)
        options = {field.name: getattr(layer.routing, field.name) for field in fields(layer.routing)}  # type: ignore[arg-type]
        layer.routing = kind(**options, by=contender)
        if contender == "floor" and kind is DynamicBy:
            assert isinstance(layer.weight, nn.Parameter)
            layer.weight = nn.Parameter(in_place_of_votes(layer.weight.detach()))
