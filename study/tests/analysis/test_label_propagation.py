"""Labels that spread over neighbours and over clusters."""

from __future__ import annotations

import math

import pytest
import torch

from study.analysis.label_propagation import Neighbours, affinity, classes_from_anchors, nearest, propagate_labels


def rings(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rings, one inside the other: nearest labels mislead, neighbours of neighbours do not."""
    label = torch.arange(n) % 2
    angle = torch.arange(n) * (2 * math.pi / n)
    radius = 1.0 + label
    return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1), label


def test_nearest_is_what_one_finds_by_looking_at_all() -> None:
    x, points = torch.randn(7, 3), torch.randn(20, 3)
    found = nearest(x, points, 4, chunk=3)
    squared = torch.cdist(x, points).square()
    torch.testing.assert_close(found.squared, squared.sort(dim=1).values[:, :4], atol=1e-4, rtol=1e-4)
    assert torch.equal(found.places, squared.argsort(dim=1)[:, :4])
    same = nearest(points, points, 1, same=True, chunk=6)
    assert (same.places[:, 0] != torch.arange(20)).all() and same.squared.min() > 0


def test_the_graph_is_symmetric_and_has_no_eigenvalue_above_one() -> None:
    x, _ = rings()
    graph = affinity(nearest(x, x, 5, same=True)).to_dense()
    torch.testing.assert_close(graph, graph.T)
    assert torch.linalg.eigvalsh(graph).max().item() == pytest.approx(1.0, abs=1e-4)


def test_weights_fall_with_the_square_of_the_distance() -> None:
    """To e⁻⁴ at the last of the nearest, at distances of ½, 1/√2 and 1 times its; of points that are one, 1."""
    weights = Neighbours(torch.zeros(2, 3), torch.tensor([[2.0, 4.0, 8.0], [0.0, 0.0, 0.0]])).weights()
    torch.testing.assert_close(weights[0], torch.tensor([-1.0, -2.0, -4.0]).exp())
    assert weights[1].tolist() == [1, 1, 1]


def test_labels_handed_on_by_hand() -> None:
    """Two points that are each other's neighbours, the first labelled: 99 parts are handed on, one comes anew."""
    pair = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).to_sparse()
    for n_iters, wanted in ((1, [0.01, 0.99]), (2, [0.99 * 0.99 + 0.01, 0.99 * 0.01])):
        scores = propagate_labels(pair, torch.tensor([[0]]), torch.tensor([[1]]), 2, n_iters)
        torch.testing.assert_close(scores[0, :, 1], torch.tensor(wanted))
        assert scores[0, :, 0].tolist() == [0, 0]


def test_one_label_a_ring_is_enough() -> None:
    x, label = rings()
    graph = affinity(nearest(x, x, 4, same=True))
    index = torch.tensor([0, 1])
    both = torch.stack((index, torch.tensor([60, 31])))
    scores, others = propagate_labels(graph, both, label[both], 2, n_iters=2000)
    torch.testing.assert_close(others.argmax(dim=1), scores.argmax(dim=1))
    assert (scores.argmax(dim=1) == label).float().mean() > 0.99
    by_distance = torch.cdist(x, x[index]).argmin(dim=1)
    assert (by_distance == label).float().mean() < 0.8
    torch.testing.assert_close(scores.sum(dim=0), torch.ones(2))


def test_clusters_take_the_class_of_those_they_share_points_with() -> None:
    # Clusters 0, 1, 2 overlap in a chain, 3 and 4 with each other; one label in cluster 0, one in 3.
    chains = [(0,), (0, 1), (1,), (1, 2), (2,), (3,), (3, 4), (4,)]
    shares = torch.zeros(len(chains), 5)
    for row, clusters in enumerate(chains):
        shares[row, list(clusters)] = 1 / len(clusters)
    classes = classes_from_anchors(shares, torch.tensor([0, 5]), torch.tensor([1, 0]), 2)
    assert (shares @ classes).argmax(dim=1).tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


def test_a_class_whose_label_is_well_placed_takes_no_more_than_its_share() -> None:
    """Liu et al. 2010: Z a_j / λ_j, λ_j = 1ᵀ Z a_j. Class 1's label lies within its cluster, that of 0 between two."""
    shares = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.8, 0.2]])
    classes = classes_from_anchors(shares, torch.tensor([4, 2]), torch.tensor([0, 1]), 3)
    torch.testing.assert_close((shares @ classes).sum(dim=0), torch.tensor([1.0, 1.0, 0.0]))
    assert (shares @ classes)[:4].argmax(dim=1).tolist() == [0, 0, 1, 1]


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="points must be at least k=3 besides each itself, got 3"):
        nearest(torch.rand(3, 2), torch.rand(3, 2), 3, same=True)


def test_neighbours_are_the_same_far_from_the_origin() -> None:
    points = torch.randn(100, 5)
    moved = (points.double() + 1000).float()
    assert nearest(moved, moved, 5, same=True).places.equal(nearest(points, points, 5, same=True).places)
