"""Attention routing against numbers worked out by hand, a slow loop, and what it must equal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import Capsules, ClassCaps, DenseCaps, build
from torchcaps.layers import AttentionRouting
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import attention_routing

DOUBLE = torch.float64
B, I, J, D_IN, D_OUT = 2, 6, 3, 4, 5  # noqa: E741


def parameters(n_types: int = I) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {
        "weight": (I, J, D_IN, D_OUT),
        "attention_weight": (I, n_types, J, D_OUT),
        "activation_weight": (J, D_OUT, D_OUT),
        "vote_bias": (I, J, D_OUT),
        "activation_bias": (J, D_OUT),
    }
    return {name: torch.randn(shape, dtype=DOUBLE) / 2 for name, shape in shapes.items()}


def test_worked_by_hand() -> None:
    """Votes 1 and 2; logits 0 and ln 3 · 1: shares ¼ and ¾, sum 7/4, and tanh(4/7 of it) = tanh(1)."""
    got = attention_routing(
        torch.ones(1, 2, 1, dtype=DOUBLE),
        torch.tensor([1.0, 2.0], dtype=DOUBLE).view(2, 1, 1, 1),
        attention_weight=torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=DOUBLE).view(2, 2, 1, 1),
        activation_weight=torch.full((1, 1, 1), 4 / 7, dtype=DOUBLE),
        return_coupling=True,
    )
    torch.testing.assert_close(got.coupling[0, :, 0], torch.tensor([0.25, 0.75], dtype=DOUBLE))  # type: ignore[index]
    assert got.pose.item() == pytest.approx(0.761594, abs=1e-6)
    assert got.activation.item() == pytest.approx(0.761594, abs=1e-6)


@pytest.mark.parametrize("n_types", [I, 3, 1])
def test_agrees_with_the_slow_loop(n_types: int) -> None:
    """Where there are fewer types than capsules, capsules of a type stand side by side."""
    p, u = parameters(n_types), torch.randn(B, I, D_IN, dtype=DOUBLE)
    got = attention_routing(u, **p, return_coupling=True)
    for b in range(B):
        for j in range(J):
            votes = [u[b, i] @ p["weight"][i, j] + p["vote_bias"][i, j] for i in range(I)]
            logits = [
                sum(float(p["attention_weight"][i, k // (I // n_types), j] @ votes[k]) for k in range(I))
                for i in range(I)
            ]
            total = sum(math.exp(x) for x in logits)
            share = [math.exp(x) / total for x in logits]
            torch.testing.assert_close(got.coupling[b, :, j], torch.tensor(share, dtype=DOUBLE), rtol=1e-9, atol=1e-9)  # type: ignore[index]
            s = sum((share[i] * votes[i] for i in range(I)), start=torch.zeros(D_OUT, dtype=DOUBLE))
            v = [math.tanh(float(x)) for x in s @ p["activation_weight"][j] + p["activation_bias"][j]]
            torch.testing.assert_close(got.pose[b, j], torch.tensor(v, dtype=DOUBLE), rtol=1e-9, atol=1e-9)
            length = math.sqrt(sum(x * x for x in v) / D_OUT)
            assert got.activation[b, j].item() == pytest.approx(length, rel=1e-9)


def test_without_attention_votes_are_averaged() -> None:
    p, u = parameters(), torch.randn(B, I, D_IN, dtype=DOUBLE)
    p["attention_weight"] = torch.zeros_like(p["attention_weight"])
    p["activation_weight"] = torch.eye(D_OUT, dtype=DOUBLE).expand(J, -1, -1)
    p["vote_bias"] = p["activation_bias"] = None
    votes = torch.einsum("bid,ijde->bje", u, p["weight"])
    torch.testing.assert_close(attention_routing(u, **p).pose, (votes / I).tanh())


def test_the_order_of_capsules_does_not_matter() -> None:
    p, u = parameters(), torch.randn(B, I, D_IN, dtype=DOUBLE)
    lower, upper = torch.randperm(I), torch.randperm(J)
    moved = {
        "weight": p["weight"][lower][:, upper],
        "vote_bias": p["vote_bias"][lower][:, upper],
        "attention_weight": p["attention_weight"][lower][:, lower][:, :, upper],
        "activation_weight": p["activation_weight"][upper],
        "activation_bias": p["activation_bias"][upper],
    }
    got: Capsules = attention_routing(u[:, lower], **moved)
    torch.testing.assert_close(got.pose, attention_routing(u, **p).pose[:, upper])


def test_layers_and_networks_take_it() -> None:
    """Votes and their bias, attention of every lower capsule to every one, a matrix and a bias for each upper one."""
    n_in, n_out, d_in, d_out = 8, 10, 12, 16
    layer = DenseCaps(n_in, n_out, d_in, d_out, routing="attention")
    wanted = n_in * n_out * (d_in + 1) * d_out + n_in**2 * n_out * d_out + n_out * (d_out + 1) * d_out
    assert count_parameters(layer) == wanted
    model = build("capsnet_small", (1, 20, 20), J, channels=4, n_types=2, routing="attention")
    model(torch.rand(2, 1, 20, 20)).scores.sum().backward()


def test_class_capsules_attend_to_types() -> None:
    """Types count by the sum of their votes at all places."""
    layer = ClassCaps(2, J, D_IN, D_OUT, routing="attention").double()
    u = torch.randn(B, 2, 3, 1, D_IN, dtype=DOUBLE)
    repeated = {name: layer.parts()[name].repeat_interleave(3, dim=0) for name in layer.per_child}
    wanted = attention_routing(u.flatten(1, 3), **{**layer.parts(), **repeated})
    torch.testing.assert_close(layer(u).pose, wanted.pose)


@torch.no_grad()
def test_a_layer_says_how_far_its_poses_spread() -> None:
    torch.manual_seed(0)
    for n_in, scale in ((8, 1.0), (64, 0.2)):
        layer = DenseCaps(n_in, 10, 16, 16, routing=AttentionRouting(pose_scale=scale))
        pose: Tensor = layer(scale * torch.randn(64, n_in, 16)).pose
        assert 0.8 < float(pose.std()) / layer.pose_scale < 1.25


def test_what_does_not_fit_is_refused() -> None:
    p, u = parameters(), torch.randn(B, I, D_IN, dtype=DOUBLE)
    with pytest.raises(
        ValueError, match=r"attention_weight must be \[I=6, K, J, d_out\] with K that divides I, got K=4"
    ):
        attention_routing(u, **{**p, "attention_weight": p["attention_weight"][:, :4]})
    with pytest.raises(ValueError, match=r"activation_weight must be \[3, 5, 5\], got shape \[3, 5, 4\]"):
        attention_routing(u, **{**p, "activation_weight": p["activation_weight"][..., :4]})
    with pytest.raises(ValueError, match=r"vote_bias must be \[I, J, d_out\] with I=6"):
        attention_routing(u, **{**p, "vote_bias": p["vote_bias"][:4]})
    with pytest.raises(ValueError, match="pose_scale must be positive, got 0"):
        AttentionRouting(pose_scale=0)
