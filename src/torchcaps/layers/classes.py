"""Class capsules that share their matrices over places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_choice, check_number, check_positive, check_two
from torchcaps.layers.routed_layer import RoutedLayer
from torchcaps.layers.routings import ROUTINGS
from torchcaps.ops import Routed, coordinate_offset
from torchcaps.ops.votes import PLACEMENTS


class ClassCaps(RoutedLayer):
    """Capsules that see a whole map, each type with the same matrix wherever it stands.

    What a type votes does not depend on its place, but for coordinate addition: the place itself is added to
    two elements of the vote.

    Args:
        n_types: types of capsule T in the map below.
        n_out: upper capsules, J.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        n_iters: passes of the routing.
        map_size: (H, W) of the maps that initial values are made for: of more capsules the classes of dynamic routing
            would be longer than ½ at first, and those of 100 times as many saturated. Maps of any size are taken.
        coordinates: "column" (the paper), "row" (the released code) or None; for EM routing.
        spacing: pixels of the image between neighbouring rows, and columns, of the map.
        centre: where the map's centre lies, in pixels down and right from the image's.
        coordinate_scale: pixels for which 1 is added; by default 100 / ``pose_scale``, so that 100 pixels weigh as much
            as the poses below.
        options: as :class:`~torchcaps.layers.routed_layer.RoutedLayer`.

    Input:
        capsules: a ``Routed`` (or, for dynamic routing, its pose), ``[B, T, H, W, d_in]`` or 4×4 matrices
            ``[B, T, H, W, 4, 4]``, any H and W.
        n_iters, return_coupling: as :class:`DenseCaps`.

    Output:
        :class:`~torchcaps.ops.Routed` with pose ``[B, J, d_out]`` or ``[B, J, 4, 4]``, activation ``[B, J]``,
        and on request coupling ``[B, T·H·W, J]``.

    Raises:
        ValueError: another number of types or pose size; coordinates where the routing or pose has no place
            for them.

    Source: Hinton, Sabour, Frosst 2018, section 4.
    """

    def __init__(
        self,
        n_types: int,
        n_out: int,
        d_in: int,
        d_out: int,
        n_iters: int = 3,
        *,
        map_size: tuple[int, int] = (1, 1),
        coordinates: str | None = None,
        spacing: tuple[float, float] = (1.0, 1.0),
        centre: tuple[float, float] = (0.0, 0.0),
        coordinate_scale: float | None = None,
        **options: Any,
    ) -> None:
        check_at_least("n_types", n_types, 1)
        check_two("map_size", map_size, 1)
        if "n_places" in options:
            raise ValueError(f"n_places must be left to map_size, got {options['n_places']}")
        for name, value in (("spacing", spacing), ("centre", centre)):
            check_two(name, value)
            for number in value:
                check_number(f"each of {name}", number)
        if coordinate_scale is not None:
            check_positive("coordinate_scale", coordinate_scale)
        super().__init__(n_types, n_out, d_in, d_out, n_iters, n_places=map_size[0] * map_size[1], **options)
        if coordinates is not None:
            check_choice("coordinates", coordinates, PLACEMENTS)
            if self.routing != "em":
                raise ValueError(f"coordinates must be None with {self.routing} routing, got {coordinates!r}")
        self.coordinates, self.spacing, self.centre = coordinates, spacing, centre
        if coordinate_scale is None:
            coordinate_scale = 100 / float(options.get("pose_scale", 1.0)) if self.routing == "em" else 100.0
        self.coordinate_scale = coordinate_scale
        self.offset(1, 1)  # whether a vote has a place for them

    def forward(
        self, capsules: Routed | Tensor, *, n_iters: int | None = None, return_coupling: bool = False
    ) -> Routed:
        lower = self.routed_map(capsules, self.n_in)
        height, width = lower.pose.shape[2:4]
        options = self.call_options(n_iters, return_coupling)
        for name in self.per_child:
            options[name] = options[name].repeat_interleave(height * width, dim=0)  # [T·H·W, J, ...]
        offset = self.offset(height, width, lower.pose.dtype, lower.pose.device)
        if offset is not None:
            options["offset"] = offset.unflatten(1, (4, 4)) if self.options["pose"] == "matrix" else offset
        return ROUTINGS[self.routing].dense(Routed(lower.pose.flatten(1, 3), lower.activation.flatten(1, 3)), **options)

    def offset(
        self, height: int, width: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor | None:
        """What coordinate addition adds to the votes of each capsule of a map of this size.

        Returns:
            ``[T·H·W, d_out]`` of ``dtype``, made on ``device``; or None without coordinates.
        """
        if self.coordinates is None:
            return None
        offset = coordinate_offset(
            height,
            width,
            self.d_out,
            placement=self.coordinates,
            spacing=self.spacing,
            centre=self.centre,
            scale=self.coordinate_scale,
            dtype=dtype,
            device=device,
        )
        return offset.flatten(0, 1).repeat(self.n_in, 1)

    def extra_repr(self) -> str:
        scale = "" if self.coordinates is None else f", coordinate_scale={self.coordinate_scale:.4g}"
        return (
            f"[B, {self.n_in}, H, W, {self.d_in}] -> {self.n_out}×{self.d_out}, {self.routing_repr()}, "
            f"coordinates={self.coordinates}{scale}"
        )
