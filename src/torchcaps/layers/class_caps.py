"""Class capsules that share their matrices over places."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_choice, check_number, check_positive, check_two
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.routing import Routing, understood
from torchcaps.ops import Capsules, coordinate_offset
from torchcaps.ops.backends.tracing import is_plain
from torchcaps.ops.votes import PLACEMENTS


class ClassCaps(RoutedLayer):
    """Capsules that see a whole map, each type with the same matrix wherever it stands.

    What a type votes does not depend on its place, except for coordinate addition: the place itself is added to
    two elements of the vote.

    Args:
        n_types: types of capsule T in the map below.
        n_out: upper capsules, J.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        routing: as :class:`DenseCaps`.
        map_size: (H, W) of the maps that initial values are made for: of more capsules the classes of dynamic routing
            would be longer than ½ at first, and those of 100 times as many saturated. Maps of any size are taken.
        coordinates: "column" (the paper), "row" (the released code) or None; for routings that know an offset, as EM.
        spacing: pixels of the image between neighbouring rows, and columns, of the map.
        centre: where the map's centre lies, in pixels down and right from the image's.
        coordinate_scale: pixels for which 1 is added; by default 100 / ``pose_scale``, so that 100 pixels weigh as much
            as the poses below.

    Input:
        capsules: a ``Capsules`` (or, for dynamic routing, its pose), ``[B, T, H, W, d_in]`` or 4×4 matrices
            ``[B, T, H, W, 4, 4]``, any H and W.
        n_iters, return_coupling, state: as :class:`DenseCaps`.

    Output:
        :class:`~torchcaps.ops.Capsules` with pose ``[B, J, d_out]`` or ``[B, J, 4, 4]``, activation ``[B, J]``,
        and on request coupling ``[B, T·H·W, J]``.

    Raises:
        ValueError: another number of types or pose size; coordinates where the routing or pose has no place
            for them.

    Example:
        >>> import torch
        >>> from torchcaps import Capsules
        >>> lower = Capsules(torch.rand(2, 16, 4, 4, 16), torch.rand(2, 16, 4, 4))
        >>> ClassCaps(16, 5, 16, 16, routing="em", map_size=(4, 4), coordinates="column")(lower).activation.shape
        torch.Size([2, 5])

    Source: Hinton, Sabour, Frosst 2018, section 4.
    """

    def __init__(
        self,
        n_types: int,
        n_out: int,
        d_in: int,
        d_out: int,
        *,
        routing: Routing | str = "dynamic",
        map_size: tuple[int, int] = (1, 1),
        coordinates: str | None = None,
        spacing: tuple[float, float] = (1.0, 1.0),
        centre: tuple[float, float] = (0.0, 0.0),
        coordinate_scale: float | None = None,
    ) -> None:
        check_at_least("n_types", n_types, 1)
        check_two("map_size", map_size, 1)
        for name, value in (("spacing", spacing), ("centre", centre)):
            check_two(name, value)
            for number in value:
                check_number(f"each of {name}", number)
        if coordinate_scale is not None:
            check_positive("coordinate_scale", coordinate_scale)
        super().__init__(n_types, n_out, d_in, d_out, routing=routing, n_places=map_size[0] * map_size[1])
        if coordinates is not None:
            check_choice("coordinates", coordinates, PLACEMENTS)
            if "offset" not in understood(type(self.routing)):
                raise ValueError(f"coordinates must be None with {self.routing.name} routing, got {coordinates!r}")
        self.n_types = n_types
        self.coordinates, self.spacing, self.centre = coordinates, spacing, centre
        if coordinate_scale is None:
            coordinate_scale = 100 / float(self.routing.pose_scale)
        self.coordinate_scale = coordinate_scale
        self.offset(1, 1)  # whether a vote has a place for them

    def forward(
        self,
        capsules: Capsules | Tensor,
        *,
        n_iters: int | None = None,
        return_coupling: bool = False,
        state: Capsules | None = None,
    ) -> Capsules:
        """Route all capsules of a map to the classes; *Input* and *Output* of the class say the shapes."""
        lower = self.routed_map(capsules, self.n_types)
        height, width = lower.pose.shape[2:4]
        offset = self.offset(height, width, lower.pose.dtype, lower.pose.device)
        call = self.call_arguments(return_coupling, lower.pose.shape[0], n_iters=n_iters, state=state, offset=offset)
        parts = self.parts()
        for name in self.per_child:
            parts[name] = parts[name].repeat_interleave(height * width, dim=0)  # [T·H·W, J, ...]
        lower = Capsules(lower.pose.flatten(1, 3), lower.activation.flatten(1, 3))
        return self.returned(self.routing.route(lower, parts, **call), 2)

    def _constants(self) -> dict[str, float]:
        return {**super()._constants(), "coordinate_scale": self.coordinate_scale}

    def _take(self, constants: Mapping[str, float]) -> None:
        self.coordinate_scale = constants["coordinate_scale"]
        super()._take(constants)

    def offset(
        self, height: int, width: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor | None:
        """Return what coordinate addition adds to the votes of each capsule of a map of this size.

        Returns:
            ``[T·H·W, d_out]`` of ``dtype``, made on ``device``; or None without coordinates.
        """
        if self.coordinates is None:
            return None
        sizes, options = (
            (height, width, self.d_out),
            {
                "placement": self.coordinates,
                "spacing": tuple(self.spacing),
                "centre": tuple(self.centre),
                "scale": self.coordinate_scale,
            },
        )
        if torch.device(device).type != "cpu" or not is_plain():
            return _repeated(self.n_types, *sizes, **options, dtype=dtype, device=device)
        kept = torch.float32 if dtype == torch.float32 else torch.float64
        return torch.from_numpy(_kept(self.n_types, *sizes, **options, dtype=kept)).to(dtype, copy=True)

    def extra_repr(self) -> str:
        """Describe the layer for ``print``: shapes, then options."""
        scale = "" if self.coordinates is None else f", coordinate_scale={self.coordinate_scale:.4g}"
        return (
            f"[B, {self.n_types}, H, W, {self.d_in}] -> {self.n_out}×{self.d_out}, {self.routing_repr()}, "
            f"coordinates={self.coordinates}{scale}"
        )


def _repeated(n_types: int, *sizes: int, **options: Any) -> Tensor:
    return coordinate_offset(*sizes, **options).flatten(0, 1).repeat(n_types, 1)


@functools.lru_cache  # of arrays: a tensor belongs to the mode of its first call, such as inference
def _kept(n_types: int, *sizes: int, **options: Any) -> np.ndarray:
    """Keep what is the same at every call; to compute it takes as long as all else of a small layer for one image."""
    return _repeated(n_types, *sizes, **options).numpy()
