"""Tensors that have no values: what sizes memory, counts operations or writes graphs hands over such."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchcaps.ops import dynamic_routing, em_routing, margin_loss, mask_capsules, spread_loss

LABELS = torch.tensor([1, 0])
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "dynamic routing": lambda x: dynamic_routing(x.flatten(2), torch.ones(3, 4, 16, 5)).pose,
    "EM routing": lambda x: em_routing(x, x[..., 0, 0], torch.ones(3, 4, 4, 4), torch.ones(4), torch.ones(4)).pose,
    "EM routing by the reference": lambda x: (
        em_routing(x, x[..., 0, 0], torch.ones(3, 4, 4, 4), torch.ones(4), torch.ones(4), backend="reference").pose
    ),
    "margin loss": lambda x: margin_loss(x[..., 0, 0], LABELS),
    "spread loss": lambda x: spread_loss(x[..., 0, 0], LABELS, 0.2),
    "mask of targets": lambda x: mask_capsules(x, LABELS),
    "mask of the longest": lambda x: mask_capsules(x, None),
}


@pytest.fixture
def x() -> Tensor:
    return torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_fake_tensors(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = function(mode.from_tensor(x))
    assert isinstance(found, FakeTensor)
    assert found.shape == function(x).shape


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_graphs(function: Callable[[Tensor], Tensor], tracing_mode: str, x: Tensor) -> None:
    graph = make_fx(function, tracing_mode=tracing_mode, _allow_non_fake_inputs=True)(x)
    other = x.flip(0)
    torch.testing.assert_close(graph(other), function(other))
