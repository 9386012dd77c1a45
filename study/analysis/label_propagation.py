"""Propagate a few labels to all other points along a graph of nearest neighbours."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_at_least, check_shapes


class Neighbours(NamedTuple):
    """The k nearest neighbours of each point, nearest first.

    Attributes:
        places: indices of the neighbours, ``[N, k]`` int64.
        squared: squared distances to them, ``[N, k]``.
    """

    places: Tensor
    squared: Tensor

    def weights(self) -> Tensor:
        """Compute exp(−4 d² / d_k²), where d_k is the distance of the farthest neighbour, ``[N, k]``.

        Source: Calder, Cook, Thorpe, Slepčev 2020.
        """
        return torch.exp(-4 * self.squared / self.squared[:, -1:].clamp_min(1e-12))


def nearest(x: Tensor, points: Tensor, k: int, *, same: bool = False, chunk: int = 1000) -> Neighbours:
    """Find the k nearest ``points`` of each ``x``.

    Args:
        x: points whose neighbours are searched, ``[N, D]``.
        points: candidates, ``[M, D]``.
        k: number of neighbours.
        same: whether ``x`` are the candidates themselves; none is its own neighbour.
        chunk: number of points at a time.

    Raises:
        ValueError: the shapes do not fit, or there are too few points.
    """
    sizes = check_shapes(x=(x, "N D"), points=(points, "M D"))
    check_at_least("k", k, 1)
    if sizes["M"] - same < k:
        raise ValueError(f"points must be at least k={k}{' besides each itself' * same}, got {sizes['M']}")
    centre = points.mean(dim=0)  # far from the origin the differences of squares would be lost to rounding
    x, points = x - centre, points - centre
    norms, found = points.square().sum(dim=1), []
    for first in range(0, len(x), chunk):
        part = x[first : first + chunk]
        squared = torch.addmm(norms, part, points.T, alpha=-2)  # without the norm of x, the same for all
        if same:
            row = torch.arange(len(part), device=x.device)
            squared[row, first + row] = torch.inf
        value, index = squared.topk(k, dim=1, largest=False)
        found.append((index, (value + part.square().sum(dim=1, keepdim=True)).clamp_min(0)))
    return Neighbours(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def affinity(found: Neighbours) -> Tensor:
    """Build the graph of neighbours: a sparse matrix ``[N, N]``, symmetric and normalized by the degrees.

    Two points are joined if one is among the other's nearest, with the mean of their weights for each other.
    """
    n, k = found.places.shape
    weight = found.weights()
    row = torch.arange(n, device=weight.device).repeat_interleave(k)
    both = torch.stack((torch.cat((row, found.places.flatten())), torch.cat((found.places.flatten(), row))))
    half, here = weight.flatten().repeat(2) / 2, weight.device
    graph = torch.sparse_coo_tensor(both, half, (n, n), device=here, check_invariants=False).coalesce()
    at, values = graph.indices(), graph.values()
    degree = values.new_zeros(n).index_add(0, at[0], values)
    values = values / (degree[at[0]] * degree[at[1]]).sqrt().clamp_min(1e-12)
    return torch.sparse_coo_tensor(at, values, (n, n), device=here, is_coalesced=True, check_invariants=False)


def propagate_labels(graph: Tensor, places: Tensor, labels: Tensor, n_classes: int, n_iters: int = 100) -> Tensor:
    """Propagate labels from the labelled points to their neighbours, and from these to theirs.

    Args:
        graph: graph from :func:`affinity`, ``[N, N]``.
        places: indices of the n labelled points, for R draws at once, ``[R, n]``.
        labels: labels of these points, ``[R, n]`` int64.
        n_classes: K.
        n_iters: number of iterations.

    Returns:
        Scores ``[R, N, K]``: 0 where no label arrives. Each class has the same total, so that one with well-placed
        examples does not take over.

    Source: Zhou et al. 2003, "Learning with local and global consistency", with α = 0.99; the totals after Zhu,
    Ghahramani, Lafferty 2003 (class mass normalization).
    """
    n_draws = check_shapes(places=(places, "R n"), labels=(labels, "R n"))["R"]
    first = torch.zeros(graph.shape[0], n_draws, n_classes, dtype=graph.dtype, device=graph.device)
    first[places, torch.arange(n_draws, device=graph.device).unsqueeze(1), labels] = 1.0
    first = (first / first.sum(dim=0).clamp_min(1)).flatten(1)  # [N, R·K]: one product serves all draws
    scores = first
    for _ in range(n_iters):
        scores = 0.99 * torch.sparse.mm(graph, scores) + 0.01 * first
    return (scores / scores.sum(dim=0).clamp_min(1e-12)).unflatten(1, (n_draws, n_classes)).transpose(0, 1)


def classes_from_anchors(
    shares: Tensor, index: Tensor, labels: Tensor, n_classes: int, smoothness: float = 0.01
) -> Tensor:
    """Classify clusters from a few labelled points and from the points that clusters share.

    Args:
        shares: membership of each point in the clusters, ``[N, K]`` with rows that sum to 1.
        index: indices of the labelled points, ``[n]``.
        labels: labels of these points, ``[n]`` int64.
        n_classes: C.
        smoothness: γ, the weight of agreement between clusters that share points.

    Returns:
        ``[K, C]``: its product ``shares @`` gives scores of points. For each class with labels they sum to 1 over all
        points, which assumes about equally frequent classes (a sum that is not positive is left as it is).

    Source: Liu, He, Chang 2010, "Large graph construction for scalable semi-supervised learning".
    """
    check_shapes(shares=(shares, "N K"), index=(index, "n"), labels=(labels, "n"))
    z = shares.double()
    together = z.T @ z  # [K, K]
    rough = together - together @ (together / z.sum(dim=0).clamp_min(1e-12).unsqueeze(1))
    known = z[index]
    left = known.T @ known + smoothness * rough + 1e-9 * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    classes = torch.linalg.solve(left, known.T @ F.one_hot(labels, n_classes).to(z))  # [K, C]
    mass = z.sum(dim=0) @ classes  # of a class over all points: one whose labels are well placed would take the others'
    return (classes / torch.where(mass > 0, mass, 1.0)).to(shares)
