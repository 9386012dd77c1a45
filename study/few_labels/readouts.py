"""From vectors and a few labels to classes. Each is fitted to all vectors once, then asked for each draw of labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from study.analysis.factor_mixture import fit_factor_mixture
from study.analysis.label_propagation import affinity, classes_from_anchors, nearest, propagate_labels
from study.few_labels.codes import Codes

Draw = tuple[Tensor, Tensor]
#: For several draws of as many labels, each of places among the unlabelled examples ``[n]`` and their labels ``[n]``:
#: the classes of val and of test.
Readout = Callable[[Sequence[Draw]], list[tuple[Tensor, Tensor]]]

#: Neighbours of each point in a graph, and those whose scores a new point takes.
N_NEIGHBOURS = 10
#: Clusters that a point belongs to on average once memberships are softened.
_N_SHARED = 3.0


def nearest_labelled(codes: Codes, n_classes: int) -> Readout:
    """The class of the nearest labelled example; of the three nearest where there are ten of each class."""

    def classes(draw: Draw) -> tuple[Tensor, Tensor]:
        index, labels = draw
        k = 3 if len(index) >= 10 * n_classes else 1
        votes = F.one_hot(labels, n_classes).float()
        # Earlier neighbours break ties.
        order = 1 + 0.01 * torch.arange(k, 0, -1).view(1, k, 1)
        found = (nearest(part, codes.train[index], k).places for part in (codes.val, codes.test))
        val, test = ((votes[each] * order).sum(dim=1).argmax(dim=1) for each in found)
        return val, test

    return one_by_one(classes)


def neighbour_graph(codes: Codes, n_classes: int) -> Readout:
    """Labels spread over the graph of all unlabelled examples; a new image takes those of its nearest."""
    graph = affinity(nearest(codes.train, codes.train, N_NEIGHBOURS, same=True))
    near = [nearest(part, codes.train, N_NEIGHBOURS) for part in (codes.val, codes.test)]

    def classes(draws: Sequence[Draw]) -> list[tuple[Tensor, Tensor]]:
        places, labels = (torch.stack(parts) for parts in zip(*draws, strict=True))
        answers = []
        for scores, known in zip(propagate_labels(graph, places, labels, n_classes), labels, strict=True):
            val, test = ((each.weights().unsqueeze(2) * scores[each.places]).sum(dim=1) for each in near)
            common = known.bincount(minlength=n_classes).to(val)  # of what no label reaches nothing else is known
            val, test = (torch.where(part.any(dim=1, keepdim=True), part, common).argmax(dim=1) for part in (val, test))
            answers.append((val, test))
        return answers

    return classes


def factor_mixture(codes: Codes, n_classes: int, n_components: int = 50, n_factors: int = 8) -> Readout:
    """A mixture of factor analysers; labelled examples name the components, and these what they share examples with."""
    n, d = codes.train.shape
    # So many that each has points enough to be fitted.
    mixture, _ = fit_factor_mixture(codes.train, max(1, min(n_components, n // (2 * d))), min(n_factors, d - 1))
    joint = mixture.log_joint(codes.train)
    temperature = softening(joint[:: max(1, len(joint) // 5000)])
    shares, *others = (
        (x / temperature).softmax(dim=1) for x in (joint, mixture.log_joint(codes.val), mixture.log_joint(codes.test))
    )

    def classes(draw: Draw) -> tuple[Tensor, Tensor]:
        of_components = classes_from_anchors(shares, *draw, n_classes)
        val, test = ((part @ of_components).argmax(dim=1) for part in others)
        return val, test

    return one_by_one(classes)


def one_by_one(classes: Callable[[Draw], tuple[Tensor, Tensor]]) -> Readout:
    """A read-out that takes one draw after the other."""
    return lambda draws: [classes(draw) for draw in draws]


def softening(joint: Tensor) -> float:
    """Find the temperature at which points ``[N, K]`` belong to a few components.

    Posteriors in many dimensions are nearly 0 or 1, and say nothing of which components are alike.
    """
    low, high = 0.0, 10.0  # logarithms to the base 2
    for _ in range(30):
        middle = (low + high) / 2
        share = (joint / 2**middle).softmax(dim=1)
        perplexity = math.exp(torch.special.entr(share).sum(dim=1).mean().item())
        low, high = (middle, high) if perplexity < min(_N_SHARED, joint.shape[1] / 2) else (low, middle)
    return 2 ** ((low + high) / 2)


#: Every read-out, by the name in the table.
READOUTS: dict[str, Callable[[Codes, int], Readout]] = {
    "nearest labelled": nearest_labelled,
    "mixture of factor analysers": factor_mixture,
    "spread over neighbours": neighbour_graph,
}
