"""Mixtures of factor analysers: EM climbs, and finds what the points were made of."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from study.analysis import FactorMixture, fit_factor_mixture


def made(n: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of three components in six dimensions that overlap unless their directions are known."""
    torch.manual_seed(1)
    label = torch.arange(n) % 3
    direction = torch.eye(6)[:3]
    mean = 1.5 * torch.eye(6)[3:]
    x = mean[label] + 4 * torch.randn(n, 1) * direction[label] + 0.3 * torch.randn(n, 6)
    return x, label


def test_the_density_is_that_of_a_normal() -> None:
    mixture = FactorMixture(torch.tensor([0.25, 0.75]), torch.randn(2, 4), torch.randn(2, 4, 2), 0.5 + torch.rand(2, 4))
    x = torch.randn(5, 4)
    for k in range(2):
        covariance = mixture.loading[k] @ mixture.loading[k].T + mixture.noise[k].diag()
        normal = torch.distributions.MultivariateNormal(mixture.mean[k], covariance)
        wanted = mixture.weight[k].log() + normal.log_prob(x)
        torch.testing.assert_close(mixture.log_joint(x)[:, k], wanted, atol=1e-4, rtol=1e-4)


def test_em_climbs_and_finds_the_components() -> None:
    x, label = made()
    mixture, likelihood = fit_factor_mixture(x, 3, 1, n_iters=60)
    assert all(b >= a - 1e-4 for a, b in itertools.pairwise(likelihood))
    assert likelihood[-1] > likelihood[0] + 0.5
    found = mixture.log_joint(x).argmax(dim=1)
    purity = sum(torch.bincount(label[found == k], minlength=3).max().item() for k in range(3) if (found == k).any())
    assert purity / len(x) > 0.95
    torch.testing.assert_close(mixture.weight.sum(), torch.tensor(1.0))


def test_one_component_has_the_mean_and_nearly_the_covariance() -> None:
    x = torch.randn(2000, 3) @ torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.3]]) + 4
    mixture, _ = fit_factor_mixture(x, 1, 2, n_iters=200)
    torch.testing.assert_close(mixture.mean[0], x.mean(dim=0), atol=1e-4, rtol=1e-4)
    covariance = mixture.loading[0] @ mixture.loading[0].T + mixture.noise[0].diag()
    torch.testing.assert_close(covariance, x.T.cov(correction=0), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("much", [1.0, 30.0, 1000.0])
def test_an_axis_of_small_units_keeps_its_variance(much: float) -> None:
    """Such as an angle in radians beside a shift in pixels; a third axis is constant, except for rounding."""
    torch.manual_seed(0)
    x = torch.randn(1000, 3) * torch.tensor([0.15, much, 1e-7])
    mixture, likelihood = fit_factor_mixture(x, 1, 1, n_iters=50)
    found = mixture.loading[0, 0].square().sum() + mixture.noise[0, 0]
    assert found == pytest.approx(x[:, 0].var().item(), rel=0.02)
    assert all(b >= a - 1e-4 for a, b in itertools.pairwise(likelihood))


@pytest.mark.parametrize("seed", range(4))
def test_the_origin_may_lie_far_away(seed: int) -> None:
    torch.manual_seed(0)
    x = torch.tensor([[0.0, 0, 0], [6, 0, 0], [0, 6, 0]])[torch.arange(300) % 3] + torch.randn(300, 3)
    near, far = (fit_factor_mixture(y, 3, 1, seed=seed)[0] for y in (x, (x.double() + 3000).float()))
    torch.testing.assert_close(far.mean - 3000, near.mean, atol=0.05, rtol=0)


def test_the_same_seed_gives_the_same_mixture() -> None:
    x, _ = made(60)
    one, two = (fit_factor_mixture(x, 3, 1, n_iters=3, seed=5)[0] for _ in range(2))
    assert torch.equal(one.mean, two.mean)


def test_too_few_points_or_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be floating point, got torch.int64"):
        fit_factor_mixture(torch.ones(8, 3, dtype=torch.int64), 2, 1)
    with pytest.raises(ValueError, match=r"x must be finite, got 24 numbers that are not"):
        fit_factor_mixture(torch.full((8, 3), math.nan), 2, 1)
    with pytest.raises(ValueError, match=r"n_iters must be an integer of at least 1, got 0"):
        fit_factor_mixture(torch.rand(8, 3), 2, 1, n_iters=0)
    with pytest.raises(ValueError, match=r"N ≥ n_components=9 and D > n_factors=2, got shape \[8, 3\]"):
        fit_factor_mixture(torch.rand(8, 3), 9, 2)
    with pytest.raises(ValueError, match=r"N ≥ 2, N ≥ n_components=1 and D > n_factors=1, got shape \[1, 3\]"):
        fit_factor_mixture(torch.rand(1, 3), 1, 1)
    with pytest.raises(ValueError, match=r"D > n_factors=3, got shape \[8, 3\]"):
        fit_factor_mixture(torch.rand(8, 3), 2, 3)
