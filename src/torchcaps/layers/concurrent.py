"""Several layers that route at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from torchcaps.checks import check_at_least
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.routing import understood
from torchcaps.types import Capsules


def route_concurrently(
    layers: Sequence[RoutedLayer], capsules: Capsules, n_passes: int, *, return_coupling: bool = False
) -> list[Capsules]:
    """Update all layers at once in every pass but the first, each from what the pass before left.

    The first pass runs from bottom to top. In every later one, each layer reads the lower poses and its own
    poses of the pass *before*. With one layer that is the same as so many passes of it. With two they part from the
    second pass on.

    Args:
        layers: capsule layers whose routing begins from a state, as
            :class:`~torchcaps.layers.InvertedAttentionRouting` does; the lowest first.
        capsules: below the lowest.
        n_passes: passes over all layers, at least 1.
        return_coupling: fill every layer's ``coupling`` with that of the last pass.

    Returns:
        The capsules of each layer.

    Raises:
        ValueError: no layer, ``n_passes`` below 1, or a routing that knows no state or no iterations.

    Example:
        >>> import torch
        >>> from torchcaps import Capsules, DenseCaps
        >>> hidden, top = (DenseCaps(6, n, 16, 16, routing="inverted_attention") for n in (6, 3))
        >>> lower = Capsules(torch.rand(2, 6, 16), torch.rand(2, 6))
        >>> route_concurrently([hidden, top], lower, 2)[-1].activation.shape
        torch.Size([2, 3])

    Source: Tsai, Srivastava, Goh, Salakhutdinov 2020, ICLR, arXiv 2002.04764, section 3 (concurrent routing).
    """
    if not isinstance(layers, Sequence | nn.ModuleList) or not all(isinstance(each, RoutedLayer) for each in layers):
        raise ValueError(f"layers must list capsule layers that route, got {layers!r:.80}")
    if not layers:
        raise ValueError("layers must hold at least one layer, got none")
    for layer in layers:
        if not {"state", "n_iters"} <= understood(type(layer.routing)):
            raise ValueError(f"layers must have a routing that takes a state, got {layer.routing.name} routing")
    check_at_least("n_passes", n_passes, 1)
    upper: list[Capsules] = []
    for layer in layers:  # bottom to top
        upper.append(layer([capsules, *upper][-1], n_iters=1, return_coupling=return_coupling and n_passes == 1))
    for t in range(1, n_passes):
        last = return_coupling and t == n_passes - 1
        each = zip(layers, [capsules, *upper[:-1]], upper, strict=True)
        upper = [layer(x, state=y, n_iters=1, return_coupling=last) for layer, x, y in each]
    return upper
