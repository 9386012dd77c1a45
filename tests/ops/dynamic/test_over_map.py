"""3-D routing: numbers by hand, a loop of the printed procedure, and what it is a special case of."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from torchcaps.ops import dynamic_routing_3d, dynamic_routing_from_votes, squash

B, T, J, D, H, W = 2, 3, 4, 5, 2, 3


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_numbers_worked_by_hand() -> None:
    """Two lower types, one upper type of one number, two places: votes (2, 0) and (4, 2).

    Pass 1: c = ½; s = (3, 1), ‖S‖² = 10, so v = s · √10 / 11 = (0.862439, 0.287480). Logits (2 · 0.862439, 0) and
    (4 · 0.862439, 2 · 0.287480), of differences 1.724879 and 2.874798. Pass 2: c of the first place σ(1.724879) =
    0.848756 and σ(2.874798) = 0.946586; s = (2 · 0.848756 + 4 · 0.946586, 2 · 0.053414).
    """
    votes = torch.tensor([[2.0, 0.0], [4.0, 2.0]], dtype=torch.float64).view(1, 2, 1, 1, 1, 2)
    first = dynamic_routing_3d(votes, n_iters=1, return_coupling=True)
    torch.testing.assert_close(first.pose.flatten(), torch.tensor([3.0, 1.0]).double() * math.sqrt(10) / 11)
    assert first.coupling is not None and (first.coupling == 0.5).all()
    got = dynamic_routing_3d(votes, n_iters=2, return_coupling=True)
    assert got.coupling is not None
    wanted = torch.tensor([[0.848756, 0.946586], [0.151244, 0.053414]]).double()  # [place, lower type]
    torch.testing.assert_close(got.coupling.view(2, 2), wanted, rtol=0, atol=1e-6)
    # s = (5.483858, 0.106827), ‖S‖ = 5.484899, so v = s · 5.484899 / 31.084112
    torch.testing.assert_close(got.pose.flatten(), torch.tensor([0.967646, 0.018850]).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(got.activation.flatten(), got.pose.flatten())


def loop(votes: Tensor, bias: Tensor, n_iters: int) -> tuple[Tensor, Tensor]:
    """The procedure for one image, number by number: poses ``[J, H, W, D]`` and couplings ``[H, W, T, J]``."""
    b = torch.zeros(T, J, H, W, dtype=torch.float64)
    v, c = torch.zeros(J, H, W, D, dtype=torch.float64), torch.zeros_like(b)
    for iteration in range(n_iters):
        for t in range(T):
            total = sum(math.exp(b[t, j, y, x]) for j, y, x in product(range(J), range(H), range(W)))
            for j, y, x in product(range(J), range(H), range(W)):
                c[t, j, y, x] = math.exp(b[t, j, y, x]) / total
        for j in range(J):
            s = {
                (y, x): [
                    float(bias[j, d]) + sum(float(c[t, j, y, x] * votes[t, j, d, y, x]) for t in range(T))
                    for d in range(D)
                ]
                for y, x in product(range(H), range(W))
            }
            norm = math.sqrt(sum(number**2 for pose in s.values() for number in pose))
            for (y, x), pose in s.items():
                for d, number in enumerate(pose):
                    v[j, y, x, d] = number * norm / (1 + norm**2)
        if iteration < n_iters - 1:
            for t, j, y, x in product(range(T), range(J), range(H), range(W)):
                b[t, j, y, x] += sum(float(votes[t, j, d, y, x] * v[j, y, x, d]) for d in range(D))
    return v, c.permute(2, 3, 0, 1)


@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_is_the_loop(n_iters: int) -> None:
    votes, bias = drawn(B, T, J, D, H, W).detach(), drawn(J, D).detach()
    got = dynamic_routing_3d(votes, bias=bias, n_iters=n_iters, return_coupling=True)
    assert got.coupling is not None
    for image in range(B):
        pose, coupling = loop(votes[image], bias, n_iters)
        torch.testing.assert_close(got.pose[image], pose, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got.activation[image], pose.norm(dim=-1), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got.coupling[image], coupling, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backprop", ["full", "last"])
def test_on_one_place_it_is_dynamic_routing(backprop: str) -> None:
    votes, bias = drawn(B, T, J, D, 1, 1), drawn(J, D)
    got = dynamic_routing_3d(votes, bias=bias, backprop=backprop, return_coupling=True)
    wanted = dynamic_routing_from_votes(votes[..., 0, 0], bias=bias, backprop=backprop, return_coupling=True)
    assert got.coupling is not None and wanted.coupling is not None
    torch.testing.assert_close(got.pose[:, :, 0, 0], wanted.pose)
    torch.testing.assert_close(got.activation[:, :, 0, 0], wanted.activation)
    torch.testing.assert_close(got.coupling[:, 0, 0], wanted.coupling)
    weights = torch.randn_like(wanted.pose)
    ours = torch.autograd.grad((got.pose[:, :, 0, 0] * weights).sum(), (votes, bias))
    torch.testing.assert_close(ours, torch.autograd.grad((wanted.pose * weights).sum(), (votes, bias)))


def test_couplings_of_a_lower_type_sum_to_one_over_types_and_places() -> None:
    coupling = dynamic_routing_3d(drawn(B, T, J, D, H, W), return_coupling=True).coupling
    assert coupling is not None and coupling.shape == (B, H, W, T, J)
    torch.testing.assert_close(coupling.sum(dim=(1, 2, 4)), torch.ones(B, T, dtype=torch.float64))
    assert (coupling.sum(dim=4) - 1).abs().max() > 0.1  # not over types alone


def test_an_upper_type_is_no_longer_than_one_over_the_whole_map() -> None:
    activation = dynamic_routing_3d(100 * drawn(B, T, J, D, H, W)).activation
    total = activation.square().sum(dim=(2, 3))
    assert (total <= 1 + 1e-12).all() and total.max() > 0.99


def test_one_iteration_is_the_mean_vote_squashed_over_the_map() -> None:
    votes = drawn(B, T, J, D, H, W)
    s = votes.sum(dim=1) / (J * H * W)
    wanted = squash(s.flatten(2)).view_as(s).movedim(2, 4)
    torch.testing.assert_close(dynamic_routing_3d(votes, n_iters=1).pose, wanted)


def test_gradients() -> None:
    votes, bias = drawn(1, 2, 2, 2, 1, 2), drawn(2, 2)
    assert torch.autograd.gradcheck(lambda v, b: dynamic_routing_3d(v, bias=b)[:2], (votes, bias))


def test_no_lower_type_and_no_vote_are_finite() -> None:
    bias = drawn(J, D)
    none = dynamic_routing_3d(drawn(B, 0, J, D, H, W), bias=bias, return_coupling=True)
    assert none.coupling is not None and none.coupling.shape == (B, H, W, 0, J)
    everywhere = bias.repeat(1, H * W)
    torch.testing.assert_close(none.pose[0].flatten(1), squash(everywhere))
    votes = torch.zeros(B, T, J, D, H, W, requires_grad=True)
    black = dynamic_routing_3d(votes)
    black.pose.sum().backward()
    assert not black.pose.any() and votes.grad is not None and votes.grad.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    votes = torch.randn(B, T, J, D, H, W)
    with pytest.raises(ValueError, match="W of votes must be at least 1, got 0"):
        dynamic_routing_3d(votes[..., :0])
    with pytest.raises(ValueError, match="J of votes must be at least 1, got 0"):
        dynamic_routing_3d(votes[:, :, :0])
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        dynamic_routing_3d(votes, n_iters=0)
    with pytest.raises(ValueError, match="backprop must be one of"):
        dynamic_routing_3d(votes, backprop="first")
    with pytest.raises(ValueError, match="bias"):
        dynamic_routing_3d(votes, bias=torch.zeros(D, J))
