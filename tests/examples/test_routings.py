"""A routing written outside the library: right, and at home in every layer and network."""

from __future__ import annotations

import pytest
import torch

from examples.routings.numberwise_routing import NumberwiseRouting
from torchcaps import ClassCaps, ConvCaps, DenseCaps, build
from torchcaps.testing import Subject, assert_capsule_properties

B, I, J = 2, 5, 3  # noqa: E741


def test_numberwise_routing_worked_by_hand() -> None:
    """Votes (1, 0) and (3, 2): their mean (2, 1) has length √5, and is squashed to (2, 1) √5/6."""
    layer = DenseCaps(2, 1, 1, 2, routing=NumberwiseRouting()).double()
    votes = torch.tensor([[1.0, 0.0], [3.0, 2.0]], dtype=torch.double)
    layer.load_state_dict({"weight": votes.view(2, 1, 1, 2)})
    x = torch.ones(1, 2, 1, dtype=torch.double)
    pose = torch.tensor([0.745356, 0.372678], dtype=torch.double)
    torch.testing.assert_close(layer(x, n_iters=1).pose[0, 0], pose, rtol=0, atol=1e-6)
    # Logits (1, 3) · 0.745356 and (0, 2) · 0.372678: the second vote gets σ(1.490712) and σ(0.745356).
    got = layer(x, return_coupling=True)
    assert got.coupling[0, 1, 0].item() == pytest.approx((0.816185 + 0.678166) / 2, abs=1e-6)
    # So the sum is (1 + 2 · 0.816185, 2 · 0.678166), of length 2.961251.
    length = 2.961251
    wanted = torch.tensor([2.632370, 1.356332], dtype=torch.double) * length / (1 + length**2)
    torch.testing.assert_close(got.pose[0, 0], wanted, rtol=0, atol=1e-5)


@torch.no_grad()
def test_numberwise_routing_number_by_number() -> None:
    """A loop over single numbers."""
    layer = DenseCaps(I, J, 4, 6, routing=NumberwiseRouting(3)).double()
    u = torch.randn(B, I, 4, dtype=torch.double)
    weight, got = layer.state_dict()["weight"], layer(u).pose
    for b in range(B):
        for j in range(J):
            votes = [u[b, i] @ weight[i, j] for i in range(I)]
            logits, v = torch.zeros(I, 6, dtype=torch.double), torch.zeros(6, dtype=torch.double)
            for _ in range(3):
                s = torch.zeros(6, dtype=torch.double)
                for d in range(6):
                    share = logits[:, d].exp() / logits[:, d].exp().sum()
                    s[d] = sum(share[i] * votes[i][d] for i in range(I))
                v = s * s.norm() / (1 + s.norm() ** 2)
                for i in range(I):
                    logits[i] += votes[i] * v
            torch.testing.assert_close(got[b, j], v)


@pytest.mark.parametrize("layer", ["dense", "conv", "classes"])
def test_it_has_the_properties_of_capsules(layer: str) -> None:
    """Its couplings sum to one over the lower capsules, which the subject says."""
    routing = NumberwiseRouting()
    shape, make = {
        "dense": ((7, 5), lambda: DenseCaps(7, 4, 5, 6, routing=routing)),
        "conv": ((2, 5, 6, 5), lambda: ConvCaps(2, 4, 5, 6, (2, 3), stride=2, routing=routing)),
        "classes": ((2, 3, 4, 5), lambda: ClassCaps(2, 4, 5, 6, routing=routing)),
    }[layer]
    checked = assert_capsule_properties(Subject(layer, shape, make, couplings="other"))
    assert "derivatives_are_right" in checked


def test_networks_take_it() -> None:
    model = build("capsnet_small", (1, 20, 20), J, channels=4, routing=NumberwiseRouting())
    model(torch.rand(2, 1, 20, 20)).scores.sum().backward()
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        NumberwiseRouting(0)
