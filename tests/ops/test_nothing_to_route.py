"""Without lower capsules upper ones are 0 and finite; without upper ones, or images, nothing comes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchcaps import ops
from torchcaps.ops import Capsules

D = 16


def _poses(b: int, i: int) -> Tensor:
    return torch.rand(b, i, D, requires_grad=True)


def _matrices(b: int, i: int) -> Tensor:
    return torch.rand(b, i, 4, 4, requires_grad=True)


def _votes(i: int, j: int) -> Tensor:
    return torch.rand(i, j, D, D)


def _attention(b: int, i: int, j: int) -> Capsules:
    attention, square = torch.rand(i, i, j, D), torch.rand(j, D, D)
    return ops.attention_routing(_poses(b, i), _votes(i, j), attention_weight=attention, activation_weight=square)


def _heinsen(b: int, i: int, j: int, backend: str = "auto") -> Capsules:
    weight, beta = torch.rand(1, j, 4, 4), torch.rand(1, j)
    return ops.heinsen_matrix_routing(_matrices(b, i), torch.rand(b, i), weight, beta, beta, backend=backend)


def _gaussians(function: Callable[..., Capsules], backend: str = "auto") -> Callable[[int, int, int], Capsules]:
    def route(b: int, i: int, j: int) -> Capsules:
        beta = torch.zeros(j)
        return function(_matrices(b, i), torch.rand(b, i), torch.rand(i, j, 4, 4), beta, beta, backend=backend)

    return route


ROUTINGS: dict[str, Callable[[int, int, int], Capsules]] = {
    "dynamic": lambda b, i, j: ops.dynamic_routing(_poses(b, i), _votes(i, j)),
    "fixed": lambda b, i, j: ops.fixed_routing(_poses(b, i), _votes(i, j)),
    "self_attention": lambda b, i, j: ops.self_attention_routing(_poses(b, i), _votes(i, j)),
    "self_routing": lambda b, i, j: ops.self_routing(
        _poses(b, i), torch.rand(b, i), _votes(i, j), route_weight=torch.rand(i, j, D)
    ),
    "inverted_attention": lambda b, i, j: ops.inverted_attention_routing(
        _matrices(b, i), torch.rand(i, j, 4, 4), n_iters=2
    ),
    "degree": lambda b, i, j: ops.degree_routing(_poses(b, i), _votes(i, j)),
    "attention": _attention,
    "heinsen_matrix": _heinsen,
    "em": _gaussians(ops.em_routing),
    "em, reference": _gaussians(ops.em_routing, "reference"),
    "variational_bayes": _gaussians(ops.variational_bayes_routing),
    "variational_bayes, reference": _gaussians(ops.variational_bayes_routing, "reference"),
}


@pytest.mark.parametrize("sizes", [(2, 0, 3), (2, 6, 0), (0, 6, 3)], ids=str)
@pytest.mark.parametrize("name", ROUTINGS)
def test_nothing_to_route(name: str, sizes: tuple[int, int, int]) -> None:
    routed = ROUTINGS[name](*sizes)
    assert routed.pose.shape[:2] == routed.activation.shape == (sizes[0], sizes[2])
    assert bool(routed.pose.isfinite().all()) and bool(routed.activation.isfinite().all())
    if not sizes[1]:
        assert not routed.pose.any()
    routed.pose.sum().backward()
