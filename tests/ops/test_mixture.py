"""Mixtures of votes: a number worked by hand, a slow loop, gradients, and parts or objects that are absent."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps.ops import mixture_likelihood

B, M, C, D = 2, 3, 4, 2


def problem(shared: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    m = 1 if shared else M
    x, votes = torch.randn(B, M, D).double(), torch.randn(B, m, C, D).double()
    return x, votes, torch.rand(B, m, C).double(), torch.rand(B, m, C).double() + 0.3


def test_a_number_worked_by_hand() -> None:
    # In one dimension a part at 1; votes at 0 and 1 of weights ½ and ¼ and scales 1 and 2. Their densities are
    # e^(−½)/√(2π) = 0.2419707 and 1/(2 √(2π)) = 0.1994711; weighted 0.1209854 and 0.0498678; the dummy's 0.0001.
    # Together 0.1709531, over 0.76: 0.2249383, whose logarithm is −1.4919290.
    one: dict[str, Any] = {
        "x": torch.tensor([[[1.0]]]),
        "votes": torch.tensor([[[[0.0], [1.0]]]]),
        "weight": torch.tensor([[[0.5, 0.25]]]),
        "scale": torch.tensor([[[1.0, 2.0]]]),
    }
    got = mixture_likelihood(**one)
    assert got.log_likelihood.item() == pytest.approx(-1.4919290, abs=1e-6)
    assert got.responsibility.flatten().tolist() == pytest.approx(
        [0.1209854 / 0.1709531, 0.0498678 / 0.1709531], abs=1e-6
    )
    alone = mixture_likelihood(**one, dummy=None)
    assert alone.log_likelihood.item() == pytest.approx(math.log(0.1708532 / 0.75), abs=1e-6)
    assert alone.responsibility.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("dummy", [None, 0.01, 0.3])
@pytest.mark.parametrize("shared", [False, True])
def test_a_slow_loop(shared: bool, dummy: float | None) -> None:
    x, votes, weight, scale = problem(shared)
    got = mixture_likelihood(x, votes, weight, scale, dummy=dummy)
    extra = dummy or 0.0
    for b in range(B):
        for m in range(M):
            row = 0 if shared else m
            terms = []
            for c in range(C):
                s = scale[b, row, c].item()
                density = 1.0
                for d in range(D):
                    z = (x[b, m, d] - votes[b, row, c, d]).item() / s
                    density *= math.exp(-0.5 * z * z) / (s * math.sqrt(2 * math.pi))
                terms.append(weight[b, row, c].item() * density)
            total = sum(terms) + extra * extra
            norm = sum(weight[b, row].tolist()) + extra
            assert got.log_likelihood[b, m].item() == pytest.approx(math.log(total / norm), rel=1e-12)
            assert got.responsibility[b, m].tolist() == pytest.approx([t / total for t in terms], rel=1e-12)


@pytest.mark.parametrize("dummy", [None, 0.01])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients(shared: bool, dummy: float | None) -> None:
    inputs = [each.requires_grad_() for each in problem(shared)]
    assert torch.autograd.gradcheck(lambda *given: tuple(mixture_likelihood(*given, dummy=dummy)), inputs)


@pytest.mark.parametrize("dummy", [None, 0.01])
def test_absent_objects_and_far_parts_give_finite_numbers(dummy: float | None) -> None:
    """Other codes turn to NaN where all presences are 0."""
    x, votes, weight, scale = (each.float() for each in problem())
    for far, w, s in ((1.0, weight * 0, scale), (1e4, weight, scale * 1e-2), (1e4, weight * 0, scale * 1e-2)):
        given = [each.clone().requires_grad_() for each in (x * far, votes, w, s)]
        got = mixture_likelihood(*given, dummy=dummy)
        (got.log_likelihood.sum() + got.responsibility.square().sum()).backward()
        for each in (*got, *(one.grad for one in given)):
            assert each is not None and bool(each.isfinite().all())


def test_the_dummy_bounds_what_a_far_part_costs() -> None:
    x, votes, weight, scale = problem()
    got = mixture_likelihood(x + 1e3, votes, weight, scale).log_likelihood
    torch.testing.assert_close(got, (1e-4 / (weight.sum(dim=2) + 0.01)).log())
    assert bool((mixture_likelihood(x + 1e3, votes, weight, scale, dummy=None).log_likelihood < -1e5).all())


def test_memory_grows_linearly() -> None:
    def kept(n: int) -> int:
        """Count the numbers that the backward pass needs."""
        sizes: list[int] = []
        x, votes, weight, scale = problem()
        votes, weight, scale = votes.repeat(1, 1, n, 1), weight.repeat(1, 1, n), scale.repeat(1, 1, n)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            mixture_likelihood(x, votes.requires_grad_(), weight.requires_grad_(), scale.requires_grad_())
        return sum(sizes)

    assert kept(16) - kept(8) == 8 * (kept(9) - kept(8))


def test_half_precision_computes_in_float32_and_autocast_changes_nothing() -> None:
    given = [each.bfloat16() for each in problem()]
    wanted = mixture_likelihood(*(each.float() for each in given))
    assert mixture_likelihood(*given).log_likelihood.dtype == torch.float32
    torch.testing.assert_close(mixture_likelihood(*given), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(mixture_likelihood(*(each.float() for each in given)), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.rand(B, M)}, r"x must be \[B, M, D\]"),
        ({"votes": torch.rand(B, M, C, D + 1)}, "votes must be"),
        ({"votes": torch.rand(B, M, 0, D)}, "votes must have a component and a dimension at least"),
        ({"weight": -torch.ones(B, M, C)}, "weight must be 0 or more, got -1"),
        ({"scale": torch.zeros(B, M, C)}, "scale must be positive, got 0"),
        ({"x": torch.ones(B, M, D, dtype=torch.int64)}, "x must be floating point"),
        ({"dummy": 0.0}, "dummy must be positive"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    given = dict(zip(("x", "votes", "weight", "scale"), problem(), strict=True))
    if change.get("votes", torch.ones(1)).numel() == 0:
        given |= {"weight": torch.rand(B, M, 0), "scale": torch.rand(B, M, 0)}
    with pytest.raises(ValueError, match=message):
        mixture_likelihood(**{**given, **change})
