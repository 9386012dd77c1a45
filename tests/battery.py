"""Everything that routes, under one form: the properties in ``test_properties.py`` hold for all of it.

A new routing, layer or backend adds a line to :data:`SUBJECTS` and is tested at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps import layers, models, ops
from torchcaps.ops import Routed
from torchcaps.ops.fused import cpu

#: Sizes that share no factor, so that no two axes can be mistaken for each other.
B, I, J, D_IN, D_OUT = 3, 7, 4, 5, 6  # noqa: E741


@dataclass(frozen=True)
class Subject:
    """One thing that makes capsules.

    Attributes:
        name: shown by pytest.
        shape: of its input, without the batch.
        make: a module from input to :class:`Routed`, with freshly drawn parameters of any dtype.
    """

    name: str
    shape: tuple[int, ...]
    make: Callable[[], nn.Module]


class Op(nn.Module):
    """An operation with its tensors as parameters."""

    def __init__(self, function: Callable[..., Routed], parameters: dict[str, Tensor | None], **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options
        self.tensors = nn.ParameterDict({k: nn.Parameter(v) for k, v in parameters.items() if v is not None})

    def forward(self, x: Tensor) -> Routed:
        return self.function(x, **self.tensors, **self.options)


class LastCapsules(nn.Module):
    """A model, seen as its class capsules."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Routed:
        return self.model(x).capsules[-1]


def routing(bias: bool = False, prior: bool = False, **options: Any) -> Callable[[], nn.Module]:
    """Dynamic routing from poses."""

    def make() -> nn.Module:
        parameters = {
            "weight": torch.randn(I, J, D_IN, D_OUT),
            "bias": torch.randn(J, D_OUT) if bias else None,
            "prior": torch.randn(I, J) if prior else None,
        }
        return Op(ops.dynamic_routing, parameters, **options)

    return make


def conv_caps(**options: Any) -> nn.Module:
    """Convolutional capsules with an oblong kernel."""
    return layers.ConvCaps(2, J, D_IN, D_OUT, (2, 3), stride=2, **options)


def small_capsnet(**options: Any) -> nn.Module:
    """A CapsNet for oblong colour images."""
    sizes = {"channels": 4, "kernel_size": 3, "n_types": 2, "d_primary": 4, "d_class": 5, "decoder": (6,)}
    return LastCapsules(models.CapsNet((2, 9, 12), J, **(sizes | options)))


SUBJECTS = [
    *(
        Subject(f"dynamic{name}-{impl}", (I, D_IN), routing(impl=impl, **options))
        for impl in ("reference", *(() if cpu.why_not("dynamic") else ("cpu",)))
        for name, options in {
            "": {},
            "-all-options": {"bias": True, "prior": True, "leaky": True},
            "-one-iteration": {"n_iters": 1},
            "-last": {"bias": True, "gradient": "last"},
        }.items()
    ),
    Subject("dynamic-from-votes", (I, J, D_OUT), lambda: Op(ops.dynamic_routing_from_votes, {})),
    Subject("PrimaryCaps", (3, 6, 9), lambda: layers.PrimaryCaps(3, 2, 4, 3, stride=2, padding=1)),
    Subject("DenseCaps", (I, D_IN), lambda: layers.DenseCaps(I, J, D_IN, D_OUT)),
    Subject("DenseCaps-map", (2, 3, 4, D_IN), lambda: layers.DenseCaps(24, J, D_IN, D_OUT, learned_prior=True)),
    Subject("ConvCaps", (2, 5, 6, D_IN), conv_caps),
    Subject("ConvCaps-leaky", (2, 5, 6, D_IN), lambda: conv_caps(leaky=True, learned_prior=True)),
    Subject("CapsNet", (2, 9, 12), small_capsnet),
    Subject(
        "CapsNet-stacked", (2, 9, 12), lambda: small_capsnet(hidden=({"n_types": 3, "d_out": 4, "kernel_size": 2},))
    ),
]
