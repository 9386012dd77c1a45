"""Heinsen's routing of 2022 against numbers worked out by hand, a slow loop that stores votes, and its properties."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import Capsules, DenseCaps
from torchcaps.layers import HeinsenVectorRouting
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import heinsen_vector_routing

DOUBLE = torch.float64
B, I, J, D_IN, D_OUT = 2, 5, 3, 4, 6  # noqa: E741
#: Parameters whose first axis is the lower vectors, and those whose first is the upper ones.
LOWER = ("activation_weight", "activation_bias", "similarity_weight", "similarity_bias", "beta_use", "beta_ign")
UPPER = ("vote_factor", "vote_bias", "prediction_factor", "prediction_bias")


def parameters(n_in: int = I, n_out: int = J, d_in: int = D_IN, d_out: int = D_OUT) -> dict[str, Any]:
    shapes = {
        "activation_weight": (n_in, d_in),
        "activation_bias": (n_in,),
        "vote_factor": (n_out, d_in),
        "vote_weight": (d_in, d_out),
        "vote_bias": (n_out, d_out),
        "prediction_weight": (d_out, d_in),
        "prediction_factor": (n_out, d_in),
        "prediction_bias": (n_out, d_in),
        "similarity_weight": (n_in, n_out),
        "similarity_bias": (n_in, n_out),
        "beta_use": (n_in, n_out),
        "beta_ign": (n_in, n_out),
    }
    torch.manual_seed(0)
    return {name: torch.randn(shape, dtype=DOUBLE) for name, shape in shapes.items()}


def test_worked_by_hand() -> None:
    """One vector of one number, x = 2, for two upper ones: votes 2 and 2·3 + 1; f = ½."""
    numbers = {
        "activation_weight": [[0.0]],
        "activation_bias": [0.0],
        "vote_factor": [[1.0], [3.0]],
        "vote_weight": [[1.0]],
        "vote_bias": [[0.0], [1.0]],
        "prediction_weight": [[1.0]],
        "prediction_factor": [[1.0], [1.0]],
        "prediction_bias": [[0.0], [0.0]],
        "similarity_weight": [[1.0, 1.0]],
        "similarity_bias": [[0.0, 0.0]],
        "beta_use": [[1.0, 2.0]],
        "beta_ign": [[0.0, 1.0]],
    }
    given: dict[str, Any] = {name: torch.tensor(value, dtype=DOUBLE) for name, value in numbers.items()}
    x = torch.tensor([[[2.0]]], dtype=DOUBLE)
    # φ = (1·¼, 2·¼ - 1·¼) = (¼, ¼), and o = (2/4, 7/4).
    one = heinsen_vector_routing(x, **given, n_iters=1)
    torch.testing.assert_close(one.pose[0, :, 0], torch.tensor([0.5, 1.75], dtype=DOUBLE))
    torch.testing.assert_close(one.activation, one.pose[..., 0])  # of poses of one number
    # x x̂ = (1, 7/2): R is σ(1) and σ(7/2) over their sum; φ = (R_1/2, R_2 - (1 - R_2)/2).
    two = heinsen_vector_routing(x, **given, return_coupling=True)
    near: dict[str, Any] = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(two.coupling[0, 0], torch.tensor([0.429593, 0.570407], dtype=DOUBLE), **near)  # type: ignore[index]
    torch.testing.assert_close(two.pose[0, :, 0], torch.tensor([0.429593, 2.489271], dtype=DOUBLE), **near)


def normalized(o: list[float]) -> list[float]:
    mean = sum(o) / len(o)
    variance = sum((x - mean) ** 2 for x in o) / len(o)
    return [(x - mean) / math.sqrt(variance + 1e-5) for x in o]


@pytest.mark.parametrize("d_out", [1, D_OUT])
@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_agrees_with_a_slow_loop_that_stores_votes(n_iters: int, d_out: int) -> None:
    p = parameters(d_out=d_out)
    x = torch.randn(B, I, D_IN, dtype=DOUBLE)
    got = heinsen_vector_routing(x, **p, n_iters=n_iters, return_coupling=True)
    for b in range(B):
        small = x[b] / math.sqrt(I)
        f = [
            1 / (1 + math.exp(-float(small[i] @ p["activation_weight"][i] + p["activation_bias"][i]))) for i in range(I)
        ]
        votes = [
            [(small[i] * p["vote_factor"][j]) @ p["vote_weight"] + p["vote_bias"][j] for j in range(J)]
            for i in range(I)
        ]
        r = [[1 / J] * J for _ in range(I)]
        o: list[list[float]] = []
        credit: list[list[float]] = []
        for t in range(n_iters):
            if t:
                upper = torch.tensor([each if d_out == 1 else normalized(each) for each in o], dtype=DOUBLE)
                predicted = upper @ p["prediction_weight"] * p["prediction_factor"] + p["prediction_bias"]
                for i in range(I):
                    near = x[b, i] @ predicted.T * p["similarity_weight"][i] + p["similarity_bias"][i]
                    share = 1 / (1 + (-near).exp())  # the softmax of a logarithm
                    r[i] = (share / share.sum()).tolist()
            credit = [
                [
                    float(p["beta_use"][i, j]) * f[i] * r[i][j] - float(p["beta_ign"][i, j]) * f[i] * (1 - r[i][j])
                    for j in range(J)
                ]
                for i in range(I)
            ]
            o = [[sum(credit[i][j] * float(votes[i][j][d]) for i in range(I)) for d in range(d_out)] for j in range(J)]
        pose = torch.tensor([each if d_out == 1 else normalized(each) for each in o], dtype=DOUBLE)
        score = torch.tensor([sum(credit[i][j] for i in range(I)) for j in range(J)], dtype=DOUBLE)
        torch.testing.assert_close(got.pose[b], pose, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.activation[b], pose[:, 0] if d_out == 1 else score, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.coupling[b], torch.tensor(r, dtype=DOUBLE), rtol=1e-9, atol=1e-9)  # type: ignore[index]


def test_the_order_of_capsules_does_not_matter() -> None:
    p, x = parameters(), torch.randn(B, I, D_IN, dtype=DOUBLE)
    lower, upper = torch.randperm(I), torch.randperm(J)
    moved: dict[str, Any] = {name: tensor[lower] if name in LOWER else tensor for name, tensor in p.items()}
    moved = {name: tensor[upper] if name in UPPER else tensor for name, tensor in moved.items()}
    moved = {
        name: tensor[:, upper] if name.startswith(("similarity", "beta")) else tensor for name, tensor in moved.items()
    }
    got, plain = heinsen_vector_routing(x[:, lower], **moved), heinsen_vector_routing(x, **p)
    torch.testing.assert_close(got.pose, plain.pose[:, upper])
    torch.testing.assert_close(got.activation, plain.activation[:, upper])


def test_masked_vectors_may_be_dropped() -> None:
    """They do not count in the √I either."""
    p, x = parameters(), torch.randn(B, I, D_IN, dtype=DOUBLE)
    kept = [0, 2, 3]
    few: dict[str, Any] = {name: tensor[kept] if name in LOWER else tensor for name, tensor in p.items()}
    there = torch.tensor([[True, False, True, True, False]]).expand(B, I)
    torch.testing.assert_close(heinsen_vector_routing(x, **p, mask=there), heinsen_vector_routing(x[:, kept], **few))
    assert bool(heinsen_vector_routing(x, **p, mask=~there & there).pose.isfinite().all())  # none is there


def test_votes_are_never_stored() -> None:
    """No tensor that waits for the backward pass is as large as the votes of one image."""
    sizes: dict[str, int] = {"n_in": 8, "n_out": 9, "d_in": 10, "d_out": 16}
    p: dict[str, Any] = {name: tensor.requires_grad_() for name, tensor in parameters(**sizes).items()}
    largest = 0

    def see(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        heinsen_vector_routing(torch.randn(1, 8, 10, dtype=DOUBLE), **p)
    assert 0 < largest < 8 * 9 * 16 / 2


@pytest.mark.parametrize("d_out", [1, D_OUT])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e20])
def test_far_vectors_give_finite_numbers(scale: float, d_out: int) -> None:
    p: dict[str, Any] = {name: tensor.float() for name, tensor in parameters(d_out=d_out).items()}
    x = (scale * torch.randn(B, I, D_IN)).requires_grad_()
    got = heinsen_vector_routing(x, **p, n_iters=3)
    (gradient,) = torch.autograd.grad(got.pose.sum() + got.activation.sum(), x)
    assert all(bool(t.isfinite().all()) for t in (*got[:2], gradient))


def test_layers_have_the_papers_parameters() -> None:
    """I(d_in + 1) + 4 I J + J (3 d_in + d_out) + 2 d_in d_out; shared, two linear maps in place of the costs."""
    n_in, n_out, d_in, d_out = 100, 10, 16, 8
    layer = DenseCaps(n_in, n_out, d_in, d_out, routing="heinsen_vector")
    wanted = n_in * (d_in + 1) + 4 * n_in * n_out + n_out * (3 * d_in + d_out) + 2 * d_in * d_out
    assert count_parameters(layer) == wanted == 6_516
    shared = DenseCaps(None, n_out, d_in, d_out, routing=HeinsenVectorRouting(shared=True))
    wanted = d_in + 1 + 2 * n_out + 2 * (d_in + 1) * n_out + n_out * (3 * d_in + d_out) + 2 * d_in * d_out
    assert count_parameters(shared) == wanted


def test_layers_of_any_number_of_vectors() -> None:
    layer = DenseCaps(None, J, D_IN, D_OUT, routing=HeinsenVectorRouting(shared=True)).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(B, I, D_IN, dtype=DOUBLE)
    there = torch.tensor([[True, True, True, False, False]]).expand(B, I)
    torch.testing.assert_close(layer(x, mask=there).pose, layer(x[:, :3]).pose)
    p = layer.parts()
    costs = {name: p[name](x) for name in ("beta_use", "beta_ign")}  # a linear function of each vector
    torch.testing.assert_close(layer(x).pose, heinsen_vector_routing(x, **{**p, **costs}).pose)
    assert layer(Capsules(x, x[..., 0])).activation.shape == (B, J)


def test_what_does_not_fit_is_refused() -> None:
    p, x = parameters(), torch.randn(B, I, D_IN, dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"beta_use must be \[5, 3\] or \[2, 5, 3\], got shape \[4, 3\]"):
        heinsen_vector_routing(x, **{**p, "beta_use": p["beta_use"][:4]})
    with pytest.raises(ValueError, match=r"activation_weight must be \[5, 4\] or \[1, 4\], got shape \[5, 3\]"):
        heinsen_vector_routing(x, **{**p, "activation_weight": p["activation_weight"][:, :3]})
    with pytest.raises(ValueError, match=r"vote_weight must be \[d_in, d_out\] with d_in=4 .*, got shape \[3, 6\]"):
        heinsen_vector_routing(x, **{**p, "vote_weight": p["vote_weight"][:3]})
    with pytest.raises(ValueError, match=r"mask must be \[B, I\] = \[2, 5\], got shape \[2, 4\]"):
        heinsen_vector_routing(x, **p, mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        heinsen_vector_routing(x, **p, n_iters=0)
    with pytest.raises(ValueError, match="n_out must be an integer of at least 2, got 1"):
        DenseCaps(I, 1, D_IN, D_OUT, routing="heinsen_vector")
    with pytest.raises(ValueError, match="n_in must be given for heinsen_vector routing, got None"):
        DenseCaps(None, J, D_IN, D_OUT, routing="heinsen_vector")
