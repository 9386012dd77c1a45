"""EM routing against numbers worked out by hand and a slow loop written from the paper."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from tests.backends import backends
from torchcaps.ops import EM_SETTINGS, EMSettings, conv_em_routing, em_routing, em_routing_from_votes
from torchcaps.ops.em.settings import em_settings

DOUBLE = torch.float64
#: (map T H W, kernel, stride): oblong; with children that no parent sees; with many parents to a child;
#: a kernel that covers the map; a parent with one child.
GEOMETRIES = [
    ((2, 5, 4), (3, 2), (2, 1)),
    ((1, 6, 4), (3, 3), (2, 2)),
    ((2, 3, 5), (2, 3), (1, 1)),
    ((2, 2, 3), (2, 3), (1, 1)),
    ((1, 2, 3), (1, 1), (1, 2)),
]


def drawn(shape: tuple[int, int, int], kernel: tuple[int, int], n_out: int = 3) -> list[Tensor]:
    """Pose, activation, weight, β_u, β_a for one image."""
    types, height, width = shape
    return [
        torch.randn(1, types, height, width, 4, 4, dtype=DOUBLE),
        torch.rand(1, types, height, width, dtype=DOUBLE),
        torch.randn(types, *kernel, n_out, 4, 4, dtype=DOUBLE) / 2,
        torch.randn(n_out, dtype=DOUBLE),
        torch.randn(n_out, dtype=DOUBLE),
    ]


Place = tuple[int, int]
Child = tuple[int, int, int]
Parent = tuple[int, int, int]


def slow_em(
    tensors: list[Tensor], kernel: Place, stride: Place, n_iters: int, s: EMSettings
) -> tuple[dict[Parent, list[float]], dict[Parent, float], dict[tuple[Child, Parent], float]]:
    """Procedure 1 for one image in Python numbers, parent by parent and child by child.

    No tensor arithmetic, no exponential of a difference, no code of the library.
    """
    pose, activation, weight, beta_u, beta_a = (t.tolist() for t in tensors)
    pose, activation = pose[0], activation[0]
    types, height, width, n_out = len(pose), len(pose[0]), len(pose[0][0]), len(beta_u)
    rows, columns = (height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1
    parents = list(product(range(n_out), range(rows), range(columns)))
    children = list(product(range(types), range(height), range(width)))
    vote: dict[tuple[Child, Parent], list[float]] = {}
    for (j, y, x), (t, ky, kx) in product(parents, product(range(types), range(kernel[0]), range(kernel[1]))):
        child = (t, y * stride[0] + ky, x * stride[1] + kx)
        m, w = pose[t][child[1]][child[2]], weight[t][ky][kx][j]
        vote[child, (j, y, x)] = [sum(m[r][k] * w[k][c] for k in range(4)) for r in range(4) for c in range(4)]
    a_in = {c: activation[c[0]][c[1]][c[2]] for c in children}
    seen_from = {c: [p for p in parents if (c, p) in vote] for c in children}
    r = {(c, p): 1 / (len(seen_from[c]) if s.start == "parents" else n_out) for c, p in vote}
    mu = {p: [0.0] * 16 for p in parents}
    logit: dict[Parent, float] = {}
    sigma2: dict[Parent, list[float]] = {}
    for t in range(n_iters):
        if t > 0:  # E-step
            log_ap = {}
            for c, p in vote:
                log_p = sum(
                    -((v - m) ** 2) / (2 * q) - math.log(2 * math.pi * q) / 2
                    for v, m, q in zip(vote[c, p], mu[p], sigma2[p], strict=True)
                )
                log_ap[c, p] = -math.log1p(math.exp(-logit[p])) + log_p
            for c, p in vote:
                rivals = [q for q in seen_from[c] if s.compete == "all" or q[0] == p[0]]
                highest = max(log_ap[c, q] for q in rivals)
                total = sum(math.exp(log_ap[c, q] - highest) for q in rivals)
                r[c, p] = math.exp(log_ap[c, p] - highest) / total
        for p in parents:  # M-step
            mine = [c for c in children if (c, p) in vote]
            mass = sum(r[c, p] * a_in[c] for c in mine) + s.mass_floor
            mean = [sum(r[c, p] * a_in[c] * vote[c, p][h] for c in mine) / mass for h in range(16)]
            mu[p] = [(1 - s.damping) * mean[h] + s.damping * mu[p][h] for h in range(16)]
            sigma2[p] = [
                sum(r[c, p] * a_in[c] * (vote[c, p][h] - mu[p][h]) ** 2 for c in mine) / mass + s.variance_floor
                for h in range(16)
            ]
            data = mass * (len(parents) / len(children) if s.normalize else 1)
            cost = sum(
                (s.beta_u_scale * beta_u[p[0]] + s.cost_scale * math.log(math.sqrt(q))) * data for q in sigma2[p]
            )
            inverse_temperature = s.final_lambda * (1 - s.lambda_decay ** (t + 1))
            logit[p] = inverse_temperature * (s.beta_a_scale * beta_a[p[0]] - cost)
    return mu, {p: 1 / (1 + math.exp(-logit[p])) for p in parents}, r


@backends
@pytest.mark.parametrize(
    "options",
    [
        {"settings": "paper", "final_lambda": 1.0},
        {"settings": "released"},
        {"settings": "paper", "compete": "positions", "normalize": True, "damping": 0.3, "final_lambda": 1.0},
        {"settings": "released", "compete": "all", "beta_a_scale": 5.0, "variance_floor": 0.1, "mass_floor": 0.2},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize(("shape", "kernel", "stride"), GEOMETRIES)
@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_the_slow_loop_agrees(
    shape: tuple[int, int, int], kernel: Place, stride: Place, n_iters: int, options: dict[str, Any], backend: str
) -> None:
    tensors = drawn(shape, kernel)
    mu, a, r = slow_em(tensors, kernel, stride, n_iters, em_settings(**options, dense=False))
    options = options | {"n_iters": n_iters, "backend": backend}
    got = conv_em_routing(*tensors, stride=stride, return_coupling=True, **options)  # type: ignore[arg-type]
    assert got.coupling is not None
    for (j, y, x), expected in mu.items():
        torch.testing.assert_close(got.pose[0, j, y, x].flatten().tolist(), expected, rtol=1e-9, atol=1e-9)
        assert got.activation[0, j, y, x].item() == pytest.approx(a[j, y, x], rel=1e-9, abs=1e-12)
    for ((t, row, column), (j, y, x)), expected in r.items():
        n = (t * kernel[0] + row - y * stride[0]) * kernel[1] + column - x * stride[1]
        assert got.coupling[0, y, x, n, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def two_votes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two children, of activation 1 and ½, one parent; their votes are 0 and 3 in every component."""
    votes = torch.stack((torch.zeros(1, 4, 4), torch.full((1, 4, 4), 3.0))).unsqueeze(0).to(DOUBLE)
    return votes, torch.tensor([[1.0, 0.5]], dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)


