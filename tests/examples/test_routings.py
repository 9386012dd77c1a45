"""A routing written outside the library: right, and at home in every layer and network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from examples.routings.self_routing import SelfRouting
from torchcaps import Capsules, ClassCaps, DenseCaps
from torchcaps.layers import Routing
from torchcaps.models import CapsNet, MatrixCapsNet

B, I, J = 2, 5, 3  # noqa: E741


def lower(*places: int, d: int = 16) -> Capsules:
    return Capsules(torch.randn(B, *places, d, dtype=torch.double), torch.rand(B, *places, dtype=torch.double))


def drawn(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.double()


@torch.no_grad()
def test_self_routing_is_the_papers() -> None:
    """A loop over single numbers."""
    layer, x = drawn(DenseCaps(I, J, 4, 6, routing=SelfRouting())), lower(I, d=4)
    got = layer(x, return_coupling=True)
    for b in range(B):
        share = torch.zeros(I, J, dtype=torch.double)
        for i in range(I):
            logit = [float(layer.route_weight[i, j] @ x.pose[b, i] + layer.route_bias[i, j]) for j in range(J)]
            share[i] = torch.tensor(logit, dtype=torch.double).exp()
            share[i] /= share[i].sum()
        for j in range(J):
            mass = sum(float(share[i, j] * x.activation[b, i]) for i in range(I))
            pose = torch.zeros(6, dtype=torch.double)
            for i in range(I):
                pose += share[i, j] * x.activation[b, i] * (x.pose[b, i] @ layer.weight[i, j]) / mass
            torch.testing.assert_close(got.pose[b, j], pose)
            torch.testing.assert_close(got.activation[b, j].item(), mass / float(x.activation[b].sum()))
        torch.testing.assert_close(got.coupling[b], share)


def test_self_routing_shares_equally_at_first_and_where_nothing_is_active() -> None:
    layer = DenseCaps(I, J, 4, 6, routing=SelfRouting())
    third = torch.full((B, J), 1 / 3)
    torch.testing.assert_close(layer(Capsules(torch.randn(B, I, 4), torch.rand(B, I))).activation, third)
    black = layer(Capsules(torch.zeros(B, I, 4), torch.zeros(B, I)))
    torch.testing.assert_close(black.activation, third)
    assert not black.pose.any()


NETWORKS: dict[str, Callable[[Routing], nn.Module]] = {
    "CapsNet": lambda r: CapsNet(
        (1, 20, 20),
        J,
        channels=4,
        n_types=2,
        d_primary=16,
        kernel_size=5,
        hidden=({"n_types": 2, "d_out": 16},),
        routing=r,
    ),
    "MatrixCapsNet": lambda r: MatrixCapsNet((1, 24, 24), J, A=4, B=2, C=3, D=2, routing=r),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("routing", [SelfRouting()])
def test_networks_train(network: str, routing: Routing) -> None:
    """A few steps on one batch, from the scores by cross-entropy; weights are saved and loaded."""
    model = NETWORKS[network](routing)
    x, labels = torch.rand(6, 1, *((20, 20) if network == "CapsNet" else (24, 24))), torch.arange(6) % J
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        scores = model(x).scores
        scores = scores.log() if isinstance(routing, SelfRouting) else scores
        losses.append(nn.functional.cross_entropy(scores, labels))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert float(losses[-1].detach()) < 0.8 * float(losses[0].detach())
    other = NETWORKS[network](routing)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x).scores, other(x).scores)
    with pytest.raises(ValueError, match="coordinates must be None with"):
        ClassCaps(2, J, 16, 16, routing=routing, coordinates="column")


def test_they_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="n_iters must be None with self routing, got 2"):
        DenseCaps(I, J, 4, 6, routing=SelfRouting())(Capsules(torch.zeros(B, I, 4), torch.zeros(B, I)), n_iters=2)
