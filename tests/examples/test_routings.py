"""Two routings that fit least, written outside the library: right, and at home in every layer and network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from examples.routings.inverted_attention import InvertedAttention, concurrent
from examples.routings.self_routing import SelfRouting
from torchcaps import Capsules, ClassCaps, ConvCaps, DenseCaps
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


@pytest.mark.parametrize("side", [4, 6])
@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_inverted_attention_is_the_papers(side: int, n_iters: int) -> None:
    """A loop over single capsules; matrices of any size."""
    d = side * side
    layer, x = drawn(DenseCaps(I, J, d, d, routing=InvertedAttention(n_iters))), lower(I, d=d)
    got = layer(x)
    for b in range(B):
        votes = [[x.pose[b, i].view(side, side) @ layer.weight[i, j] for j in range(J)] for i in range(I)]
        upper: list[Tensor] | None = None
        for _ in range(n_iters):
            share = torch.full((I, J), 1 / J, dtype=torch.double)
            if upper is not None:
                for i in range(I):
                    share[i] = torch.stack([(votes[i][j] * upper[j]).sum() / d**0.5 for j in range(J)]).exp()
                    share[i] /= share[i].sum()
            upper = []
            for j in range(J):
                s = sum(share[i, j] * votes[i][j] for i in range(I)).flatten()  # type: ignore[union-attr]
                centred = s - s.mean()
                normed = centred / (centred.square().mean() + 1e-5).sqrt()
                upper.append((normed * layer.norm.weight + layer.norm.bias).view(side, side))
        torch.testing.assert_close(got.pose[b], torch.stack(upper))
        logits = torch.stack([p.flatten() @ layer.score_weight + layer.score_bias for p in upper])
        torch.testing.assert_close(got.activation[b], logits)


def test_a_state_goes_on_from_the_pass_before() -> None:
    """In maps too, where each field has a state of its own."""
    for layer, x in (
        (DenseCaps(I, J, 16, 16, routing=InvertedAttention()), lower(I)),
        (ConvCaps(2, J, 16, 16, 3, routing=InvertedAttention()), lower(2, 5, 4)),
        (ClassCaps(2, J, 16, 16, routing=InvertedAttention()), lower(2, 3, 4)),
    ):
        drawn(layer)
        twice = layer(x, n_iters=2)
        torch.testing.assert_close(layer(x, state=layer(x)).pose, twice.pose)
        assert not torch.allclose(layer(x).pose, twice.pose)


def test_concurrent_and_sequential_passes() -> None:
    """Equal with one layer; with two they part from the second pass on."""
    x = lower(2, 5, 5)
    hidden, top = (
        drawn(ConvCaps(2, 4, 16, 16, 3, routing=InvertedAttention())),
        drawn(DenseCaps(4 * 9, J, 16, 16, routing=InvertedAttention())),
    )
    (alone,) = concurrent([hidden], x, 3)
    torch.testing.assert_close(alone.pose, hidden(x, n_iters=3).pose)
    one, two = concurrent([hidden, top], x, 1), concurrent([hidden, top], x, 2)
    torch.testing.assert_close(one[1].pose, top(hidden(x)).pose)
    torch.testing.assert_close(two[1].pose, top(hidden(x), n_iters=2).pose)  # from the lower layer's first pass
    assert not torch.allclose(two[1].pose, top(hidden(x, n_iters=2), n_iters=2).pose)


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
@pytest.mark.parametrize("routing", [SelfRouting(), InvertedAttention(2)])
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
    with pytest.raises(ValueError, match="d_in and d_out must be one square number, got 12 and 12"):
        DenseCaps(I, J, 12, 12, routing=InvertedAttention())
