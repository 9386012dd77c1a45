"""Every lower capsule votes for every upper one."""

from __future__ import annotations

from torch import Tensor

from torchcaps.layers.routed_layer import RoutedLayer
from torchcaps.layers.routings import ROUTINGS
from torchcaps.ops import Routed


class DenseCaps(RoutedLayer):
    """Fully connected capsules, such as the class capsules of CapsNet.

    Args:
        n_in: lower capsules, I.
        n_out: upper capsules, J.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        n_iters: passes of the routing.
        routing: "dynamic", "em", or another of :data:`torchcaps.layers.ROUTINGS`.
        gradient: "full", or "last" for that of the last iteration alone.
        impl: what runs, see :func:`torchcaps.ops.which_impl`.
        options: of dynamic routing ``bias``, ``bias_init``, ``learned_prior``, ``leaky``; of EM routing ``pose``,
            ``settings``, ``pose_scale``, ``beta_u_init``, ``beta_a_init`` and any field of
            :class:`~torchcaps.ops.EMSettings`; of both ``weight_std``. What they mean and are by default:
            :class:`~torchcaps.layers.routed_layer.RoutedLayer`.

    Input:
        capsules: a ``Routed`` (or, for dynamic routing, its pose), ``[B, I, d_in]`` or a map
            ``[B, T, H, W, d_in]`` with T·H·W = I, which is flattened in this order; 4×4 matrices are
            poses of size 16.
        n_iters: overrides the layer's own for this call.
        return_coupling: fill the result's ``coupling``, ``[B, I, J]``; None without.

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
        return f"{self.n_in}×{self.d_in} -> {self.n_out}×{self.d_out}, {self.routing_repr()}"
