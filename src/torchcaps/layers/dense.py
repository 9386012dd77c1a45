"""Every lower capsule votes for every upper one."""

from __future__ import annotations

from torch import Tensor

from torchcaps.layers.routed_layer import RoutedLayer, pose_of
from torchcaps.ops import Routed


class DenseCaps(RoutedLayer):
    """Fully connected capsules, such as the class capsules of CapsNet.

    Args: as :class:`~torchcaps.layers.routed_layer.RoutedLayer`.

    Input:
        capsules: a ``Routed`` or its pose, ``[B, I, d_in]`` or a map ``[B, T, H, W, d_in]`` with
            T·H·W = I, which is flattened in this order.
        n_iters: overrides the layer's own for this call.
        return_coupling: also return ``[B, I, J]``.

    Output:
        :class:`~torchcaps.ops.Routed` with pose ``[B, J, d_out]`` and activation ``[B, J]``.

    Raises:
        ValueError: another number or size of capsules.

    Example:
        >>> import torch
        >>> DenseCaps(1152, 10, 8, 16)(torch.rand(2, 1152, 8)).pose.shape
        torch.Size([2, 10, 16])

    Source: Sabour et al. 2017, section 4 (DigitCaps).
    """

    def forward(
        self, capsules: Routed | Tensor, *, n_iters: int | None = None, return_coupling: bool = False
    ) -> Routed:
        u = pose_of(capsules)
        if u.dim() == 5:
            u = u.flatten(1, 3)
        if u.dim() != 3 or u.shape[1:] != (self.n_in, self.d_in):
            raise ValueError(
                f"capsules must be [B, I={self.n_in}, d_in={self.d_in}] or a map of as many, "
                f"got shape {list(pose_of(capsules).shape)}"
            )
        return self.route(u, n_iters, return_coupling)

    def extra_repr(self) -> str:
        return f"{self.n_in}×{self.d_in} -> {self.n_out}×{self.d_out}, {self.n_iters} × {self.routing}"
