"""The kernels of EM routing for one problem: how they are started, and what they hand to each other."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.backends.triton import APART, load, on
from torchcaps.ops.em.blocks import blocks, parts
from torchcaps.ops.em.operator import Settings, places
from torchcaps.ops.precision import computed_in

#: Numbers of a parent's record, forward and backward; see ``triton_tiles.py``.
FORWARD, BACKWARD = 52, 84
#: Parents in a tile of the kernels that make no votes, elements of an image that are levelled at once, and their warps.
PARENTS, LEVELLED, SMALL_WARPS = 32, 1024, 4


class Sums(NamedTuple):
    """Σ r ``[parts, B, P, J]``, Σ r (V − μ) and Σ r (V − μ)² ``[parts, B, P, J, 16]``."""

    s0: Tensor
    s1: Tensor
    s2: Tensor


class Passes(NamedTuple):
    """The kernels for one problem, and the tensors that they hand to each other.

    Attributes:
        sizes: integers of the geometry.
        constants: those that kernels are compiled for.
        pose: ``[B, H, W, 4, T, 4]``.
        activation: ``[B, H, W, T]``.
        begun: activation times R of the first M-step.
        weight: for the lanes of children ``[K, J, 4, T, 4]``, and of parents ``[K, T, 4, J, 4]``.
        offset: ``[T, K, 16]`` or None.
        records: of the parents, ``[B, P, J, RECORD]``.
        found: of every child, or of every child and type, ``[..., 4]``; see ``triton_tiles.py``.
    """

    sizes: dict[str, int]
    constants: dict[str, Any]
    pose: Tensor
    activation: Tensor
    begun: Tensor
    weight: tuple[Tensor, Tensor]
    offset: Tensor | None
    records: Tensor
    found: Tensor

    @classmethod
    def of(
        cls,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        offset: Tensor | None,
        stride: list[int],
        positions: bool,
        types_first: bool,
        *,
        backward: bool = False,
        linear: bool = False,
    ) -> Passes:
        """Lay out what is given, in the dtype that is computed in."""
        dtype, upper = computed_in(pose, weight), places(pose, weight, stride)
        (n_images, types, height, width), (rows, columns, n_out) = pose.shape[:4], weight.shape[1:4]
        values = (n_images, types, height, width, *upper, *stride, n_out)
        names = ("n_images", "T", "H", "W", "HO", "WO", "SH", "SW", "J")
        kernels = weight.flatten(1, 2).movedim(1, 0)  # [K, T, J, 4, 4]
        ours, begun = (_empty(activation, n_images, height, width, types) for _ in range(2))
        child = n_images, height, width, types, *((n_out,) if positions else ())
        record = BACKWARD if backward else FORWARD
        passes = cls(
            dict(zip(names, values, strict=True)),
            {"KH": rows, "KW": columns, "RECORD": record, "POSITIONS": positions, "LINEAR": linear},
            _laid(pose, dtype, 0, 2, 3, 4, 1, 5),
            ours,
            begun,
            (_laid(kernels, dtype, 0, 2, 3, 1, 4), _laid(kernels, dtype, 0, 1, 3, 2, 4)),
            None if offset is None else offset.contiguous(),
            _empty(activation, n_images, math.prod(upper), n_out, record),
            _empty(activation, *child, 4),
        )
        passes.begin(activation, ours, begun, types_first)
        return passes

    def begin(self, activation: Tensor, ours: Tensor, begun: Tensor, types: bool) -> None:
        """Write activations in the kernels' order, and these times R of the first M-step."""
        block, n_programs = blocks("begin_pass", activation.numel(), activation.dtype)
        sizes = self.sizes | {"n_images": len(activation)}
        kernel_size = {name: self.constants[name] for name in ("KH", "KW")}
        with on(activation.device):
            load("em").begin_pass[(n_programs,)](
                activation.contiguous(), ours, begun, **sizes, types=int(types), **kernel_size, **block
            )

    def first_coupling(self, types: bool) -> Tensor:
        """Compute R of the first M-step, ``[H', W', T·K_h·K_w, 1]``."""
        s, c = self.sizes, self.constants
        shape = (1, s["T"], s["H"], s["W"])
        ours, begun = _empty(self.pose, *shape), _empty(self.pose, 1, *shape[2:], s["T"])
        self.begin(torch.ones(shape, dtype=self.pose.dtype, device=self.pose.device), ours, begun, types)
        fields = begun[0].unfold(0, c["KH"], s["SH"]).unfold(1, c["KW"], s["SW"])  # [H', W', T, K_h, K_w]
        return fields.flatten(2)[..., None]

    @property
    def n_parents(self) -> int:
        """Count the parents of all images."""
        return math.prod(self.records.shape[:3])

    def children(self, *, backward: bool = False, d_coupling: Tensor | None = None) -> None:
        """Find the highest logits and sums of exponentials; backward, mean slopes too."""
        block, grid = self._over_children("child_pass", d_coupling)
        given = self.pose, self.activation, self.weight[0], self.offset, self.records, d_coupling, self.found
        with on(self.pose.device):
            load("em").child_pass[grid](*given, **self.sizes, **self.constants, **block, BACKWARD=backward)

    def parents(
        self,
        *,
        first: bool = False,
        around: bool = True,
        backward: bool = False,
        d_coupling: Tensor | None = None,
        again: Tensor | None = None,
        coupling: Tensor | None = None,
    ) -> Sums:
        """Sum over parts of each receptive field. Unless ``around``, sums are around 0 and without squares."""
        n_rows = self.sizes["T"] * self.constants["KH"] * self.constants["KW"]
        extras = self._has_extras(d_coupling)
        states = "five" if backward else "three" if again is not None else "two"
        block, n_programs = blocks(f"parent_pass of {states} states", self.n_parents, self.pose.dtype, extras=extras)
        n_parts, per_part = parts(n_rows, n_programs * block["num_warps"])
        s0 = _empty(self.pose, n_parts, *self.records.shape[:3])
        s1, s2 = (_empty(self.pose, *s0.shape, 16) for _ in range(2))
        with on(self.pose.device):
            load("em").parent_pass[(n_programs, n_parts)](
                self.pose,
                self.begun,
                self.weight[1],
                self.offset,
                self.records,
                d_coupling,
                self.found,
                again,
                coupling,
                s0,
                s1,
                s2,
                **self.sizes,
                per_part=per_part,
                **self.constants,
                **block,
                FIRST=first,
                AROUND=around,
                BACKWARD=backward,
            )
        return Sums(s0, s1, s2)

    def gradients(
        self,
        d_pose: Tensor,
        d_activation: Tensor,
        d_weight: Tensor,
        *,
        first: bool = False,
        stop: bool = False,
        types: bool = False,
        more: bool = False,
        d_coupling: Tensor | None = None,
    ) -> None:
        """Compute gradients of one iteration, in the kernels' order; add to earlier ones where there are ``more``."""
        rest = self.offset, self.records, d_coupling, self.found
        given = self.pose, self.begun if first else self.activation, self.weight[0], *rest
        choices: dict[str, Any] = {"more": int(more), **self.constants, "FIRST": first, "STOP": stop}
        s = self.sizes
        block, grid = self._over_children("pose_pass", d_coupling)
        with on(self.pose.device):
            load("em").pose_pass[grid](*given, d_pose, d_activation, **s, types=int(types), **choices, **block)
            n_lanes, extras = s["J"] * s["T"], self._has_extras(d_coupling)
            block, n_programs = blocks("weight_pass", n_lanes, self.pose.dtype, extras=extras)
            n_parts, per_part = self.weight_parts()
            grid = n_programs, self.constants["KH"] * self.constants["KW"], n_parts
            load("em").weight_pass[grid](*given, d_weight, **s, per_part=per_part, **choices, **block)

    def weight_parts(self) -> tuple[int, int]:
        """Choose into how many parts the gradient of the weights is cut, and how many places of all images each has."""
        s = self.sizes
        block, n_programs = blocks("weight_pass", s["J"] * s["T"], self.pose.dtype)
        n_places = s["n_images"] * s["HO"] * s["WO"]
        return parts(n_places, n_programs * block["num_warps"] * self.constants["KH"] * self.constants["KW"])

    def mean(
        self, sums: Sums, state: Tensor, numbers: Tensor, again: Tensor, settings: Settings, *, first: bool
    ) -> None:
        """Compute the mass and the move of the mean; later the residual, and whether to sum again."""
        floors = [bits(x) for x in (settings.mass_floor, settings.variance_floor, settings.damping)]
        with on(self.pose.device):
            load("em").mean_pass[self._over_parents()](
                *sums, self.records, state, numbers, again, self.n_parents, len(sums.s0), *floors,
                FIRST=first, **self._tile(),
            )  # fmt: skip

    def fit(
        self,
        sums: Sums,
        again: Tensor,
        state: Tensor,
        numbers: Tensor,
        log_ap: Tensor,
        betas: tuple[Tensor, Tensor],
        results: tuple[Tensor, Tensor],
        inverse_temperature: float,
        settings: Settings,
        *,
        first: bool,
        last: bool,
    ) -> None:
        """Compute variance and logit, and with them the next E-step's records; the ``last`` time the results."""
        n_images, n_places, n_out = self.records.shape[:3]
        with on(self.pose.device):
            load("em").fit_pass[self._over_parents()](
                sums.s1, sums.s2, again, self.records, state, numbers, log_ap, *betas, *results,
                self.n_parents, len(sums.s0), n_places, n_out, int(last), *_bits(inverse_temperature, settings),
                FIRST=first, **self._tile(),
            )  # fmt: skip
            if not last:
                load("em").level_pass[(n_images,)](
                    log_ap, self.records, numbers[2], n_places * n_out,
                    RECORD=self.constants["RECORD"], N=LEVELLED, num_warps=SMALL_WARPS, **APART,
                )  # fmt: skip

    def slopes(
        self,
        sums: Sums | None,
        d_results: tuple[Tensor, Tensor],
        kept: tuple[Tensor, Tensor],
        carried: Tensor,
        d_betas: Tensor,
        beta_u: Tensor,
        t: int,
        inverse_temperature: float,
        settings: Settings,
    ) -> None:
        """Hand over what iteration t's M-step was given, and its gradients: of the last one where there are no sums."""
        _, n_places, n_out = self.records.shape[:3]
        scalars = bits(settings.mass_floor), bits(settings.damping), *_bits(inverse_temperature, settings)
        with on(self.pose.device):
            load("em").slopes_pass[self._over_parents()](
                *(sums or (None, None, None)), *d_results, self.records, *kept, carried, d_betas, beta_u,
                self.n_parents, len(sums.s0) if sums else 0, n_places, n_out, t, *scalars,
                LAST=sums is None, **self._tile(),
            )  # fmt: skip

    def _has_extras(self, d_coupling: Tensor | None) -> bool:
        return self.offset is not None or d_coupling is not None

    def _over_children(self, kernel: str, d_coupling: Tensor | None) -> tuple[dict[str, int], tuple[int]]:
        """Start a program for each place of the lower map, and for each block of images and types."""
        s = self.sizes
        block, n_programs = blocks(kernel, s["n_images"] * s["T"], self.pose.dtype, extras=self._has_extras(d_coupling))
        return block, (n_programs * s["H"] * s["W"],)

    def _over_parents(self) -> tuple[int]:
        return (math.ceil(self.n_parents / PARENTS),)

    def _tile(self) -> dict[str, Any]:
        return {"RECORD": self.constants["RECORD"], "N": PARENTS, "num_warps": SMALL_WARPS} | APART


def bits(number: float) -> int:
    """Return the bits of a float64 as an integer: triton would hand over a float32."""
    return struct.unpack("q", struct.pack("d", number))[0]


def _bits(inverse_temperature: float, settings: Settings) -> list[int]:
    scales = settings.ratio, settings.scale_a, settings.scale_u, settings.scale_variance
    return [bits(x) for x in (inverse_temperature, *scales, settings.variance_floor)]


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _laid(x: Tensor, dtype: torch.dtype, *axes: int) -> Tensor:
    """Copy with the axes in this order."""
    x = x.permute(axes)
    return torch.empty(x.shape, dtype=dtype, device=x.device).copy_(x)