def test_worked_by_hand_one_parent() -> None:
    # R = 1; mass 3/2; μ = (0·1 + 3·½) / (3/2) = 1; σ² = (1·1 + ½·4) / (3/2) = 2;
    # cost = 16 · ½ log 2 · 3/2 = 12 log 2; a = sigmoid(0.01 · 0.05 · (1 − 12 log 2)).
    got = em_routing_from_votes(*two_votes(), n_iters=1, variance_floor=1e-12, mass_floor=1e-12)
    torch.testing.assert_close(got.pose, torch.ones(1, 1, 4, 4, dtype=DOUBLE))
    assert got.activation.item() == pytest.approx(1 / (1 + math.exp(-0.0005 * (1 - 12 * math.log(2)))), rel=1e-9)


def test_worked_by_hand_released() -> None:
    # μ = 0.9 · 1; σ² = (0.81 + ½ · 2.1²) / (3/2) + 0.0005 = 2.0105; mass 1.5, β_u = 0:
    # logit = 0.0025 · 0.05 · (1.5 · (−16 log 2.0105) − 5000).
    got = em_routing_from_votes(*two_votes(), n_iters=1, settings="released", mass_floor=1e-12)
    torch.testing.assert_close(got.pose, torch.full((1, 1, 4, 4), 0.9, dtype=DOUBLE))
    logit = 0.000125 * (1.5 * (-16 * math.log(2.0105)) - 5000)
    assert got.activation.item() == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-9)


