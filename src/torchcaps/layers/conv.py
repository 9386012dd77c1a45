"""Capsules that see a receptive field of the map below."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_at_least
from torchcaps.layers.base import RoutedLayer
from torchcaps.layers.routing import Routing
from torchcaps.layers.shapes import Two, conv_size, windows
from torchcaps.ops import Capsules


class ConvCaps(RoutedLayer):
    """Convolutional capsules: votes are shared over places, and routed within each receptive field.

    With dynamic routing the K×K×T lower capsules of a field choose among the J upper types *of that
    place*; a lower capsule seen from several places makes its choice in each of them. With EM routing a lower
    capsule is shared among the places that see it, for each upper type by itself (``settings="released"``, the
    default), or among all types at all of them (``"paper"``, or ``compete="all"``). The former needs fields that
    overlap. Where the kernel covers the whole map, dynamic routing and ``"paper"`` are :class:`DenseCaps`, with the
    same weights.

    Args:
        n_in: types of capsule T in the map below.
        n_out: types of capsule in this map.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        kernel_size: K, or (rows, columns).
        stride: places from one receptive field to the next, or (rows, columns).
        padding: places on every side, or (above and below, left and right), at which there is no capsule: poses and
            activations of 0. (EM routing's ``normalize`` counts them as children.)
        routing: as :class:`DenseCaps`.

    Input:
        capsules: a ``Capsules`` (or, for dynamic routing, its pose), ``[B, T, H, W, d_in]`` or 4×4 matrices
            ``[B, T, H, W, 4, 4]``, any H and W.
        n_iters, return_coupling, state: as :class:`DenseCaps`.

    Output:
        :class:`~torchcaps.ops.Capsules` with pose ``[B, n_out, H', W', d_out]`` (from routing on matrices
        ``[B, n_out, H', W', 4, 4]``), activation ``[B, n_out, H', W']``, and on request coupling
        ``[B, H', W', T·K·K, n_out]``.

    Raises:
        ValueError: another number of types or pose size, a padded map smaller than the kernel, or EM routing in which
            nothing competes: types by themselves in fields that do not overlap.

    Example:
        >>> import torch
        >>> from torchcaps import Capsules
        >>> lower = Capsules(torch.rand(2, 8, 14, 14, 16), torch.rand(2, 8, 14, 14))
        >>> ConvCaps(8, 16, 16, 16, kernel_size=3, stride=2, routing="em")(lower).activation.shape
        torch.Size([2, 16, 6, 6])

    Source: Sabour et al. 2017, section 1 ("we make all but the last layer of capsules be
    convolutional"); Hinton et al. 2018, section 4.
    """

    dense = False

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        kernel_size: Two,
        *,
        stride: Two = 1,
        padding: Two = 0,
        routing: Routing | str = "dynamic",
    ) -> None:
        check_at_least("n_in", n_in, 1)
        kernel, stride, padding = windows(kernel_size, stride, padding)
        super().__init__(n_in * kernel[0] * kernel[1], n_out, d_in, d_out, routing=routing)
        self.n_types, self.kernel_size, self.stride, self.padding = n_in, kernel, stride, padding

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the map made from a map of this size."""
        return conv_size((height, width), self.kernel_size, self.stride, self.padding)

    def forward(
        self,
        capsules: Capsules | Tensor,
        *,
        n_iters: int | None = None,
        return_coupling: bool = False,
        state: Capsules | None = None,
    ) -> Capsules:
        """Route each receptive field of a map; *Input* and *Output* of the class say the shapes."""
        lower = self.routed_map(capsules, self.n_types)
        if any(self.padding):
            rows, columns = self.padding
            around = columns, columns, rows, rows
            lower = Capsules(F.pad(lower.pose, (0, 0, *around)), F.pad(lower.activation, around))
        call = self.call_arguments(return_coupling, lower.pose.shape[0], n_iters=n_iters, state=state)
        routed = self.routing.route_map(lower, self.parts(), kernel_size=self.kernel_size, stride=self.stride, **call)
        return self.returned(routed, 4)

    def extra_repr(self) -> str:
        """Describe the layer for ``print``: shapes, then options."""
        return (
            f"[B, {self.n_types}, H, W, {self.d_in}] -> [B, {self.n_out}, H', W', {self.d_out}], "
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"{self.routing_repr()}"
        )
