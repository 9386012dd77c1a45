"""The way from an image to its classes through any network: what each routed layer was given, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least
from torchcaps.explain.models import inspects_model, scores_of, unwrap
from torchcaps.layers import MatrixPrimaryCaps, PrimaryCaps
from torchcaps.layers.base import RoutedLayer
from torchcaps.ops import Capsules
from torchcaps.typed import typed


class RoutedCall(NamedTuple):
    """One call of a routed layer.

    Attributes:
        layer: the layer.
        lower: the I capsules below it, as it was given them; of poses alone the activations are their lengths.
        upper: what it returned.
        map_shape: (types, rows, columns) of the map that the lower capsules are, in this order; None if they are none.
        arguments: further arguments of the call.
    """

    layer: RoutedLayer
    lower: Capsules
    upper: Capsules
    map_shape: tuple[int, int, int] | None
    arguments: Mapping[str, Any]

    @property
    def iterates(self) -> bool:
        """Return whether the routing has iterations, whose number can be another one."""
        return hasattr(self.layer.routing, "n_iters")

    def again(self, n_iters: int | None = None) -> Capsules:
        """Route the same capsules once more, and return the couplings too.

        Args:
            n_iters: another number of iterations; a routing without iterations has 1.

        Raises:
            ValueError: a number that the routing cannot take, or a routing that returns no couplings.
        """
        if n_iters is not None:
            check_at_least("n_iters", n_iters, 1)
            if not self.iterates and n_iters == 1:
                n_iters = None
        routed = self.layer(self.lower, **{**self.arguments, "n_iters": n_iters, "return_coupling": True})
        if routed.coupling is None:
            raise ValueError(f"model must route by a routing that returns its couplings, got {self.layer.routing.name}")
        return routed


class Trace(NamedTuple):
    """All calls of routed layers, in their order.

    Attributes:
        scores: of the images, ``[B, J]``.
        calls: at least one; the last one is that of the class capsules.
    """

    scores: Tensor
    calls: tuple[RoutedCall, ...]

    @property
    def classes(self) -> RoutedCall:
        """Return the call that made the class capsules."""
        return self.calls[-1]

    def map_shape(self) -> tuple[int, int, int]:
        """Return (types, rows, columns) of the map below the class capsules.

        Raises:
            ValueError: there is none.
        """
        if self.classes.map_shape is None:
            raise ValueError(
                "model must route a map of capsules [B, T, H, W, D] to its classes, got capsules without places, "
                f"[B, I={self.classes.lower.pose.shape[1]}, D]"
            )
        return self.classes.map_shape


@typed
@inspects_model
def trace_routing(model: nn.Module, images: Tensor) -> Trace:
    """Run a network and record what its routed layers are given.

    Args:
        model: any module that routes to its classes by a layer of :mod:`torchcaps.layers`.
        images: ``[B, C, H, W]``.

    Returns:
        :class:`Trace`.

    Raises:
        ValueError: the model routes nothing, or its last routed layer makes no class capsules ``[B, J, D]``.

    Example:
        >>> import torch
        >>> from torchcaps import build
        >>> call = trace_routing(build("capsnet_small", (1, 28, 28), 10), torch.rand(1, 1, 28, 28)).classes
        >>> call.layer, call.map_shape
        (DenseCaps(288×8 -> 10×16, 3 × dynamic, vote_scale=1), (8, 6, 6))
    """
    calls: list[RoutedCall] = []
    maps: list[Capsules] = []

    def note(layer: nn.Module, given: tuple[Any, ...], arguments: dict[str, Any], output: Any) -> None:
        if isinstance(layer, RoutedLayer):
            capsules = given[0] if given else arguments["capsules"]
            further = {name: value for name, value in arguments.items() if name != "capsules"}
            lower = capsules if isinstance(capsules, Capsules) else Capsules(capsules, capsules.norm(dim=-1))
            calls.append(RoutedCall(layer, lower, output, _map_shape(lower, maps), further))
        if isinstance(output, Capsules) and output.activation.dim() == 4:
            maps.append(output)

    layers = [p for p in unwrap(model).modules() if isinstance(p, RoutedLayer | PrimaryCaps | MatrixPrimaryCaps)]
    if not any(isinstance(layer, RoutedLayer) for layer in layers):
        raise ValueError(f"model must have a routed layer, such as a DenseCaps; got a {type(model).__name__} without")
    with ExitStack() as hooks:
        for part in layers:
            hooks.enter_context(part.register_forward_hook(note, with_kwargs=True))
        scores = scores_of(model, images)
    if not calls or calls[-1].upper.activation.dim() != 2:
        what = "calls no routed layer" if not calls else "ends in a map of capsules"
        raise ValueError(f"model must route to class capsules, got a {type(model).__name__}, which {what}")
    return Trace(scores, tuple(calls))


def _map_shape(lower: Capsules, maps: list[Capsules]) -> tuple[int, int, int] | None:
    """Return the shape of the map that capsules are, also where a network flattened it before."""
    if lower.activation.dim() == 4:
        return _sizes(lower)
    for each in reversed(maps):
        pose = each.pose.flatten(1, 3)
        if pose.flatten(2).shape == lower.pose.flatten(2).shape and torch.equal(pose.flatten(2), lower.pose.flatten(2)):
            return _sizes(each)
    return None


def _sizes(capsules: Capsules) -> tuple[int, int, int]:
    types, height, width = capsules.activation.shape[1:]
    return types, height, width
