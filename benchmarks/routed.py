"""A dense layer of any routing, alone: as the library computes it, or as its authors do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.textbook_later import AUTHORS
from torchcaps import DenseCaps
from torchcaps.layers.routings import ROUTINGS
from torchcaps.ops import Capsules


@dataclass(frozen=True)
class Routed:
    """Routing alone, in a dense layer.

    Attributes:
        routing: one of :data:`~benchmarks.textbook_later.AUTHORS`.
        contender: "ours", or "authors" for what their code computes.
        batch: B; or images times places, where a map is routed place by place.
        n_in: I.
        n_out: J.
        d_in: pose size of the lower capsules.
        d_out: of the upper ones.
        shared: with one weight for all lower capsules, for routings that have it.
        backward: with the gradients of poses, activations and parameters.
    """

    routing: str = "self_routing"
    contender: str = "ours"
    batch: int = 64
    n_in: int = 288
    n_out: int = 32
    d_in: int = 16
    d_out: int = 16
    shared: bool = False
    backward: bool = True

    def prepare(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Callable[[], dict[str, Tensor]]:
        """Make the layer and its inputs, and return the call."""
        routing = ROUTINGS[self.routing](**({"shared": True} if self.shared else {}))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layer = DenseCaps(self.n_in, self.n_out, self.d_in, self.d_out, routing=routing)
            with torch.no_grad():
                for each in layer.parameters():  # what starts at 0 would hide what it is for
                    each.add_(0.1 * torch.randn_like(each))
            pose = torch.randn(self.batch, self.n_in, self.d_in)
            activation = torch.rand(self.batch, self.n_in)
            d_pose, d_activation = torch.randn(self.batch, self.n_out, self.d_out), torch.randn(self.batch, self.n_out)
        layer = layer.to(device, dtype)
        pose, activation, d_pose, d_activation = (x.to(device, dtype) for x in (pose, activation, d_pose, d_activation))
        leaves = {"pose": pose, "activation": activation} | dict(layer.named_parameters())
        for x in leaves.values():
            x.requires_grad_(self.backward)

        def route() -> tuple[Tensor, Tensor]:
            if self.contender == "authors":
                return AUTHORS[self.routing](pose, activation, layer.parts(), layer.n_iters)
            made = layer(Capsules(pose, activation))
            return made.pose.flatten(2), made.activation

        def call() -> dict[str, Tensor]:
            made = route()
            results = {"pose": made[0].detach(), "activation": made[1].detach()}
            if not self.backward:
                return results
            gradients = torch.autograd.grad(made, tuple(leaves.values()), (d_pose, d_activation), allow_unused=True)
            return results | {
                f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True) if x is not None
            }

        return call
