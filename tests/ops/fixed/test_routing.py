"""Couplings that no image changes, against numbers worked out by hand, slow loops, and what they must equal."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchcaps import DenseCaps, DynamicRouting, build, dynamic_routing
from torchcaps.layers import ClassCaps, ConvCaps, ElementwiseRouting, RandomRouting, Routing, UniformRouting
from torchcaps.models import CapsNet, MatrixCapsNet
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import elementwise_sum, fixed_routing

DOUBLE = torch.float64
B, I, J, D_IN, D_OUT = 2, 5, 3, 4, 6  # noqa: E741


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def test_even_couplings_worked_by_hand() -> None:
    # Votes for 0 are (1, 0) and (3, 0), for 1 (0, 2) and (0, 6): s = (2, 0), (0, 4), of which 4/5 and 16/17 remain.
    u = torch.tensor([[[1.0, 0.0], [3.0, 0.0]]], dtype=DOUBLE)
    weight = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [2.0, 0.0]]], dtype=DOUBLE).expand(2, 2, 2, 2)
    got = fixed_routing(u, weight, return_coupling=True)
    torch.testing.assert_close(got.pose, torch.tensor([[[0.8, 0.0], [0.0, 16 / 17]]], dtype=DOUBLE))
    torch.testing.assert_close(got.activation, torch.tensor([[0.8, 16 / 17]], dtype=DOUBLE))
    torch.testing.assert_close(got.coupling, torch.full((1, 2, 2), 0.5, dtype=DOUBLE))


def test_drawn_couplings_worked_by_hand() -> None:
    # s_0 = ¾ · 1 + ¼ · 3 = 3/2, s_1 = ¼ · 2 + ¾ · 6 = 5: squash gives 9/13 and 25/26.
    u = torch.tensor([[[1.0], [3.0]]], dtype=DOUBLE)
    weight = torch.tensor([1.0, 2.0], dtype=DOUBLE).view(1, 2, 1, 1)
    coupling = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=DOUBLE)
    for matrices in (weight, weight.expand(2, 2, 1, 1)):
        got = fixed_routing(u, matrices, coupling=coupling).pose
        torch.testing.assert_close(got, torch.tensor([[[9 / 13], [25 / 26]]], dtype=DOUBLE))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_agrees_with_the_slow_loop(shared: bool, given: bool) -> None:
    u, weight, bias = drawn(B, I, D_IN), drawn(1 if shared else I, J, D_IN, D_OUT), drawn(J, D_OUT)
    coupling = drawn(I, J) if given else None
    got = fixed_routing(u, weight, coupling=coupling, bias=bias)
    for b in range(B):
        for j in range(J):
            s = bias[j].clone()
            for i in range(I):
                c = 1 / J if coupling is None else float(coupling[i, j])
                s += c * (u[b, i] @ weight[0 if shared else i, j])
            n = math.sqrt(sum(float(x) ** 2 for x in s))
            torch.testing.assert_close(got.pose[b, j], s * n / (1 + n * n), rtol=1e-10, atol=1e-10)
            assert float(got.activation[b, j]) == pytest.approx(n * n / (1 + n * n), abs=1e-10)


def test_even_couplings_are_the_first_pass_of_dynamic_routing() -> None:
    """The layers start alike, too: a seed gives both the same values."""
    u, weight, bias = drawn(B, I, D_IN), drawn(I, J, D_IN, D_OUT), drawn(J, D_OUT)
    wanted = dynamic_routing(u, weight, bias=bias, n_iters=1, return_coupling=True)
    torch.testing.assert_close(fixed_routing(u, weight, bias=bias, return_coupling=True), wanted)
    made = []
    for routing in (UniformRouting(), DynamicRouting(1)):
        torch.manual_seed(0)
        made.append(ConvCaps(2, J, D_IN, D_OUT, 2, routing=routing).double())
    x = drawn(B, 2, 4, 5, D_IN)
    torch.testing.assert_close(made[0](x).pose, made[1](x).pose)
    assert made[0].pose_scale == made[1].pose_scale


def test_with_shared_matrices_children_count_through_their_sum_alone() -> None:
    u, weight = drawn(B, I, D_IN), drawn(1, J, D_IN, D_OUT)
    alone = u.sum(dim=1, keepdim=True)
    torch.testing.assert_close(fixed_routing(u, weight).pose, fixed_routing(alone, weight).pose)
    torch.testing.assert_close(fixed_routing(u, weight).pose, fixed_routing(u, weight.expand(I, -1, -1, -1)).pose)


def test_shared_matrices_are_1280_weights_of_capsnet() -> None:
    """Aff-CapsNet's DigitCaps have 10·8·16, where CapsNet's have 1152·10·8·16."""
    options = {"routing": "uniform", "bias": False, "decoder": None}
    model = build("capsnet", (1, 28, 28), 10, shared=True, **options)
    assert count_parameters(model) == 20_992 + 5_308_672 + 1_280
    assert count_parameters(build("capsnet", (1, 28, 28), 10, **options)) == 20_992 + 5_308_672 + 1_474_560


def test_random_couplings_are_saved_and_never_learned() -> None:
    layer, other = (DenseCaps(I, J, D_IN, D_OUT, routing=RandomRouting(0.5, 1.5)) for _ in range(2))
    x = torch.randn(B, I, D_IN)
    assert "coupling" not in dict(layer.named_parameters())
    assert not torch.equal(layer.coupling, other.coupling)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x).pose, other(x).pose)
    torch.testing.assert_close(layer.coupling.sum(dim=1), torch.ones(I))
    assert float(layer.coupling.max() / layer.coupling.min()) < 1.5**2 * 3  # r in 0.5 … 1.5, sums in 1.5 … 4.5
    before = layer.coupling.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.coupling, before)
    got = layer(x, return_coupling=True).coupling
    assert torch.equal(got[0], layer.coupling) and torch.equal(got[1], layer.coupling)


def test_random_couplings_of_a_type_are_those_of_all_its_places() -> None:
    layer = ClassCaps(2, J, D_IN, D_OUT, routing=RandomRouting(0.1, 2.0))
    got = layer(torch.randn(1, 2, 3, 4, D_IN), return_coupling=True).coupling[0]
    assert torch.equal(got[:12], layer.coupling[:1].expand(12, J))
    assert torch.equal(got[12:], layer.coupling[1:].expand(12, J))


def test_elementwise_votes_worked_by_hand() -> None:
    # w_11 = w_21 = 1; w_12 = (2, 0), w_22 = (−1, 1): s = (4, 1), and (2 − 3, 0 − 1) = (−1, −1).
    u = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]])
    weight = torch.tensor([[[1.0, 1.0], [2.0, 0.0]], [[1.0, 1.0], [-1.0, 1.0]]])
    torch.testing.assert_close(elementwise_sum(u, weight), torch.tensor([[[4.0, 1.0], [-1.0, -1.0]]]))
    layer = DenseCaps(2, 2, 2, 2, routing=ElementwiseRouting())
    layer.norm = nn.Identity()  # type: ignore[assignment]
    with torch.no_grad():
        layer.weight.copy_(weight)
    got = layer(u, return_coupling=True)
    torch.testing.assert_close(got.pose, torch.tensor([[[4.0, 1.0], [0.0, 0.0]]]))
    torch.testing.assert_close(got.activation, torch.tensor([[17**0.5, 0.0]]))
    assert torch.equal(got.coupling, torch.ones(1, 2, 2))


@torch.no_grad()
def test_elementwise_votes_are_normalized_over_batch_and_upper_capsules() -> None:
    """A loop over single numbers, in training."""
    layer, u = DenseCaps(I, J, D_IN, D_IN, routing=ElementwiseRouting()).double(), drawn(B, I, D_IN)
    layer.bias.copy_(drawn(D_IN))
    got = layer(u)
    for d in range(D_IN):
        s = [[sum(float(layer.weight[i, j, d] * u[b, i, d]) for i in range(I)) for j in range(J)] for b in range(B)]
        numbers = [x for row in s for x in row]
        mean = sum(numbers) / len(numbers)
        variance = sum((x - mean) ** 2 for x in numbers) / len(numbers)
        for b in range(B):
            for j in range(J):
                wanted = max(0.0, (s[b][j] - mean) / math.sqrt(variance + 1e-5) + float(layer.bias[d]))
                assert float(got.pose[b, j, d]) == pytest.approx(wanted, abs=1e-10)


def test_elementwise_votes_are_those_of_diagonal_matrices() -> None:
    u, factors = drawn(B, I, D_IN), drawn(I, J, D_IN)
    votes = torch.einsum("bid,ijde->bije", u, torch.diag_embed(factors))
    torch.testing.assert_close(elementwise_sum(u, factors), votes.sum(dim=1))


@pytest.mark.parametrize(
    "routing", [UniformRouting(), UniformRouting(shared=True), RandomRouting(), ElementwiseRouting()], ids=repr
)
def test_every_network_takes_them(routing: Routing) -> None:
    """And is compiled and exported as other routings are."""
    sizes = {"channels": 4, "n_types": 2, "kernel_size": 5, "d_primary": 6, "d_class": 6, "decoder": None}
    hidden = ({"n_types": 2, "d_out": 6},)
    for model, x in (
        (CapsNet((1, 20, 20), J, hidden=hidden, routing=routing, **sizes), torch.rand(2, 1, 20, 20)),
        (MatrixCapsNet((1, 24, 24), J, A=4, B=2, C=3, D=2, routing=routing), torch.rand(2, 1, 24, 24)),
    ):
        scores = model.eval()(x, return_coupling=True).scores
        assert scores.shape == (2, J) and bool(scores.isfinite().all())
        program = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(program(x).scores, model(x).scores)


def test_what_does_not_fit_is_refused() -> None:
    u, weight = torch.rand(B, I, D_IN), torch.rand(I, J, D_IN, D_OUT)
    with pytest.raises(ValueError, match=r"weight must be \[I=5 or 1, J, d_in, d_out\] as u says, got shape \[4, 3"):
        fixed_routing(u, weight[:4])
    with pytest.raises(ValueError, match=r"coupling must be \[5, 3\], got shape \[3, 5\]"):
        fixed_routing(u, weight, coupling=torch.rand(J, I))
    with pytest.raises(ValueError, match=r"bias must be \[3, 6\], got shape \[6\]"):
        fixed_routing(u, weight, bias=torch.rand(D_OUT))
    with pytest.raises(ValueError, match=r"weight must be \[I, J, D\] with I=5 as in u, got shape \[4, 3, 4\]"):
        elementwise_sum(u, torch.rand(4, J, D_IN))
    with pytest.raises(ValueError, match="low and high must be 0 < low ≤ high, got 0 and 1"):
        RandomRouting(0, 1)
    with pytest.raises(ValueError, match="shared must be True or False, got 1"):
        UniformRouting(shared=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight_std must be"):
        UniformRouting(weight_std=-1)
    with pytest.raises(ValueError, match="d_in and d_out must be equal for elementwise votes, got 4 and 6"):
        DenseCaps(I, J, D_IN, D_OUT, routing="elementwise")
    with pytest.raises(ValueError, match="n_iters must be None with uniform routing, got 2"):
        DenseCaps(I, J, D_IN, D_OUT, routing="uniform")(u, n_iters=2)
