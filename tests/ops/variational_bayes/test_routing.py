"""Variational-Bayes routing against numbers worked out by hand, a slow loop, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchcaps.ops import variational_bayes_routing_from_votes as route

DOUBLE = torch.float64
B, I, J, D = 2, 5, 3, 4  # noqa: E741


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    votes = torch.randn(B, I, J, D, dtype=DOUBLE)
    return votes, torch.rand(B, I, dtype=DOUBLE), torch.randn(J, dtype=DOUBLE), torch.randn(J, dtype=DOUBLE)


def psi(x: float) -> float:
    """Compute the digamma function by its recurrence and asymptotic series."""
    below = 0.0
    while x < 20:
        below, x = below + 1 / x, x + 1
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) + 1 / (240 * x**8) - below


@pytest.mark.parametrize(
    ("n_iters", "means", "logits", "coupling"),
    [
        (1, (1.0, 0.25), (-0.759359, -0.722440), ((0.5, 0.5), (0.5, 0.5))),
        (2, (0.946726, 0.397966), None, ((0.647826, 0.352174), (0.444273, 0.555727))),
        (3, (0.889779, 0.508225), (-0.771486, -0.673898), ((0.727352, 0.272648), (0.383661, 0.616339))),
    ],
)
def test_worked_by_hand(
    n_iters: int,
    means: tuple[float, ...],
    logits: tuple[float, ...] | None,
    coupling: tuple[tuple[float, ...], ...],
) -> None:
    # Pass 1, j = 1: R = 1, m = (1 + 3)/2/2 = 1, P = 1 + (0 + 4)/2 + 1 = 4, E ln π = ψ(2) - ψ(4) = -5/6.
    votes = torch.tensor([[[[1.0], [-1.0]], [[3.0], [2.0]]]], dtype=DOUBLE)
    zero = torch.zeros(2, dtype=DOUBLE)
    got = route(votes, torch.ones(1, 2, dtype=DOUBLE), zero, zero, n_iters=n_iters, return_coupling=True)
    near = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(got.pose[0, :, 0], torch.tensor(means, dtype=DOUBLE), **near)
    torch.testing.assert_close(got.coupling[0], torch.tensor(coupling, dtype=DOUBLE), **near)  # type: ignore[index]
    if logits is not None:
        torch.testing.assert_close(got.activation[0].logit(), torch.tensor(logits, dtype=DOUBLE), **near)


def slow(v: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Route one image by three passes as the authors print them, with their division by R_j."""
    r = torch.full((I, J), 1 / J, dtype=DOUBLE)
    m, p, upper = torch.zeros(J, D, dtype=DOUBLE), torch.zeros(J, D, dtype=DOUBLE), torch.zeros(J, dtype=DOUBLE)
    for t in range(3):
        mass = [sum(float(r[i, j] * a[i]) for i in range(I)) for j in range(J)]
        log_pi = [psi(1 + mass[j]) - psi(J + sum(mass)) for j in range(J)]
        rho = torch.zeros(I, J, dtype=DOUBLE)
        for j in range(J):
            mu = sum((r[i, j] * a[i] * v[i, j] for i in range(I)), torch.zeros(D, dtype=DOUBLE)) / mass[j]
            m[j] = mass[j] * mu / (1 + mass[j])
            p[j] = 1 + mass[j] / (1 + mass[j]) * mu**2
            for i in range(I):
                p[j] += r[i, j] * a[i] * (v[i, j] - mu) ** 2
            nu = D + 1 + mass[j]
            log_det = sum(psi((nu - d) / 2) + math.log(2) - math.log(p[j, d]) for d in range(D))
            for i in range(I):
                far = D / (1 + mass[j]) + nu * float(((v[i, j] - m[j]) ** 2 / p[j]).sum())
                rho[i, j] = math.exp(log_pi[j] + log_det / 2 - D * math.log(2 * math.pi) / 2 - far / 2)
            entropy = D * math.log(2 * math.pi * math.e) / 2 - log_det / 2
            upper[j] = 1 / (1 + math.exp(math.exp(log_pi[j]) * entropy + beta_u[j] - beta_a[j]))
        if t < 2:
            r = rho / rho.sum(dim=1, keepdim=True)
    return m, upper, r


def test_agrees_with_the_slow_loop() -> None:
    votes, a, beta_u, beta_a = case()
    got = route(votes, a, beta_u, beta_a, return_coupling=True)
    for b in range(B):
        wanted = slow(votes[b], a[b], beta_u, beta_a)
        for mine, printed in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine[b], printed, rtol=1e-9, atol=1e-9)  # type: ignore[index]


def test_a_capsule_that_is_not_active_may_be_dropped() -> None:
    votes, a, beta_u, beta_a = case()
    a[:, 2] = 0
    kept = [0, 1, 3, 4]
    torch.testing.assert_close(route(votes, a, beta_u, beta_a), route(votes[:, kept], a[:, kept], beta_u, beta_a))


def test_equal_votes_are_shared_equally() -> None:
    votes, a, beta_u, beta_a = case()
    got = route(votes[:, :, :1].expand_as(votes), a, beta_u, beta_a, return_coupling=True)
    torch.testing.assert_close(got.coupling, torch.full((B, I, J), 1 / J, dtype=DOUBLE))


def test_one_lower_and_one_upper_capsule_halve_the_vote() -> None:
    votes = case()[0][:, :1, :1]
    zero = torch.zeros(1, dtype=DOUBLE)
    torch.testing.assert_close(route(votes, torch.ones(B, 1, dtype=DOUBLE), zero, zero).pose, votes[:, 0] / 2)


def test_of_many_lower_capsules_the_mean_is_that_of_em() -> None:
    votes, _, beta, _ = case()
    many = votes.repeat(1, 20_000, 1, 1)
    got = route(many, torch.ones(B, many.shape[1], dtype=DOUBLE), beta, beta, n_iters=1)
    torch.testing.assert_close(got.pose, votes.mean(dim=1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_without_activity_and_with_far_votes_all_is_finite(dtype: torch.dtype, scale: float) -> None:
    votes = (scale * case()[0]).to(dtype).requires_grad_()
    for active in (0.0, 1.0):
        a = torch.full((B, I), active, dtype=dtype, requires_grad=True)
        got = route(votes, a, torch.zeros(J, dtype=dtype), torch.zeros(J, dtype=dtype))
        assert active or not got.pose.detach().any()
        gradients = torch.autograd.grad(got.pose.sum() + got.activation.sum(), (votes, a))
        assert all(bool(x.isfinite().all()) for x in (*got[:2], *gradients))


def test_what_does_not_fit_is_refused() -> None:
    votes, a, beta_u, beta_a = case()
    with pytest.raises(ValueError, match=r"activation must be \[B, I\] with I=5 as in votes, got shape \[2, 4\]"):
        route(votes, a[:, :4], beta_u, beta_a)
    with pytest.raises(ValueError, match="n_iters must be"):
        route(votes, a, beta_u, beta_a, n_iters=0)
