"""Dynamic routing against numbers worked out by hand and a slow loop written from the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck

from tests.backends import backends
from torchcaps.ops import dense_votes, dynamic_routing, dynamic_routing_from_votes

DOUBLE = torch.float64


def votes_2x2() -> Tensor:
    """Two lower capsules that contradict each other about parent 0 and agree on parent 1."""
    return torch.tensor([[[[2.0, 0.0], [0.0, 2.0]], [[-2.0, 0.0], [0.0, 2.0]]]], dtype=DOUBLE)


def test_worked_by_hand_first_iteration() -> None:
    # c = 1/2 everywhere; s_0 = (1, 0) + (−1, 0) = 0; s_1 = (0, 1) + (0, 1) = (0, 2), of which 4/5 remain.
    got = dynamic_routing_from_votes(votes_2x2(), n_iters=1, return_coupling=True)
    torch.testing.assert_close(got.pose, torch.tensor([[[0.0, 0.0], [0.0, 0.8]]], dtype=DOUBLE))
    torch.testing.assert_close(got.activation, torch.tensor([[0.0, 0.8]], dtype=DOUBLE))
    assert got.coupling is not None
    torch.testing.assert_close(got.coupling, torch.full((1, 2, 2), 0.5, dtype=DOUBLE))


def test_worked_by_hand_second_iteration() -> None:
    # Agreement with parent 1 is 2 · 0.8 = 1.6, with parent 0 it is 0: c_i1 = 1 / (1 + e^−1.6).
    got = dynamic_routing_from_votes(votes_2x2(), n_iters=2, return_coupling=True)
    assert got.coupling is not None
    won = 0.8320183851339245
    torch.testing.assert_close(got.coupling, torch.tensor([[[1 - won, won]] * 2], dtype=DOUBLE))
    # s_1 = (0, 4 · 0.83201…) = (0, 3.328073540535698); its square, 11.07607…, over one more than itself.
    torch.testing.assert_close(got.pose[0, 1], torch.tensor([0.0, 0.9171916268373516], dtype=DOUBLE), rtol=1e-9, atol=0)


def test_worked_by_hand_leaky() -> None:
    # Two parents and the leak share one vote each: c = 1/3, s_1 = (0, 4/3), of which 16/25 remain.
    got = dynamic_routing_from_votes(votes_2x2(), n_iters=1, leaky=True, return_coupling=True)
    assert got.coupling is not None
    torch.testing.assert_close(got.coupling, torch.full((1, 2, 2), 1 / 3, dtype=DOUBLE))
    torch.testing.assert_close(got.pose[0, 1], torch.tensor([0.0, 0.64], dtype=DOUBLE))


def test_a_vote_is_the_pose_seen_through_the_matrix() -> None:
    # A quarter turn to the left and twice the size: (1, 2) becomes (−4, 2).
    weight = torch.tensor([[0.0, 2.0], [-2.0, 0.0]])[None, None]
    torch.testing.assert_close(dense_votes(torch.tensor([[[1.0, 2.0]]]), weight), torch.tensor([[[[-4.0, 2.0]]]]))


def slow_routing(
    u: list[list[float]],
    weight: list,
    n_iters: int,
    bias: list[list[float]] | None,
    initial_logits: list[list[float]] | None,
    leaky: bool,
) -> tuple[list[list[float]], list[list[float]]]:
    """Procedure 1 for one image, in Python numbers: no tensors, no code of the library."""
    n_in, n_out, d_out = len(u), len(weight[0]), len(weight[0][0][0])
    votes = [
        [[sum(u[i][d] * weight[i][j][d][e] for d in range(len(u[i]))) for e in range(d_out)] for j in range(n_out)]
        for i in range(n_in)
    ]
    b = [[initial_logits[i][j] if initial_logits else 0.0 for j in range(n_out)] for i in range(n_in)]
    v: list[list[float]] = []
    c: list[list[float]] = []
    for _ in range(n_iters):
        c = []
        for i in range(n_in):
            total = sum(math.exp(x) for x in b[i]) + (1.0 if leaky else 0.0)
            c.append([math.exp(x) / total for x in b[i]])
        v = []
        for j in range(n_out):
            s = [
                sum(c[i][j] * votes[i][j][e] for i in range(n_in)) + (bias[j][e] if bias else 0.0) for e in range(d_out)
            ]
            squared = sum(x * x for x in s)
            v.append([x * math.sqrt(squared) / (1 + squared) for x in s])
        for i in range(n_in):
            for j in range(n_out):
                b[i][j] += sum(votes[i][j][e] * v[j][e] for e in range(d_out))
    return v, c


def random_case(bias: bool, initial_logits: bool, seed: int = 0) -> dict[str, Tensor | None]:
    torch.manual_seed(seed)
    return {
        "u": torch.randn(2, 5, 3, dtype=DOUBLE),
        "weight": torch.randn(5, 4, 3, 6, dtype=DOUBLE),
        "bias": torch.randn(4, 6, dtype=DOUBLE) if bias else None,
        "initial_logits": torch.randn(5, 4, dtype=DOUBLE) if initial_logits else None,
    }


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize(("bias", "initial_logits"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("n_iters", [1, 2, 3, 5])
@backends
def test_agrees_with_the_slow_loop(backend: str, n_iters: int, bias: bool, initial_logits: bool, leaky: bool) -> None:
    case = random_case(bias, initial_logits)
    got = dynamic_routing(**case, n_iters=n_iters, leaky=leaky, backend=backend, return_coupling=True)  # type: ignore[arg-type]
    assert case["u"] is not None and got.coupling is not None
    for k in range(2):
        lists = {name: None if x is None else x.tolist() for name, x in case.items()}
        v, c = slow_routing(lists["u"][k], lists["weight"], n_iters, lists["bias"], lists["initial_logits"], leaky)  # type: ignore[index, arg-type]
        torch.testing.assert_close(got.pose[k], torch.tensor(v, dtype=DOUBLE), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got.coupling[k], torch.tensor(c, dtype=DOUBLE), rtol=1e-10, atol=1e-10)


def test_votes_and_poses_give_the_same() -> None:
    case = random_case(True, True)
    u, weight = case.pop("u"), case.pop("weight")
    assert u is not None and weight is not None
    one = dynamic_routing(u, weight, **case, backend="reference", return_coupling=True)  # type: ignore[arg-type]
    two = dynamic_routing_from_votes(dense_votes(u, weight), **case, return_coupling=True)  # type: ignore[arg-type]
    for a, b in zip(one, two, strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@backends
def test_full_gradient(backend: str, leaky: bool) -> None:
    case = random_case(True, True)
    inputs = tuple(x.requires_grad_() for x in case.values() if x is not None)

    def function(u: Tensor, weight: Tensor, bias: Tensor, initial_logits: Tensor) -> tuple[Tensor, ...]:
        got = dynamic_routing(
            u, weight, bias=bias, initial_logits=initial_logits, leaky=leaky, backend=backend, return_coupling=True
        )
        assert got.coupling is not None
        return got.pose, got.activation, got.coupling

    assert gradcheck(function, inputs, fast_mode=backend == "triton")  # its interpreter is slow


def last_mode_loop(
    u: Tensor, weight: Tensor, bias: Tensor, initial_logits: Tensor, leaky: bool, n_iters: int
) -> Tensor:
    """The definition of ``backprop="last"``, capsule by capsule: all that agreement adds is a constant."""
    poses = []
    for image in u:
        votes = [[image[i] @ weight[i, j] for j in range(weight.shape[1])] for i in range(len(image))]
        agreement = torch.zeros(len(image), weight.shape[1], dtype=u.dtype)
        v: list[Tensor] = []
        for t in range(n_iters):
            exponentials = (initial_logits + agreement).exp()
            c = exponentials / (exponentials.sum(dim=1, keepdim=True) + (1 if leaky else 0))
            v = []
            for j in range(weight.shape[1]):
                s = bias[j] + sum(c[i, j] * votes[i][j] for i in range(len(image)))
                v.append(s * s.norm() / (1 + s.norm() ** 2))
            if t < n_iters - 1:
                with torch.no_grad():
                    agreement = agreement + torch.stack(
                        [torch.stack([a @ b for a, b in zip(row, v, strict=True)]) for row in votes]
                    )
        poses.append(torch.stack(v))
    return torch.stack(poses)


@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("n_iters", [1, 2, 3])
@backends
def test_last_gradient(backend: str, n_iters: int, leaky: bool) -> None:
    case = random_case(True, True)
    u, weight, bias, initial_logits = inputs = [x.requires_grad_() for x in case.values() if x is not None]
    upstream = torch.randn(2, 4, 6, dtype=DOUBLE)
    options = {"leaky": leaky, "backprop": "last", "n_iters": n_iters, "backend": backend}
    pose = dynamic_routing(u, weight, bias=bias, initial_logits=initial_logits, **options).pose  # type: ignore[arg-type]
    got = torch.autograd.grad(pose, inputs, upstream)
    loop = last_mode_loop(u, weight, bias, initial_logits, leaky, n_iters)
    torch.testing.assert_close(pose, loop, rtol=1e-10, atol=1e-10)
    for name, a, b in zip(case, got, torch.autograd.grad(loop, inputs, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def test_last_gradient_of_votes_made_elsewhere() -> None:
    case = random_case(True, True)
    u, weight, bias, initial_logits = inputs = [x.requires_grad_() for x in case.values() if x is not None]
    upstream = torch.randn(2, 4, 6, dtype=DOUBLE)
    full, last = (
        dynamic_routing_from_votes(
            dense_votes(u, weight), bias=bias, initial_logits=initial_logits, backprop=backprop
        ).pose
        for backprop in ("full", "last")
    )
    got = torch.autograd.grad(last, inputs, upstream)
    wanted = torch.autograd.grad(last_mode_loop(u, weight, bias, initial_logits, False, 3), inputs, upstream)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    assert (torch.autograd.grad(full, weight, upstream)[0] - got[1]).abs().max() > 1e-3


def test_votes_made_elsewhere_are_routed_wide() -> None:
    votes = torch.randn(4, 200, 5, 16).bfloat16()
    wanted = dynamic_routing_from_votes(votes.float()).pose
    torch.testing.assert_close(dynamic_routing_from_votes(votes).pose, wanted.bfloat16(), rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        inside = dynamic_routing_from_votes(votes.float()).pose
    torch.testing.assert_close(inside, wanted, rtol=0, atol=0)


def test_the_reference_computes_half_precision_wide() -> None:
    u, weight = torch.randn(4, 200, 8).bfloat16(), (torch.randn(200, 5, 8, 16) / 13).bfloat16()
    got = dynamic_routing(u, weight, backend="reference").pose
    wanted = dynamic_routing(u.float(), weight.float(), backend="reference").pose.bfloat16()
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # which torch itself calls for this
@pytest.mark.parametrize("backprop", ["full", "last"])
def test_forward_derivatives_are_those_of_backward(backprop: str) -> None:
    case = random_case(False, False)
    u, weight = case["u"], case["weight"]
    assert u is not None and weight is not None

    def pose(u: Tensor, weight: Tensor) -> Tensor:
        return dynamic_routing(u, weight, backprop=backprop, backend="reference").pose

    along, upstream = (torch.randn_like(u), torch.randn_like(weight)), torch.randn_like(pose(u, weight))
    _, forward = torch.func.jvp(pose, (u, weight), along)
    backward = torch.func.vjp(pose, u, weight)[1](upstream)
    wanted = sum((a * b).sum() for a, b in zip(along, backward, strict=True))
    torch.testing.assert_close((forward * upstream).sum(), wanted)


@backends
def test_the_two_gradients_differ_and_the_values_do_not(backend: str) -> None:
    case = random_case(False, False)
    u, weight = case["u"], case["weight"]
    assert u is not None and weight is not None
    weight.requires_grad_()
    full, last = (dynamic_routing(u, weight, backprop=mode, backend=backend) for mode in ("full", "last"))
    torch.testing.assert_close(full.pose, last.pose, rtol=0, atol=0)
    one, two = (torch.autograd.grad(x.pose.sum(), weight)[0] for x in (full, last))
    assert (one - two).abs().max() > 1e-3


@backends
def test_three_iterations_are_three_passes(backend: str) -> None:
    """One pass couples evenly; each further pass is one more update: counted by the couplings."""
    case = random_case(False, False)
    couplings = [dynamic_routing(**case, n_iters=r, backend=backend, return_coupling=True).coupling for r in (1, 2, 3)]  # type: ignore[arg-type]
    assert couplings[0] is not None
    torch.testing.assert_close(couplings[0], torch.full((2, 5, 4), 0.25, dtype=DOUBLE))
    assert couplings[1] is not None and couplings[2] is not None
    assert (couplings[1] - couplings[0]).abs().max() > 0.01
    assert (couplings[2] - couplings[1]).abs().max() > 0.01


def test_couplings_only_on_request() -> None:
    case = random_case(False, False)
    assert dynamic_routing(**case).coupling is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("u_dtype", "wanted"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float32)])
def test_result_has_the_common_dtype(u_dtype: torch.dtype, wanted: torch.dtype) -> None:
    got = dynamic_routing(torch.randn(2, 5, 3, dtype=u_dtype), torch.randn(5, 4, 3, 6))
    assert got.pose.dtype == got.activation.dtype == wanted


@backends
def test_autocast_does_not_narrow_the_routing(backend: str) -> None:
    u, weight = torch.randn(2, 40, 8), torch.randn(40, 4, 8, 6)
    with torch.autocast("cpu", torch.bfloat16):
        inside = dynamic_routing(u, weight, backend=backend)
    torch.testing.assert_close(inside.pose, dynamic_routing(u, weight, backend=backend).pose, rtol=0, atol=0)


@backends
def test_an_integer_of_numpy_is_one(backend: str) -> None:
    u, weight = torch.randn(2, 5, 3), torch.randn(5, 4, 3, 6)
    numpys = dynamic_routing(u, weight, n_iters=np.int64(2), backend=backend)  # type: ignore[arg-type]
    torch.testing.assert_close(numpys.pose, dynamic_routing(u, weight, n_iters=2, backend=backend).pose, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_iters": 0}, "n_iters must be an integer of at least 1, got 0"),
        ({"n_iters": 2.5}, "n_iters must be an integer of at least 1, got 2.5"),
        ({"weight": torch.zeros(5, 4, 3, 0)}, "d_out must be at least 1, got 0"),
        ({"leaky": "no"}, "leaky must be True or False, got 'no'"),
        ({"return_coupling": "no"}, "return_coupling must be True or False, got 'no'"),
        ({"backprop": "none"}, "backprop must be one of full, last; got 'none'"),
        ({"backend": "cuda"}, "backend must be one of auto, reference, cpu, triton; got 'cuda'"),
        ({"u": torch.zeros(2, 5)}, r"u must be \[B, I, d_in\], got shape \[2, 5\]"),
        (
            {"weight": torch.zeros(6, 4, 3, 6)},
            r"weight must be \[I=5 or 1, J, d_in, d_out\] as u says, got shape \[6, 4, 3, 6\]",
        ),
        ({"bias": 0.0}, "bias must be a torch.Tensor, got a float"),
        ({"bias": torch.zeros(6)}, r"bias must be \[J, d_out\] = \[4, 6\], got shape \[6\]"),
        (
            {"u": torch.zeros(2, 5, 3, dtype=torch.int64), "weight": torch.zeros(5, 4, 3, 6, dtype=torch.int64)},
            "u and weight must be floating point, got torch.int64 and torch.int64",
        ),
        (
            {"initial_logits": torch.zeros(4, 5)},
            r"initial_logits must be \[I, J\] = \[5, 4\], \[1, J\] or \[B, I, J\], got shape \[4, 5\]",
        ),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"u": torch.zeros(2, 5, 3), "weight": torch.zeros(5, 4, 3, 6)}
    with pytest.raises(ValueError, match=message):
        dynamic_routing(**(arguments | change))  # type: ignore[arg-type]


@backends
@pytest.mark.parametrize(
    ("n_iters", "backprop", "initial_logits", "wanted"),
    [(1, "full", False, False), (3, "last", False, False), (3, "full", False, True), (3, "last", True, True)],
)
def test_couplings_have_a_gradient_where_they_depend(
    n_iters: int, backprop: str, initial_logits: bool, wanted: bool, backend: str
) -> None:
    u, weight, logits = torch.rand(2, 5, 3), torch.rand(5, 4, 3, 6, requires_grad=True), torch.rand(5, 4)
    got = dynamic_routing(
        u, weight, n_iters=n_iters, backprop=backprop, backend=backend, return_coupling=True,
        initial_logits=logits.requires_grad_() if initial_logits else None,
    )  # fmt: skip
    assert got.coupling is not None and got.coupling.requires_grad is wanted and got.pose.requires_grad


def test_votes_that_are_there_are_routed_by_the_reference() -> None:
    with pytest.raises(
        ValueError, match="backend, for votes that are there already, must be one of auto, reference; got"
    ):
        dynamic_routing_from_votes(torch.zeros(2, 3, 4, 5), backend="cpu")


def test_bad_votes() -> None:
    with pytest.raises(ValueError, match=r"votes must be \[B, I, J, d_out\], got shape \[2, 3, 4\]"):
        dynamic_routing_from_votes(torch.zeros(2, 3, 4))


@backends
def test_no_activation_is_above_one_by_rounding(backend: str) -> None:
    torch.manual_seed(0)
    u, weight = torch.randn(64, 20, 8) * 1e4, torch.randn(20, 10, 8, 16)
    activation = dynamic_routing(u, weight, backend=backend).activation
    assert activation.max() == 1
    F.binary_cross_entropy(activation, torch.zeros_like(activation))  # which refuses more