def test_a_vote_goes_to_the_parent_that_it_is_near() -> None:
    # Six children vote +1 or −1 for both parents alike; two more break the tie, one for each parent. After a
    # few iterations each parent stands for one of the groups.
    group = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=DOUBLE)
    votes = (group[:, None] + 0.01 * torch.randn(6, 2, dtype=DOUBLE))[..., None, None].expand(6, 2, 4, 4).clone()
    tie = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=DOUBLE)[..., None, None].expand(2, 2, 4, 4)
    votes = torch.cat((votes, tie))[None]
    betas = torch.zeros(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)
    got = em_routing_from_votes(
        votes, torch.ones(1, 8, dtype=DOUBLE), *betas, n_iters=10, variance_floor=0.01, return_coupling=True
    )
    assert got.coupling is not None
    assert bool((got.coupling[0, :3, 0] > 0.99).all()) and bool((got.coupling[0, 3:6, 1] > 0.99).all())
    torch.testing.assert_close(got.pose[0, :, 0, 0], torch.tensor([1.0, -1.0], dtype=DOUBLE), atol=0.1, rtol=0)


@backends
def test_parents_at_different_positions_compete(backend: str) -> None:
    """The mistake of most public codes: a softmax within each receptive field only."""
    tensors = drawn((2, 4, 5), (3, 3))
    got = conv_em_routing(*tensors, return_coupling=True, backend=backend)  # type: ignore[arg-type]
    assert got.coupling is not None
    total: dict[Child, float] = {}
    by_type: dict[tuple[Child, int], float] = {}
    for y, x, n, j in product(range(2), range(3), range(18), range(3)):
        child = (n // 9, y + n % 9 // 3, x + n % 3)
        share = got.coupling[0, y, x, n, j].item()
        total[child] = total.get(child, 0) + share
        by_type[child, j] = by_type.get((child, j), 0) + share
    assert all(share == pytest.approx(1, abs=1e-12) for share in total.values())
    positions = conv_em_routing(*tensors, compete="positions", return_coupling=True, backend=backend)  # type: ignore[arg-type]
    assert positions.coupling is not None
    share = sum(positions.coupling[0, y, x, (2 - y) * 3 + 2 - x, 0] for y, x in product(range(2), range(3)))
    assert float(share) == pytest.approx(1, abs=1e-12)  # of the child (0, 2, 2) among the positions of type 0


def test_convolution_over_the_whole_map_is_dense() -> None:
    pose, activation, weight, beta_u, beta_a = drawn((2, 3, 4), (3, 4))
    conv = conv_em_routing(pose, activation, weight, beta_u, beta_a, return_coupling=True)
    dense = em_routing(
        pose.flatten(1, 3), activation.flatten(1, 3), weight.flatten(0, 2), beta_u, beta_a, return_coupling=True
    )
    torch.testing.assert_close(conv.pose[:, :, 0, 0], dense.pose)
    torch.testing.assert_close(conv.activation[:, :, 0, 0], dense.activation)
    torch.testing.assert_close(conv.coupling[:, 0, 0], dense.coupling)  # type: ignore[index]


def test_votes_made_elsewhere() -> None:
    pose, activation, weight, beta_u, beta_a = drawn((5, 1, 1), (1, 1))
    pose, activation, weight = pose[:, :, 0, 0], activation[:, :, 0, 0], weight[:, 0, 0]
    votes = torch.einsum("birk,ijkc->bijrc", pose, weight)
    for n_iters in (1, 3):
        one = em_routing(pose, activation, weight, beta_u, beta_a, n_iters=n_iters, settings="released")
        two = em_routing_from_votes(votes, activation, beta_u, beta_a, n_iters=n_iters, settings="released")
        torch.testing.assert_close(one.pose, two.pose)
        torch.testing.assert_close(one.activation, two.activation)


def test_a_matrix_pose_is_a_vector_pose_with_a_block_diagonal_matrix() -> None:
    # Row r of M W is row r of M times W: as a 16-vector, M times the matrix with W in four blocks.
    pose, activation, weight, beta_u, beta_a = drawn((2, 3, 4), (2, 2))
    blocks = torch.einsum("rq,...kc->...rkqc", torch.eye(4, dtype=DOUBLE), weight).flatten(-4, -3).flatten(-2)
    one = conv_em_routing(pose, activation, weight, beta_u, beta_a)
    two = conv_em_routing(pose.flatten(-2), activation, blocks, beta_u, beta_a)
    torch.testing.assert_close(one.pose.flatten(-2), two.pose)
    torch.testing.assert_close(one.activation, two.activation)


def test_offset_is_added_to_the_votes() -> None:
    pose, activation, weight, beta_u, beta_a = drawn((5, 1, 1), (1, 1))
    pose, activation, weight = pose[:, :, 0, 0], activation[:, :, 0, 0], weight[:, 0, 0]
    offset = torch.randn(5, 4, 4, dtype=DOUBLE)
    votes = torch.einsum("birk,ijkc->bijrc", pose, weight) + offset[:, None]
    one = em_routing(pose, activation, weight, beta_u, beta_a, offset=offset)
    two = em_routing_from_votes(votes, activation, beta_u, beta_a)
    torch.testing.assert_close(one.pose, two.pose)


def test_votes_and_activations_may_be_of_two_dtypes() -> None:
    votes, activation, *betas = two_votes()
    got = em_routing_from_votes(votes.bfloat16(), activation.float(), *(beta.float() for beta in betas))
    assert got.pose.dtype == got.activation.dtype == torch.float32


@pytest.mark.parametrize("vector", [False, True])
def test_autocast_does_not_narrow_the_reference(vector: bool) -> None:
    pose, activation, weight, *betas = (x.float() for x in drawn((2, 3, 4), (2, 2)))
    if vector:
        pose, weight = pose.flatten(-2), torch.randn(2, 2, 2, 3, 16, 16)
    votes, own = torch.randn(2, 5, 3, 4, 4), torch.rand(2, 5)

    def routed() -> list[Tensor]:
        maps = conv_em_routing(pose, activation, weight, *betas, backend="reference", final_lambda=1.0)
        dense = em_routing_from_votes(votes, own, *betas, final_lambda=1.0)
        return [maps.pose, maps.activation, dense.pose, dense.activation]

    with torch.autocast("cpu", torch.bfloat16):
        inside = routed()
    torch.testing.assert_close(inside, routed(), rtol=0, atol=0)


def test_betas_are_not_rounded_to_the_precision_of_votes() -> None:
    rounded = torch.randn(2, 200, 6, 4, 4).bfloat16(), torch.rand(2, 200).bfloat16()
    betas = -2 - torch.rand(6) / 10, torch.rand(6) - 20
    got, coarse = (
        em_routing_from_votes(*rounded, *given, n_iters=2).activation
        for given in (betas, [beta.bfloat16() for beta in betas])
    )
    wide = em_routing_from_votes(*(x.float() for x in rounded), *betas, n_iters=2).activation
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, wide.bfloat16(), rtol=0, atol=0)
    assert (coarse != got).any()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # which torch itself calls for this
