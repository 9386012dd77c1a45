"""Every lower capsule votes for every upper one."""

from __future__ import annotations

from torch import Tensor

from torchcaps.layers.base import RoutedLayer
from torchcaps.ops import Capsules


class DenseCaps(RoutedLayer):
    """Fully connected capsules, such as the class capsules of CapsNet.

    Args:
        n_in: Lower capsules, I; None if any number may come, for routings that allow it.
        n_out: Upper capsules, J.
        d_in: Pose size of the lower ones.
        d_out: Pose size of the upper ones.
        routing: :class:`~torchcaps.layers.DynamicRouting`, :class:`~torchcaps.layers.EMRouting`, a
            :class:`~torchcaps.layers.Routing` of your own, or "dynamic" or "em".
        n_places: Places at which each lower capsule stands with the same matrix; with ``n_in=None`` how many lower
            capsules come on average. Initial values depend on it.

    Input:
        capsules: a ``Capsules`` (or, if the routing needs no activations, its pose), ``[B, I, d_in]`` or a map
            ``[B, T, H, W, d_in]`` with T·H·W = I, which is flattened in this order; n×n matrices are
            poses of size n².
        n_iters: another number of iterations for this call.
        return_coupling: fill the result's ``coupling``, ``[B, I, J]``; None without.
        mask: ``[B, I]``, true for lower capsules that are there, for routings that know a mask.
        initial_logits: ``[I, J]`` or ``[B, I, J]``, in place of the layer's own, for dynamic routing.
        state: upper capsules of the pass before, for routings that start from them.

    Output:
        :class:`~torchcaps.ops.Capsules` with pose ``[B, J, d_out]`` (``[B, J, n, n]`` from routing on
        matrices) and activation ``[B, J]``.

    Raises:
        ValueError: Another number or size of capsules, or an argument that the routing does not know.

    Example:
        >>> import torch
        >>> DenseCaps(1152, 10, 8, 16)(torch.rand(2, 1152, 8)).pose.shape
        torch.Size([2, 10, 16])

    Source: Sabour et al. 2017, section 4 (DigitCaps); Hinton et al. 2018, section 3.
    """

    def forward(
        self,
        capsules: Capsules | Tensor,
        *,
        n_iters: int | None = None,
        return_coupling: bool = False,
        mask: Tensor | None = None,
        initial_logits: Tensor | None = None,
        state: Capsules | None = None,
    ) -> Capsules:
        """Route all lower capsules to all upper ones; *Input* and *Output* of the class say the shapes."""
        lower = self.routed(capsules)
        if lower.pose.dim() == 5:
            lower = Capsules(lower.pose.flatten(1, 3), lower.activation.flatten(1, 3))
        shape = lower.pose.shape
        fits = len(shape) == 3 and shape[2] == self.d_in and (self.n_in is None or shape[1] == self.n_in)
        if not fits:
            raise ValueError(
                f"capsules must be [B, I={self.n_in or 'any'}, d_in={self.d_in}] or a map of as many, "
                f"got shape {list(capsules.pose.shape if isinstance(capsules, Capsules) else capsules.shape)}"
            )
        given = {"n_iters": n_iters, "mask": mask, "initial_logits": initial_logits, "state": state}
        call = self.call_arguments(return_coupling, lower.pose.shape[0], **given)
        return self.returned(self.routing.route(lower, self.parts(), **call), 2)

    def extra_repr(self) -> str:
        """Describe the layer for ``print``: shapes, then options."""
        return f"{self.n_in or 'any'}×{self.d_in} -> {self.n_out}×{self.d_out}, {self.routing_repr()}"
