"""Mixtures of factor analysers: clusters, each with a few directions of its own in which its members differ."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.checks import check_at_least, check_floating, check_shapes


class FactorMixture(NamedTuple):
    """K factor analysers: x = μ_k + Λ_k z + noise of variance Ψ_k, with probability π_k.

    Attributes:
        weight: π, ``[K]``.
        mean: μ, ``[K, D]``.
        loading: Λ, ``[K, D, Q]``.
        noise: Ψ, ``[K, D]``.
    """

    weight: Tensor
    mean: Tensor
    loading: Tensor
    noise: Tensor

    def log_joint(self, x: Tensor) -> Tensor:
        """log π_k + log N(x; μ_k, Λ_k Λ_kᵀ + Ψ_k) of points ``[N, D]``: ``[N, K]``."""
        check_shapes(x=(x, "N D"), mean=(self.mean, "K D"))
        covariance = self.loading @ self.loading.transpose(1, 2) + self.noise.diag_embed()  # [K, D, D]
        factor = torch.linalg.cholesky(covariance)
        eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device).expand_as(factor)
        whiten = torch.linalg.solve_triangular(factor, eye, upper=False)
        log_det = factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        constant = self.weight.log() - log_det - 0.5 * x.shape[1] * math.log(2 * math.pi)
        # Component by component: all at once would take N·K·D numbers.
        squared = [((x - mean) @ w.T).square().sum(dim=1) for mean, w in zip(self.mean, whiten, strict=True)]
        return constant - 0.5 * torch.stack(squared, dim=1)


@torch.no_grad()
def fit_factor_mixture(
    x: Tensor, n_components: int, n_factors: int, n_iters: int = 30, seed: int = 0
) -> tuple[FactorMixture, list[float]]:
    """Fit a mixture by EM, starting from the clusters of k-means.

    A component with fewer than D/2 points keeps its analyser of the iteration before.

    Args:
        x: points ``[N, D]``, N at least ``n_components`` and at least 2. The axes in comparable units: the clusters of
            the start are Euclidean.
        n_components: K.
        n_factors: Q, below D.
        n_iters: number of iterations of EM.
        seed: seed of k-means.

    Returns:
        The mixture, and the mean log-likelihood of a point before every iteration. It never falls, except through the
        floor of Ψ.

    Raises:
        ValueError: there are too few points or dimensions, points that are not finite floats, or no iterations.

    Source: Ghahramani and Hinton 1996, "The EM algorithm for mixtures of factor analyzers".
    """
    sizes = check_shapes(x=(x, "N D"))
    check_at_least("n_components", n_components, 1)
    check_at_least("n_factors", n_factors, 1)
    check_at_least("n_iters", n_iters, 1)
    check_floating("x", x)
    if not x.isfinite().all():
        raise ValueError(f"x must be finite, got {int((~x.isfinite()).sum())} numbers that are not")
    if sizes["N"] < max(2, n_components) or sizes["D"] <= n_factors:
        raise ValueError(
            f"x must be [N, D] with N ≥ 2, N ≥ n_components={n_components} and D > n_factors={n_factors}, "
            f"got shape {list(x.shape)}"
        )
    variance = x.var(dim=0)
    mean = variance.mean().clamp_min(1e-12)
    # Of each axis by itself, as units may differ; but axes that hardly vary, by rounding alone, are to say nothing.
    floor = 1e-3 * variance.clamp(1e-6 * mean, mean)  # [D]
    nearest = _k_means(x - x.mean(dim=0), n_components, seed)  # centred: far from 0 distances lose their digits
    responsibility = torch.nn.functional.one_hot(nearest, n_components).to(x)  # [N, K]
    mixture = _first(x, responsibility, n_factors, floor, seed)
    likelihood = []
    for _ in range(n_iters):
        joint = mixture.log_joint(x)
        total = joint.logsumexp(dim=1, keepdim=True)
        likelihood.append(total.mean().item())
        mixture = _m_step(x, (joint - total).exp(), mixture, floor)
    return mixture, likelihood


def _k_means(x: Tensor, k: int, seed: int, n_iters: int = 10) -> Tensor:
    """Assign each point to the nearest of k centres, by k-means."""
    centres = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed), device="cpu")[:k].to(x.device)]
    nearest = torch.cdist(x, centres).argmin(dim=1)
    for _ in range(n_iters):
        total = torch.zeros_like(centres).index_add(0, nearest, x)
        n = nearest.bincount(minlength=k).unsqueeze(1)
        centres = torch.where(n > 0, total / n.clamp_min(1), centres)
        nearest = torch.cdist(x, centres).argmin(dim=1)
    return nearest


def _first(x: Tensor, responsibility: Tensor, n_factors: int, floor: Tensor, seed: int) -> FactorMixture:
    """Initialize components with the variances of all points, and small random loadings."""
    n_components, d = responsibility.shape[1], x.shape[1]
    mass = responsibility.sum(dim=0) + 1.0
    overall = x.mean(dim=0)
    mean = (responsibility.T @ x + overall) / mass.unsqueeze(1)
    noise = x.var(dim=0).clamp_min(floor).expand(n_components, d).clone()
    draw = torch.randn(n_components, d, n_factors, generator=torch.Generator().manual_seed(seed), device="cpu").to(x)
    loading = 0.1 * draw * noise.sqrt().unsqueeze(2)
    return FactorMixture(mass / mass.sum(), mean, loading, noise)


def _m_step(x: Tensor, responsibility: Tensor, old: FactorMixture, floor: Tensor) -> FactorMixture:
    """Update one component after the other, each from the covariance S of its points."""
    made = [_analyser(x, r, old.mean[k], old.loading[k], old.noise[k], floor) for k, r in enumerate(responsibility.T)]
    mean, loading, noise = (torch.stack(parts) for parts in zip(*made, strict=True))
    mass = responsibility.sum(dim=0).clamp_min(1e-6)
    return FactorMixture(mass / mass.sum(), mean, loading, noise)


def _analyser(
    x: Tensor, weight: Tensor, mean: Tensor, loading: Tensor, noise: Tensor, floor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute μ, Λ and Ψ of one component after a step."""
    mass = weight.sum()
    if mass < x.shape[1] / 2:  # too few points to say anything new of
        return mean, loading, noise
    mean = weight @ x / mass
    off = x - mean
    s = (off.T * weight) @ off / mass
    eye = torch.eye(loading.shape[1], dtype=x.dtype, device=x.device)
    scaled = loading.T / noise
    beta = torch.linalg.solve(eye + scaled @ loading, scaled)  # Λᵀ(ΛΛᵀ + Ψ)⁻¹, by the inversion lemma
    cross = s @ beta.T  # S βᵀ
    second = eye - beta @ loading + beta @ cross  # E[z zᵀ]
    loading = torch.linalg.solve(second, cross.T).T
    return mean, loading, (s.diagonal() - (loading * cross).sum(dim=1)).clamp_min(floor)