@pytest.mark.parametrize("backprop", ["full", "last"])
def test_forward_derivatives_are_those_of_backward(backprop: str) -> None:
    tensors = drawn((2, 3, 4), (2, 2))

    def pose(*tensors: Tensor) -> Tensor:
        return conv_em_routing(*tensors, backprop=backprop, backend="reference", settings="released").pose

    along, upstream = tuple(torch.randn_like(x) for x in tensors), torch.randn_like(pose(*tensors))
    _, forward = torch.func.jvp(pose, tuple(tensors), along)
    backward = torch.func.vjp(pose, *tensors)[1](upstream)
    wanted = sum((a * b).sum() for a, b in zip(along, backward, strict=True))
    torch.testing.assert_close((forward * upstream).sum(), wanted)


@backends
@pytest.mark.parametrize("settings", EM_SETTINGS)
@pytest.mark.parametrize(("shape", "kernel", "stride"), GEOMETRIES)
def test_derivative(settings: str, shape: tuple[int, int, int], kernel: Place, stride: Place, backend: str) -> None:
    tensors = [t.requires_grad_() for t in drawn(shape, kernel, n_out=2)]

    def function(*values: Tensor) -> tuple[Tensor, Tensor]:
        options: dict[str, Any] = {"stride": stride, "settings": settings, "variance_floor": 0.01, "backend": backend}
        routed = conv_em_routing(*values, **options)  # type: ignore[arg-type]
        return routed.pose, routed.activation

    assert gradcheck(function, tensors, fast_mode=True)


