"""What dense and convolutional capsule layers share: parameters of a routing, and the call of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.layers.init import routing_std, truncated_normal_
from torchcaps.ops import ROUTINGS, Routed
from torchcaps.ops.checks import check_at_least, check_choice
from torchcaps.ops.dynamic import GRADIENTS
from torchcaps.ops.fused import IMPLS


class RoutedLayer(nn.Module):
    """Parameters of a routing from ``n_in`` to ``n_out`` capsules, under the names that ops give them.

    Args:
        n_in: lower capsules that an upper one sees, I.
        n_out: upper capsules, J.
        d_in: pose size of the lower ones.
        d_out: pose size of the upper ones.
        n_iters: passes of the routing.
        routing: one of :data:`torchcaps.ops.ROUTINGS`.
        bias: learn a bias ``[J, d_out]``, initially 0 unless ``bias_init`` says otherwise.
        bias_init: its initial value; the authors of CapsNet took 0.1.
        learned_prior: learn the initial logits ``[I, J]``, initially 0.
        leaky: let capsules route to nothing.
        gradient: "full" or "last", see :func:`torchcaps.ops.dynamic_routing`.
        impl: see :func:`torchcaps.ops.dynamic_routing`.
        weight_std: standard deviation of the initial transformation matrices; by default such that
            stacked layers train, see :mod:`torchcaps.layers.init`.

    Raises:
        ValueError: sizes below 1, or an unknown ``routing``, ``gradient`` or ``impl``.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        n_iters: int = 3,
        *,
        routing: str = "dynamic",
        bias: bool = True,
        bias_init: float = 0.0,
        learned_prior: bool = False,
        leaky: bool = False,
        gradient: str = "full",
        impl: str = "auto",
        weight_std: float | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("n_in", n_in), ("n_out", n_out), ("d_in", d_in), ("d_out", d_out), ("n_iters", n_iters)):
            check_at_least(name, value, 1)
        check_choice("routing", routing, ROUTINGS)
        check_choice("gradient", gradient, GRADIENTS)
        check_choice("impl", impl, IMPLS)
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        self.n_iters, self.routing, self.leaky = n_iters, routing, leaky
        self.gradient, self.impl = gradient, impl
        self.weight = nn.Parameter(torch.empty(n_in, n_out, d_in, d_out))
        self.bias = nn.Parameter(torch.full((n_out, d_out), bias_init)) if bias else None
        self.prior = nn.Parameter(torch.zeros(n_in, n_out)) if learned_prior else None
        default = routing_std(n_in, n_out, d_out, n_out + leaky)
        truncated_normal_(self.weight, default if weight_std is None else weight_std)

    def route(self, u: Tensor, n_iters: int | None, return_coupling: bool) -> Routed:
        """Route ``u [B, I, d_in]`` with this layer's parameters."""
        return ROUTINGS[self.routing](
            u,
            self.weight,
            n_iters=self.n_iters if n_iters is None else n_iters,
            bias=self.bias,
            prior=self.prior,
            leaky=self.leaky,
            gradient=self.gradient,
            impl=self.impl,
            return_coupling=return_coupling,
        )


def pose_of(capsules: Routed | Tensor) -> Tensor:
    """The poses, whether a layer's output or a bare tensor was handed over."""
    return capsules.pose if isinstance(capsules, Routed) else capsules
