"""A routing written outside the library: right, and at home in every layer and network."""

from __future__ import annotations

import pytest
import torch

from examples.routings.degree_routing import DegreeRouting
from torchcaps import ClassCaps, ConvCaps, DenseCaps, build
from torchcaps.testing import Subject, assert_capsule_properties

B, I, J = 2, 5, 3  # noqa: E741


def test_degree_routing_worked_by_hand() -> None:
    """Votes (1, 0), (0, 2), (1, 1) have degrees 2, 1.5 and 2.5; their shares sum to one over the lower capsules."""
    layer = DenseCaps(3, 1, 1, 2, routing=DegreeRouting()).double()
    votes = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.double)
    with torch.no_grad():
        layer.weight.copy_(votes.view(3, 1, 1, 2))
    got = layer(torch.ones(1, 3, 1, dtype=torch.double), return_coupling=True)
    share = torch.tensor([0.307196, 0.186324, 0.506480], dtype=torch.double)
    torch.testing.assert_close(got.coupling[0, :, 0], share, rtol=0, atol=1e-6)
    pose = torch.tensor([0.400295, 0.432495], dtype=torch.double)
    torch.testing.assert_close(got.pose[0, 0], pose, rtol=0, atol=1e-6)


@torch.no_grad()
def test_degree_routing_is_that_of_the_graph() -> None:
    """A loop over pairs of votes."""
    layer = DenseCaps(I, J, 4, 6, routing=DegreeRouting()).double()
    u = torch.randn(B, I, 4, dtype=torch.double)
    got = layer(u, return_coupling=True).coupling
    for b in range(B):
        for j in range(J):
            votes = [u[b, i] @ layer.weight[i, j] for i in range(I)]
            degrees = torch.stack([sum(x @ y / (x @ x) for y in votes) for x in votes])  # type: ignore[misc]
            torch.testing.assert_close(got[b, :, j], degrees.softmax(dim=0))


@pytest.mark.parametrize("layer", ["dense", "conv", "classes"])
def test_it_has_the_properties_of_capsules(layer: str) -> None:
    """Its couplings sum to one over the lower capsules, which the subject says."""
    routing = DegreeRouting()
    shape, make = {
        "dense": ((7, 5), lambda: DenseCaps(7, 4, 5, 6, routing=routing)),
        "conv": ((2, 5, 6, 5), lambda: ConvCaps(2, 4, 5, 6, (2, 3), stride=2, routing=routing)),
        "classes": ((2, 3, 4, 5), lambda: ClassCaps(2, 4, 5, 6, routing=routing)),
    }[layer]
    checked = assert_capsule_properties(Subject(layer, shape, make, couplings="other"))
    assert "derivatives_are_right" in checked


def test_networks_take_it() -> None:
    model = build("capsnet_small", (1, 20, 20), J, channels=4, routing=DegreeRouting())
    model(torch.rand(2, 1, 20, 20)).scores.sum().backward()
    with pytest.raises(ValueError, match="n_iters must be None with degree routing, got 2"):
        model(torch.rand(2, 1, 20, 20), n_iters=2)