def test_last_gradient_takes_earlier_iterations_as_constants() -> None:
    tensors = [t.requires_grad_() for t in drawn((2, 3, 4), (2, 2))]
    options: dict[str, Any] = {"settings": "released", "compete": "all", "final_lambda": 0.001}
    got = conv_em_routing(*tensors, backprop="last", return_coupling=True, **options)  # type: ignore[arg-type]
    full = conv_em_routing(*tensors, return_coupling=True, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(got.pose, full.pose)
    assert got.coupling is not None and full.coupling is not None
    assert not got.coupling.requires_grad and full.coupling.requires_grad
    before = conv_em_routing(*tensors, n_iters=2, **options)  # type: ignore[arg-type]
    # Written out: r is a constant in the last mean, and so is the mean before it.
    pose, activation, weight = (t.detach().requires_grad_() for t in tensors[:3])
    fields = torch.stack([pose[:, :, y : y + 2, x : x + 2].flatten(1, 3) for y in range(2) for x in range(3)], dim=1)
    a = torch.stack([activation[:, :, y : y + 2, x : x + 2].flatten(1, 3) for y in range(2) for x in range(3)], dim=1)
    votes = torch.einsum("bpnrk,njkc->bpnjrc", fields, weight.flatten(0, 2))
    r = got.coupling.flatten(1, 2) * a[..., None]
    mean = torch.einsum("bpnj,bpnjrc->bpjrc", r, votes) / (r.sum(2) + 1e-7)[..., None, None]
    mu = 0.9 * mean + 0.1 * before.pose.detach().permute(0, 2, 3, 1, 4, 5).flatten(1, 2)
    expected = torch.autograd.grad(mu.square().sum(), (pose, activation, weight))
    for one, two in zip(torch.autograd.grad(got.pose.square().sum(), tensors[:3]), expected, strict=True):
        torch.testing.assert_close(one, two)


def last_mode_loop(votes: Tensor, activation: Tensor, beta_u: Tensor, beta_a: Tensor, constant: bool) -> list[Tensor]:
    """The paper's three iterations at λ = 1, of votes ``[B, I, J, D]``; what enters the last is a constant, or not."""
    r = torch.full(votes.shape[:3], 1 / votes.shape[2], dtype=DOUBLE)
    for t in range(3):
        r = r.detach() if constant and t == 2 else r
        share = (r * activation[:, :, None])[..., None]
        mass = share.sum(dim=1) + 1e-7
        mu = (share * votes).sum(dim=1) / mass
        squares = (votes - mu[:, None]) ** 2
        variance = (share * squares).sum(dim=1) / mass + 1e-6
        cost = ((beta_u[:, None] + variance.sqrt().log()) * mass).sum(dim=-1)
        a = 1 / (1 + torch.exp(-(1 - 0.95 ** (t + 1)) * (beta_a - cost)))
        density = torch.exp(-squares / (2 * variance[:, None])) / (2 * math.pi * variance[:, None]).sqrt()
        likely = a[:, None] * density.prod(dim=-1)
        r = likely / likely.sum(dim=2, keepdim=True)
    return [mu, a]


@pytest.mark.parametrize("backprop", ["full", "last"])
def test_dense_gradients_are_those_of_the_loop(backprop: str) -> None:
    pose, activation, weight, beta_u, beta_a = drawn((5, 1, 1), (1, 1))
    tensors = [pose[:, :, 0, 0], activation[:, :, 0, 0], weight[:, 0, 0], beta_u / 10, beta_a]
    pose, activation, weight, *betas = (x.requires_grad_() for x in tensors)
    votes = torch.einsum("birk,ijkc->bijrc", pose, weight)
    upstream = torch.randn(1, 3, 16, dtype=DOUBLE), torch.randn(1, 3, dtype=DOUBLE)

    def slope(mu: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((mu, a), tensors, upstream, retain_graph=True)

    options: dict[str, Any] = {"final_lambda": 1.0, "backprop": backprop}
    wanted, other = (
        slope(*last_mode_loop(votes.flatten(3), activation, *betas, constant=constant))
        for constant in (backprop == "last", backprop == "full")
    )
    for got in (
        em_routing(pose, activation, weight, *betas, **options),
        em_routing_from_votes(votes, activation, *betas, **options),
    ):
        torch.testing.assert_close(slope(got.pose.flatten(2), got.activation), wanted, rtol=1e-8, atol=1e-10)
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(wanted[:3], other[:3], strict=True))


def test_couplings_only_on_request() -> None:
    pose, activation, weight, *betas = drawn((2, 3, 4), (2, 2))
    assert conv_em_routing(pose, activation, weight, *betas, backend="reference").coupling is None
    dense = pose[:, :, 0, 0], activation[:, :, 0, 0], weight[:, 0, 0], *betas
    assert em_routing(*dense, backend="reference").coupling is None
    votes = torch.einsum("birk,ijkc->bijrc", dense[0], dense[2])
    assert em_routing_from_votes(votes, dense[1], *betas).coupling is None


@backends
@pytest.mark.parametrize("settings", EM_SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["off", "on", "huge and equal", "equal", "one child", "black"])
def test_extremes_are_finite(settings: str, dtype: torch.dtype, case: str, backend: str) -> None:
    shape, kernel, stride = ((1, 6, 4), (1, 1), (2, 2)) if case == "one child" else ((2, 6, 4), (3, 3), (2, 2))
    pose, activation, weight, beta_u, beta_a = (t.to(dtype) for t in drawn(shape, kernel))
    if case in ("off", "on"):
        activation.fill_(0.0 if case == "off" else 1.0)
    if "equal" in case:
        pose, weight = torch.ones_like(pose), torch.ones_like(weight)
    if "huge" in case:
        pose = pose * 1e6
    if case == "black":
        pose, beta_u, beta_a = torch.zeros_like(pose), torch.zeros_like(beta_u), torch.zeros_like(beta_a)
    tensors = [t.requires_grad_() for t in (pose, activation, weight, beta_u, beta_a)]
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            routed = conv_em_routing(*tensors, stride=stride, settings=settings, backend=backend)  # type: ignore[arg-type]
        for gradient in torch.autograd.grad(routed.pose.sum() + routed.activation.sum(), tensors, allow_unused=True):
            assert gradient is None or bool(gradient.isfinite().all())
        assert bool(routed.pose.isfinite().all()) and bool(routed.activation.isfinite().all())


def test_children_that_no_parent_sees_get_no_gradient() -> None:
    pose, *others = drawn((1, 6, 4), (3, 3))  # as 14×14 with stride 2 in the paper's net: 6 rows, 2 places see 5
    pose.requires_grad_()
    conv_em_routing(pose, *others, stride=2).pose.sum().backward()  # type: ignore[arg-type]
    assert pose.grad is not None and bool(pose.grad.isfinite().all())
    assert not pose.grad[:, :, 5].any() and not pose.grad[:, :, :, 3].any()
    assert bool(pose.grad[:, :, :5, :3].any())


def test_huge_logits_saturate_without_nan() -> None:
    pose, activation, weight, beta_u, beta_a = drawn((2, 3, 4), (2, 2))
    for sign in (-1, 1):
        routed = conv_em_routing(pose, activation, weight, beta_u, sign * 1e8 * beta_a.abs())
        torch.testing.assert_close(routed.activation, torch.full_like(routed.activation, max(0, sign)))
        assert bool(routed.pose.isfinite().all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pose": torch.zeros(1, 2, 3, 4, 4, 3)}, "weight must be .* with columns=3 as in pose"),
        ({"pose": torch.zeros(1, 2, 3, 4, 3, 3), "weight": torch.zeros(2, 2, 2, 3, 3, 3)}, "pose must end in 4×4"),
        ({"activation": torch.zeros(1, 2, 3, 5)}, "activation must be .* with W=4"),
        ({"activation": torch.full((1, 2, 3, 4), -0.5)}, "activation must hold probabilities 0 … 1, got -0.5 … -0.5"),
        ({"activation": torch.full((1, 2, 3, 4), 1.5)}, "activation must hold probabilities 0 … 1, got 1.5 … 1.5"),
        ({"beta_u": torch.zeros(2)}, r"beta_u must be \[J=3\]"),
        ({"beta_a": torch.zeros(3, 1)}, r"beta_a must be \[J=3\]"),
        ({"beta_a": 0.0}, "beta_a must be a torch.Tensor, got a float"),
        ({"weight": torch.zeros(2, 4, 2, 3, 4, 4)}, "kernel_size must fit into the map, got 4 where H=3"),
        ({"stride": 0}, "stride must be an integer of at least 1, got 0"),
        ({"stride": (1, 1, 1)}, r"stride must be two numbers, got \(1, 1, 1\)"),
        ({"n_iters": 0}, "n_iters must be an integer of at least 1"),
        ({"backprop": "some"}, "backprop must be one of full, last"),
        ({"backend": "fast"}, "backend must be one of"),
        ({"settings": "mine"}, "settings must be one of paper, released"),
        ({"compete": "none"}, "compete must be one of all, positions"),
        ({"variance_floor": 0.0}, "variance_floor must be positive"),
        ({"mass_floor": 5e-39}, r"mass_floor must be at least 1.18e-38, got 5e-39"),
        ({"damping": 1.0}, "damping must be at least 0 and below 1"),
        ({"final_lambda": math.nan}, "final_lambda must be a finite number, got nan"),
        ({"final_lambda": True}, "final_lambda must be a finite number, got True"),
        ({"final_lambda": torch.tensor(0.01)}, "final_lambda must be a finite number, got tensor"),
        ({"damping": "0.1"}, "damping must be a finite number, got '0.1'"),
        ({"normalize": "no"}, "normalize must be True or False, got 'no'"),
        ({"return_coupling": "no"}, "return_coupling must be True or False, got 'no'"),
        ({"lamda": 1.0}, "a setting of EM routing must be one of compete"),
        ({"offset": torch.zeros(2, 4, 4)}, "offset must be"),
        ({"offset": [0.0]}, "offset must be a torch.Tensor, got a list"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    names = ("pose", "activation", "weight", "beta_u", "beta_a")
    arguments: dict[str, Any] = dict(zip(names, (t.float() for t in drawn((2, 3, 4), (2, 2))), strict=True))
    with pytest.raises(ValueError, match=message):
        conv_em_routing(**(arguments | change))


@backends
def test_nothing_below_and_a_normalised_price(backend: str) -> None:
    below = torch.zeros(2, 0, 4, 4), torch.zeros(2, 0), torch.zeros(0, 3, 4, 4), torch.zeros(3), torch.zeros(3)
    plain, normalized = (em_routing(*below, normalize=normalize, backend=backend) for normalize in (False, True))
    torch.testing.assert_close(normalized.activation, plain.activation)


def test_a_list_is_a_stride_too() -> None:
    given = drawn((2, 6, 5), (2, 2))
    listed, pair = (conv_em_routing(*given, stride=stride) for stride in ([2, 1], (2, 1)))  # type: ignore[arg-type]
    assert torch.equal(listed.pose, pair.pose)


@backends
def test_any_kind_of_number_is_a_setting(backend: str) -> None:
    arguments = torch.rand(2, 3, 4, 4), torch.rand(2, 3), torch.rand(3, 4, 4, 4), torch.zeros(4), torch.zeros(4)
    one = em_routing(*arguments, damping=0.25, backend=backend).pose
    assert torch.equal(em_routing(*arguments, damping=Fraction(1, 4), backend=backend).pose, one)
    assert torch.equal(em_routing(*arguments, damping=np.float32(0.25), backend=backend).pose, one)


def test_votes_must_be_floating_point_whatever_activations_are() -> None:
    votes, betas = torch.ones(1, 3, 2, 4, 4, dtype=torch.int64), (torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"votes must be floating point, got torch\.int64"):
        em_routing_from_votes(votes, torch.rand(1, 3), *betas)


def test_dense_bad_input_speaks_of_dense_shapes() -> None:
    with pytest.raises(ValueError, match=r"activation must be \[B, I\] with I=5 as in pose, got shape \[2, 6\]"):
        em_routing(torch.zeros(2, 5, 4, 4), torch.zeros(2, 6), torch.zeros(5, 3, 4, 4), torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"offset must be \[6, 4, 4\], got shape \[4, 4\]"):
        em_routing(
            torch.zeros(1, 6, 4, 4), torch.zeros(1, 6), torch.zeros(6, 3, 4, 4), torch.zeros(3), torch.zeros(3),
            offset=torch.zeros(4, 4),
        )  # fmt: skip
    dense = torch.zeros(2, 5, 4, 4), torch.zeros(2, 5), torch.zeros(5, 3, 4, 4), torch.zeros(3), torch.zeros(3)
    em_routing(*dense, compete="positions", n_iters=1)
    with pytest.raises(ValueError, match="activation must hold probabilities"):
        em_routing(dense[0], dense[1] + 2, *dense[2:])
    with pytest.raises(ValueError, match="activation must hold probabilities"):
        em_routing_from_votes(torch.zeros(2, 5, 3, 4, 4), dense[1] - 2, *dense[3:])
    broken = dense[1].clone()
    broken[0] = torch.nan  # one of a batch says so itself, and leaves its neighbours alone
    assert em_routing(dense[0], broken, *dense[2:]).activation[1].isfinite().all()
    broken[1] = -1
    with pytest.raises(ValueError, match="activation must hold probabilities"):
        em_routing(dense[0], broken, *dense[2:])
    with pytest.raises(ValueError, match="compete must be 'all' in dense routing, got 'positions'"):
        em_routing(*dense, compete="positions")
    with pytest.raises(ValueError, match="pose must be a torch.Tensor, got a list"):
        em_routing([[1.0]], *dense[1:])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pose must end in 4×4"):
        em_routing(torch.zeros(2, 5, 3, 3), torch.zeros(2, 5), torch.zeros(5, 3, 3, 3), torch.zeros(3), torch.zeros(3))
    whole = torch.zeros(2, 5, 3, 4, 4, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match="votes must be floating point, got torch.int64"):
        em_routing_from_votes(*whole, torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match="votes must end in 4×4"):
        em_routing_from_votes(torch.zeros(2, 5, 3, 4, 3), torch.zeros(2, 5), torch.zeros(3), torch.zeros(3))


def test_named_settings_are_those_of_the_papers() -> None:
    """Literally: what papers.md lists of the paper and of its authors' released code."""
    paper = EMSettings("all", "parents", 0.01, 0.95, 0.0, 1e-6, 1e-7, 1.0, 1.0, 1.0, False)
    convolution = EMSettings("positions", "types", 0.01, 0.95, 0.1, 5e-4, 1e-7, 2.0, 2.8378770664093453, -5000.0, False)
    classes = EMSettings("all", "types", 0.0025, 0.95, 0.1, 5e-4, 1e-5, 2.0, 2.8378770664093453, -5000.0, False)
    assert em_settings("paper", dense=False) == em_settings("paper", dense=True) == paper
    assert (em_settings("released", dense=False), em_settings("released", dense=True)) == (convolution, classes)
