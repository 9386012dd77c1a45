"""Degree routing against numbers worked out by hand, and a loop over the graph of votes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchcaps import DenseCaps, build
from torchcaps.layers import DegreeRouting
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import degree_routing

DOUBLE = torch.float64
B, I, J = 2, 5, 3  # noqa: E741


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE)


def test_worked_by_hand() -> None:
    """Votes (1, 0), (0, 2), (1, 1) have degrees 2, 1.5 and 2.5; their shares sum to one over the lower capsules."""
    votes = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=DOUBLE)
    got = degree_routing(torch.ones(1, 3, 1, dtype=DOUBLE), votes.view(3, 1, 1, 2), return_coupling=True)
    share = torch.tensor([0.307196, 0.186324, 0.506480], dtype=DOUBLE)
    torch.testing.assert_close(got.coupling[0, :, 0], share, rtol=0, atol=1e-6)  # type: ignore[index]
    pose = torch.tensor([0.400295, 0.432495], dtype=DOUBLE)
    torch.testing.assert_close(got.pose[0, 0], pose, rtol=0, atol=1e-6)
    torch.testing.assert_close(got.activation[0, 0], pose.norm(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_is_that_of_the_graph(scale: float) -> None:
    """A loop over pairs of votes; of short ones the square of the norm counts as 1e-8."""
    u, weight = scale * drawn(B, I, 4), scale * drawn(I, J, 4, 6)
    got = degree_routing(u, weight, return_coupling=True)
    for b in range(B):
        for j in range(J):
            votes = [u[b, i] @ weight[i, j] for i in range(I)]
            degrees = [sum(float(x @ y) / max(float(x @ x), 1e-8) for y in votes) for x in votes]
            share = torch.tensor(degrees, dtype=DOUBLE).softmax(dim=0)
            torch.testing.assert_close(got.coupling[b, :, j], share, rtol=1e-9, atol=1e-9)  # type: ignore[index]
            s = sum((share[i] * votes[i] for i in range(I)), start=torch.zeros(6, dtype=DOUBLE))
            v = s * s.norm() / (1 + s.norm() ** 2)
            torch.testing.assert_close(got.pose[b, j], v, rtol=1e-9, atol=1e-12)


def test_equal_votes_count_alike_however_long() -> None:
    """Their degree is their number, so that the pose is the squashed vote."""
    u, weight = drawn(B, 1, 4).expand(B, I, 4), drawn(1, J, 4, 6).expand(I, J, 4, 6)
    for scale in (1e-2, 1.0, 1e3):
        got = degree_routing(scale * u, weight, return_coupling=True)
        torch.testing.assert_close(got.coupling, torch.full((B, I, J), 1 / I, dtype=DOUBLE))


def test_layers_and_networks_take_it() -> None:
    assert count_parameters(DenseCaps(288, 10, 8, 16, routing="degree")) == 288 * 10 * 8 * 16
    model = build("capsnet_small", (1, 20, 20), J, channels=4, routing="degree")
    model(torch.rand(2, 1, 20, 20)).scores.sum().backward()
    with pytest.raises(ValueError, match="n_iters must be None with degree routing, got 2"):
        model(torch.rand(2, 1, 20, 20), n_iters=2)


def test_capsules_start_neither_dead_nor_saturated() -> None:
    torch.manual_seed(0)
    for n_in in (8, 72, 1152):
        u = torch.nn.functional.normalize(torch.randn(4, n_in, 8), dim=-1) / 2
        assert 0.1 < DenseCaps(n_in, 10, 8, 16, routing="degree")(u).activation.mean() < 0.7


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight must be \[I, J, d_in, d_out\] with d_in=4 as in u, got shape"):
        degree_routing(torch.rand(B, I, 4), torch.rand(I, J, 5, 6))
    with pytest.raises(ValueError, match="u must be floating point, got torch.int64"):
        degree_routing(torch.ones(B, I, 4, dtype=torch.int64), torch.rand(I, J, 4, 6))
    with pytest.raises(ValueError, match="weight_std must be positive, got 0"):
        DegreeRouting(weight_std=0)
