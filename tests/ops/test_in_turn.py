"""Upper capsules routed a few at a time: the numbers of all at once, and their derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchcaps.ops import degree_routing, in_turn

B, I, J, D, E = 3, 5, 7, 2, 6  # noqa: E741


def given() -> tuple[Tensor, Tensor]:
    shapes = (B, I, D), (I, J, D, E)
    u, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return u, weight


def pose(u: Tensor, weight: Tensor) -> Tensor:
    return degree_routing(u, weight).pose


def outcome(u: Tensor, weight: Tensor) -> list[Tensor]:
    results = [x for x in degree_routing(u, weight, return_coupling=True) if x is not None]
    weights = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x) for x in results]
    return [*results, *torch.autograd.grad(results, (u, weight), weights)]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take three upper capsules at a time, and note how many come to each part."""
    found, again_backward = [], in_turn._again_backward
    monkeypatch.setattr(in_turn, "_AT_ONCE", 3 * B * I * E)
    monkeypatch.setattr(in_turn, "_again_backward", lambda *x: found.append(x[2].shape[1]) or again_backward(*x))
    return found


def test_a_few_at_a_time_are_all(parts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = given()
    found = outcome(*tensors)
    assert parts == [3, 3, 1]
    monkeypatch.setattr(in_turn, "_AT_ONCE", B * I * J * E)
    for x, y in zip(found, outcome(*tensors), strict=True):
        torch.testing.assert_close(x, y)
    assert parts == [3, 3, 1]


def test_without_gradients_nothing_is_made_again(parts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = given()
    with torch.no_grad():
        found = pose(*tensors)
    monkeypatch.setattr(in_turn, "_AT_ONCE", B * I * J * E)
    torch.testing.assert_close(found, pose(*tensors))
    assert not parts


def test_derivatives_of_any_order(parts: list[int]) -> None:
    assert torch.autograd.gradcheck(pose, given())
    assert torch.autograd.gradgradcheck(pose, given())
    assert parts


def test_where_all_are_routed_at_once(parts: list[int]) -> None:
    """Within transforms and compilers, whose programs would get longer and longer."""
    u, weight = given()
    with torch.no_grad():
        wanted = pose(u, weight)
    per_image = torch.func.vmap(lambda x: pose(x[None], weight)[0])
    torch.testing.assert_close(per_image(u), wanted)
    torch.testing.assert_close(torch.compile(pose, fullgraph=True, backend="eager")(u, weight), wanted)
    assert not parts
