"""Every lower capsule votes for every upper one."""

from __future__ import annotations

from torch import Tensor

from torchcaps.layers.routed_layer import RoutedLayer
from torchcaps.layers.routings import ROUTINGS
from torchcaps.ops import Routed


class DenseCaps(RoutedLayer):
    """Fully connected capsules, such as the class capsules of CapsNet.

    Args: as :class:`~torchcaps.layers.routed_layer.RoutedLayer`.

    Input:
        capsules: a ``Routed`` (or, for dynamic routing, its pose), ``[B, I, d_in]`` or a map
            ``[B, T, H, W, d_in]`` with T·H·W = I, which is flattened in this order; 4×4 matrices are
            poses of size 16.
        n_iters: overrides the layer's own for this call.
        return_coupling: also return ``[B, I, J]``.

    Output:
        :class:`~torchcaps.ops.Routed` with pose ``[B, J, d_out]`` (``[B, J, 4, 4]`` from routing on
        matrices) and activation ``[B, J]``.

    Raises:
        ValueError: another number or size of capsules.

    Example:
        >>> import torch
        >>> DenseCaps(1152, 10, 8, 16)(torch.rand(2, 1152, 8)).pose.shape
        torch.Size([2, 10, 16])

    Source: Sabour et al. 2017, section 4 (DigitCaps); Hinton et al. 2018, section 3.
    """

    def forward(
        self, capsules: Routed | Tensor, *, n_iters: int | None = None, return_coupling: bool = False
    ) -> Routed:
        lower = self.routed(capsules)
        if lower.pose.dim() == 5:
            lower = Routed(lower.pose.flatten(1, 3), lower.activation.flatten(1, 3))
        if lower.pose.dim() != 3 or lower.pose.shape[1:] != (self.n_in, self.d_in):
            raise ValueError(
                f"capsules must be [B, I={self.n_in}, d_in={self.d_in}] or a map of as many, "
                f"got shape {list(capsules.pose.shape if isinstance(capsules, Routed) else capsules.shape)}"
            )
        return ROUTINGS[self.routing].dense(lower, **self.call_options(n_iters, return_coupling))

    def extra_repr(self) -> str:
        return f"{self.n_in}×{self.d_in} -> {self.n_out}×{self.d_out}, {self.n_iters} × {self.routing}"
