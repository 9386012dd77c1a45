"""Self-attention routing against numbers worked out by hand, the Gram matrix of the paper, and a slow loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from torchcaps import DenseCaps
from torchcaps.layers import SelfAttentionRouting
from torchcaps.ops import exponential_squash, self_attention_routing
from torchcaps.ops.squash import exponential_squash_with_length

DOUBLE = torch.float64
B, I, J, D_IN, D_OUT = 2, 5, 3, 4, 6  # noqa: E741


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def identity_of_votes(votes: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Poses of 1 and weights, of which come these votes ``[I][J]`` of one number."""
    weight = torch.tensor(votes, dtype=DOUBLE)[:, :, None, None]
    return torch.ones(1, len(votes), 1, dtype=DOUBLE), weight


def test_worked_by_hand() -> None:
    # Votes for 0 are (1, 2), their sum 3: logits 1·3 and 2·3. Votes for 1 are (1, −1), their sum 0: logits 0.
    got = self_attention_routing(*identity_of_votes([[1.0, 1.0], [2.0, -1.0]]), return_coupling=True)
    c = [[0.9525741268224333, 0.04742587317756678], [0.9975273768433653, 0.0024726231566347743]]  # σ(±3), σ(±6)
    torch.testing.assert_close(got.coupling, torch.tensor([c], dtype=DOUBLE))
    # s_0 = 0.95257 + 2 · 0.99753 = 2.947629, s_1 = 0.04743 − 0.00247 = 0.044953; of these 1 − e^(−s).
    wanted = torch.tensor([[[0.947536], [0.043958]]], dtype=DOUBLE)
    torch.testing.assert_close(got.pose, wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(got.activation, wanted[..., 0], rtol=0, atol=1e-6)


def test_the_prior_bias_is_added_after_the_softmax() -> None:
    # All votes 0: c = ½ + B, and a pose of 0. With votes (1, 1) for both: c = ½ + B, s_0 = 1 + B_00 + B_10.
    bias = torch.tensor([[0.25, -0.5], [0.5, 0.0]], dtype=DOUBLE)
    got = self_attention_routing(*identity_of_votes([[1.0, 1.0]] * 2), prior_bias=bias, return_coupling=True)
    torch.testing.assert_close(got.coupling, 0.5 + bias[None])
    torch.testing.assert_close(got.pose, 1 - torch.tensor([[[-1.75], [-0.5]]], dtype=DOUBLE).exp())


@pytest.mark.parametrize("scale", ["upper", "lower"])
def test_agrees_with_the_gram_matrix_of_the_paper(scale: str) -> None:
    """The formula as printed, which makes I×I numbers for each upper capsule; gradients too."""
    u, weight, bias = drawn(B, I, D_IN), drawn(I, J, D_IN, D_OUT) / 2, drawn(I, J)
    inputs = [x.requires_grad_() for x in (u, weight, bias)]
    votes = torch.einsum("bid,ijde->bjie", u, weight)  # [B, J, I, d_out]
    gram = votes @ votes.mT  # [B, J, I, I]
    b = gram.sum(dim=-1) / math.sqrt(D_OUT if scale == "upper" else D_IN)  # [B, J, I]
    c = b.softmax(dim=1) + bias.T
    s = (votes * c[..., None]).sum(dim=2)
    n = s.norm(dim=-1, keepdim=True)
    wanted = (1 - 1 / n.exp()) * s / n
    got = self_attention_routing(u, weight, prior_bias=bias, scale=scale)
    torch.testing.assert_close(got.pose, wanted, rtol=1e-10, atol=1e-10)
    seed = torch.randn_like(wanted)
    ours, printed = (torch.autograd.grad(x, inputs, seed, retain_graph=True) for x in (got.pose, wanted))
    torch.testing.assert_close(ours, printed, rtol=1e-9, atol=1e-9)


def test_agrees_with_the_slow_loop() -> None:
    """In Python numbers: no tensors, no code of the library."""
    u, weight, bias = drawn(B, I, D_IN), drawn(I, J, D_IN, D_OUT) / 2, drawn(I, J)
    got = self_attention_routing(u, weight, prior_bias=bias, return_coupling=True)
    for x, pose, coupling in zip(u.tolist(), got.pose, got.coupling, strict=True):  # type: ignore[arg-type]
        w = weight.tolist()
        votes = [
            [[sum(x[i][d] * w[i][j][d][e] for d in range(D_IN)) for e in range(D_OUT)] for j in range(J)]
            for i in range(I)
        ]
        c = []
        for i in range(I):
            b = [
                sum(sum(votes[i][j][e] * votes[k][j][e] for e in range(D_OUT)) for k in range(I)) / math.sqrt(D_OUT)
                for j in range(J)
            ]
            highest = max(b)
            total = sum(math.exp(y - highest) for y in b)
            c.append([math.exp(b[j] - highest) / total + float(bias[i, j]) for j in range(J)])
        v = []
        for j in range(J):
            s = [sum(c[i][j] * votes[i][j][e] for i in range(I)) for e in range(D_OUT)]
            n = math.sqrt(sum(y * y for y in s))
            v.append([(1 - math.exp(-n)) * y / n for y in s])
        torch.testing.assert_close(pose, torch.tensor(v, dtype=DOUBLE), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(coupling, torch.tensor(c, dtype=DOUBLE), rtol=1e-10, atol=1e-10)


def test_reductions() -> None:
    """One lower capsule: parents compete by the length of its vote. One upper: the sum of the votes is squashed."""
    u, weight = drawn(B, 1, D_IN), drawn(1, J, D_IN, D_OUT)
    got = self_attention_routing(u, weight, return_coupling=True)
    squared = torch.einsum("bid,ijde->bije", u, weight).square().sum(dim=-1)
    torch.testing.assert_close(got.coupling, (squared / math.sqrt(D_OUT)).softmax(dim=2))
    u, weight = drawn(B, I, D_IN), drawn(I, 1, D_IN, D_OUT)
    wanted = exponential_squash(torch.einsum("bid,ijde->bje", u, weight))
    torch.testing.assert_close(self_attention_routing(u, weight).pose, wanted)


def test_the_squash_worked_by_hand() -> None:
    # Lengths 0.1, 0.5, 1, 2 become 0.0952, 0.3935, 0.6321, 0.8647.
    lengths = torch.tensor([0.1, 0.5, 1.0, 2.0], dtype=DOUBLE)
    s = lengths[:, None] * torch.tensor([0.6, -0.8], dtype=DOUBLE)
    wanted = torch.tensor([0.0952, 0.3935, 0.6321, 0.8647], dtype=DOUBLE)
    v, length = exponential_squash_with_length(s)
    torch.testing.assert_close(length, wanted, rtol=0, atol=5e-5)
    torch.testing.assert_close(v, wanted[:, None] * torch.tensor([0.6, -0.8], dtype=DOUBLE), rtol=0, atol=5e-5)


def test_the_squash_is_the_identity_near_zero_and_finite_everywhere() -> None:
    zero = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    torch.testing.assert_close(torch.autograd.functional.jacobian(exponential_squash, zero), torch.eye(3, dtype=DOUBLE))
    assert gradcheck(exponential_squash, drawn(4, 3).requires_grad_())
    tiny, huge = torch.tensor([[1e-30, 0.0]]), torch.tensor([[3e38, -3e38]])
    torch.testing.assert_close(exponential_squash(tiny), tiny, rtol=1e-6, atol=0)
    torch.testing.assert_close(exponential_squash(huge), torch.tensor([[0.5**0.5, -(0.5**0.5)]]))
    assert exponential_squash(torch.ones(2, 4, dtype=torch.bfloat16), dim=0).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="dim must be"):
        exponential_squash(torch.ones(3), dim=1)


def test_what_does_not_fit_is_refused() -> None:
    u, weight = torch.rand(B, I, D_IN), torch.rand(I, J, D_IN, D_OUT)
    with pytest.raises(ValueError, match=r"prior_bias must be \[I, J\] with I=5 as in weight, got shape \[3, 5\]"):
        self_attention_routing(u, weight, prior_bias=torch.rand(J, I))
    with pytest.raises(ValueError, match="scale must be one of upper, lower; got 'both'"):
        self_attention_routing(u, weight, scale="both")
    with pytest.raises(ValueError, match="scale must be one of upper, lower; got 'both'"):
        SelfAttentionRouting(scale="both")
    with pytest.raises(ValueError, match="u must be"):
        self_attention_routing(u.long(), weight)
    with pytest.raises(ValueError, match="n_iters must be None with self_attention routing, got 2"):
        DenseCaps(I, J, D_IN, D_OUT, routing="self_attention")(u, n_iters=2)


def test_large_votes_are_routed_as_in_float64() -> None:
    """In float32 their products are beyond all numbers."""
    torch.manual_seed(0)
    u, weight = 1e20 * torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(5, 3, 4, 6, dtype=torch.float64)
    votes = torch.einsum("bid,ijde->bije", u, weight)
    logits = torch.einsum("bije,bje->bij", votes, votes.sum(dim=1)) / 6**0.5
    s = torch.einsum("bij,bije->bje", logits.softmax(dim=2), votes)
    length = s.norm(dim=2, keepdim=True)
    wanted = torch.where(length > 0, s / length.clamp_min(1), 0)  # of length 1 − e^(−1e20)
    got = self_attention_routing(u.float(), weight.float(), return_coupling=True)
    torch.testing.assert_close(got.coupling, logits.softmax(dim=2).float())
    torch.testing.assert_close(got.pose, wanted.float(), rtol=1e-4, atol=1e-5)
