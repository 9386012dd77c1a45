"""The kernels of EM routing for one problem: how they are started, and what they hand to each other."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops.fused.em_operator import places
from torchcaps.ops.fused.operators import computed_in
from torchcaps.ops.fused.triton.cuts import APART, cut, power
from torchcaps.ops.fused.triton.library import load, on

#: Children or parents times types of parent in a tile, and its warps: 8 numbers for each thread, for there are about
#: ten tiles in the backward passes.
TILE, WARPS = 128, 8
LEAST_TILE = 8
#: Tensors in the parents' states: mean and variance of the E-step, how far the mean moved, and two slopes.
STATES = 5


class Passes(NamedTuple):
    """The kernels for one problem, and the tensors that they hand to each other.

    Attributes:
        sizes: constants of the geometry.
        given: pose, activation, weight and offset, contiguous.
        begin: R of the first M-step, ``[H, W]``.
        tiles: states of the parents, ``[STATES, B, P, J, 16]``.
        numbers: constants of the logits, but for what all have in common, and slopes k: ``[2, B, P, J]``.
        found: of every child, or of every child and type: highest logit, inverse sum, mean slope.
        d_pose, d_activation, d_weight: gradients so far; that of the weights in parts. Forward there are none, nor
            slopes.
        parts: cuts of receptive fields, and of all places for the gradient of the weights.
    """

    sizes: dict[str, int]
    given: tuple[Tensor, Tensor, Tensor, Tensor | None]
    begin: Tensor
    tiles: Tensor
    numbers: Tensor
    found: tuple[Tensor | None, ...]
    d_pose: Tensor | None
    d_activation: Tensor | None
    d_weight: Tensor | None
    parts: tuple[int, int]

    @classmethod
    def of(
        cls,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        offset: Tensor | None,
        stride: list[int],
        choices: list[bool],
        *,
        backward: bool = False,
    ) -> Passes:
        dtype = computed_in(pose, weight)
        (n_images, types, height, width), (rows, columns, n_out) = pose.shape[:4], weight.shape[1:4]
        upper = places(pose, weight, stride)
        values = (types, height, width, rows, columns, *upper, *stride, n_out)
        names = ("T", "H", "W", "KH", "KW", "HO", "WO", "SH", "SW", "J")
        block = min(power(n_out), 16)
        sizes = dict(zip(names, values, strict=True)) | {"JB": block, "POSITIONS": choices[0]}
        n_places, n_rows = n_images * math.prod(upper), types * rows * columns
        blocks = math.ceil(n_places / min(power(n_places), TILE // block))
        over_rows = cut(n_rows, blocks * math.ceil(n_out / block))
        over_places = cut(blocks, n_rows * math.ceil(n_out / block))

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=pose.device)

        down, across = ((height, rows, stride[0]), (width, columns, stride[1]))
        seen = _seen(*down, pose.device)[:, None] * _seen(*across, pose.device)
        found = zeros(3 if backward else 2, *activation.shape, *((n_out,) if choices[0] else ())).unbind()
        begin = 1 / (n_out * (torch.ones_like(seen) if choices[1] else seen.clamp_min(1)).to(dtype))
        return cls(
            sizes,
            (
                pose.contiguous(),
                activation.contiguous(),
                weight.contiguous(),
                None if offset is None else offset.contiguous(),
            ),
            begin,
            zeros(STATES if backward else STATES - 2, n_images, math.prod(upper), n_out, 16),
            zeros(2 if backward else 1, n_images, math.prod(upper), n_out),
            found if backward else (*found, None),
            zeros(*pose.shape) if backward else None,
            zeros(*activation.shape) if backward else None,
            zeros(math.ceil(blocks / over_places), *weight.shape) if backward else None,
            (over_rows, over_places),
        )

    def ready(self, mu: Tensor, variance: Tensor, logit: Tensor) -> None:
        """Hand the parents' states to the next E-step."""
        self.tiles[0], self.tiles[1] = mu, 1 / variance
        log_ap = F.logsigmoid(logit.double()) - variance.double().log().sum(dim=-1) / 2
        # What is the same for all parents changes no share: without the greatest, less is lost to rounding.
        self.numbers[0] = log_ap - log_ap.amax(dim=(1, 2), keepdim=True)

    def slopes(self, moved: Tensor, g1: Tensor, g2: Tensor, k: Tensor) -> None:
        """Hand over the gradients of the parents' states."""
        self.tiles[2], self.tiles[3], self.tiles[4], self.numbers[1] = moved, g1, g2, k

    def first_coupling(self) -> Tensor:
        """R of the first M-step, ``[H', W', T·K_h·K_w, 1]``."""
        s = self.sizes
        fields = self.begin.unfold(0, s["KH"], s["SH"]).unfold(1, s["KW"], s["SW"])  # [H', W', K_h, K_w]
        return fields.flatten(2).repeat(1, 1, s["T"])[..., None]

    def children(self, *, first: bool = False, backward: bool = False, d_coupling: Tensor | None = None) -> None:
        """Highest logits and sums of exponentials; backward, mean slopes and the activations' gradient too."""
        pose, activation, weight, offset = self.given
        given = pose, activation, weight, offset, self.begin, self.tiles, self.numbers, d_coupling
        with on(pose.device):
            load("em").child_pass[self._over_children()](
                *given,
                *self.found,
                self.d_activation,
                len(pose),
                **self.sizes,
                **self._block(len(pose)),
                FIRST=first,
                BACKWARD=backward,
            )

    def parents(
        self,
        *,
        first: bool = False,
        backward: bool = False,
        d_coupling: Tensor | None = None,
        again: Tensor | None = None,
        coupling: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Σ r ``[B, P, J]``, Σ r (V − μ) and Σ r (V − μ)² ``[B, P, J, 16]``."""
        pose, activation, weight, offset = self.given
        n_images, n_places, n_out = self.tiles.shape[1:4]
        s, per_part, block = self.sizes, self.parts[0], self._block(n_images * n_places)
        n_rows = s["T"] * s["KH"] * s["KW"]
        shape = (math.ceil(n_rows / per_part), *self.tiles.shape[1:])
        s0, s1, s2 = (torch.empty(x, dtype=self.tiles.dtype, device=pose.device) for x in (shape[:-1], shape, shape))
        grid = (math.ceil(n_images * n_places / block["N"]), math.ceil(n_out / s["JB"]), shape[0])
        with on(pose.device):
            load("em").parent_pass[grid](
                pose,
                activation * self.begin if first else activation,
                weight,
                offset,
                self.tiles,
                self.numbers,
                d_coupling,
                *self.found,
                again,
                coupling,
                s0,
                s1,
                s2,
                n_images,
                per_part,
                **s,
                **block,
                FIRST=first,
                BACKWARD=backward,
            )
        return s0.sum(dim=0), s1.sum(dim=0), s2.sum(dim=0)

    def gradients(self, *, first: bool = False, stop: bool = False, d_coupling: Tensor | None = None) -> None:
        """Add the gradients of poses and weights of one iteration."""
        assert self.d_weight is not None
        pose, activation, weight, offset = self.given
        given = pose, activation, weight, offset, self.begin, self.tiles, self.numbers, d_coupling, *self.found
        choices, s = {"FIRST": first, "STOP": stop}, self.sizes
        n_images, n_places, n_out = self.tiles.shape[1:4]
        block = self._block(n_images * n_places)
        grid = (s["T"] * s["KH"] * s["KW"], math.ceil(n_out / s["JB"]), len(self.d_weight))
        with on(pose.device):
            load("em").pose_pass[self._over_children()](
                *given, self.d_pose, n_images, **s, **self._block(n_images), **choices
            )
            load("em").weight_pass[grid](*given, self.d_weight, n_images, self.parts[1], **s, **block, **choices)

    def _over_children(self) -> tuple[int, int]:
        """A program for each child of an image, and for each block of images."""
        n_images, *lower = self.given[0].shape[:4]
        return math.prod(lower), math.ceil(n_images / self._block(n_images)["N"])

    def _block(self, n: int) -> dict[str, int]:
        """How many of n children or parents are taken at once, and by how many warps.

        At least eight with the types, whether they are there or not: of fewer the compiler lays out tiles in another
        way, and sums over them in another order.
        """
        block = self.sizes["JB"]
        size = min(max(power(n), LEAST_TILE // block), TILE // block)
        return {"N": size, "num_warps": max(1, size * self.sizes["JB"] * WARPS // TILE)} | APART


def _seen(extent: int, kernel: int, stride: int, device: torch.device) -> Tensor:
    """How many receptive fields each of a row of places lies in; made where it is used, so that nothing waits."""
    first = torch.arange(0, extent - kernel + 1, stride, device=device)[:, None]
    place = torch.arange(extent, device=device)
    return ((first <= place) & (place < first + kernel)).sum(dim=0)
