from __future__ import annotations

import pytest
import torch

from torchcaps.explain import principal_components


def test_two_clusters_lie_along_the_line_between_them():
    points = torch.tensor([[3.0, 4.0, 0.1], [3.0, 4.0, -0.1], [-3.0, -4.0, 0.1], [-3.0, -4.0, -0.1]]) + 7
    plane = principal_components(points)
    torch.testing.assert_close(plane.centre, torch.full((3,), 7.0))
    torch.testing.assert_close(plane.axes, torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]))
    torch.testing.assert_close(plane.share, torch.tensor([25 / 25.01, 0.01 / 25.01]))
    torch.testing.assert_close(
        plane.project(points), torch.tensor([[5.0, 0.1], [5.0, -0.1], [-5.0, 0.1], [-5.0, -0.1]])
    )


def test_the_first_axis_is_the_direction_of_most_variance():
    x = torch.randn(200, 1) * torch.tensor([[3.0, 4.0, 0.0]]) + 0.01 * torch.randn(200, 3) + 5
    reduced = principal_components(x, k=1).project(x)
    assert reduced.shape == (200, 1)
    assert float(reduced.std()) == pytest.approx(float((x @ torch.tensor([0.6, 0.8, 0.0])).std()), rel=1e-3)


def test_a_weight_counts_as_so_many_points():
    points = torch.randn(4, 5)
    counts = torch.tensor([1, 3, 0, 2])
    weighted = principal_components(points, 0.5 * counts)
    for mine, theirs in zip(weighted, principal_components(points.repeat_interleave(counts, dim=0)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_gaussian_is_projected_as_its_samples_are():
    plane = principal_components(torch.randn(9, 4))
    sigma = torch.tensor([0.5, 1.0, 2.0, 0.1])
    samples = torch.randn(200_000, 4) * sigma
    seen = torch.cov((samples @ plane.axes.T).T)
    torch.testing.assert_close(plane.project_variance(sigma.square()), seen, atol=0.05, rtol=0)


def test_points_without_weight_or_spread_are_finite():
    same = principal_components(torch.ones(3, 4), torch.zeros(3))
    assert same.centre.tolist() == [1] * 4
    assert same.share.tolist() == [0, 0]
    assert same.project(torch.ones(4)).tolist() == [0, 0]


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="points must be floating point, got torch.int64"):
        principal_components(torch.arange(10).view(5, 2))
    with pytest.raises(ValueError, match=r"points must be \[N, D\] with N ≥ 1 and D ≥ k=2, got shape \[3, 1\]"):
        principal_components(torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"weight must be \[N\] with N=3"):
        principal_components(torch.ones(3, 4), torch.ones(2))
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        principal_components(torch.ones(3, 4), k=0)
