"""Variational-Bayes routing against numbers worked out by hand, a slow loop, and its limits."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends import needs_cpu
from torchcaps import Capsules, ClassCaps, ConvCaps, DenseCaps, build
from torchcaps.layers import VariationalBayesRouting
from torchcaps.models import VariationalBayesCapsNet
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import conv_variational_bayes_routing, variational_bayes_routing
from torchcaps.ops import variational_bayes_routing_from_votes as route

DOUBLE = torch.float64
B, I, J, D = 2, 5, 3, 4  # noqa: E741


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    votes = torch.randn(B, I, J, D, dtype=DOUBLE)
    return votes, torch.rand(B, I, dtype=DOUBLE), torch.randn(J, dtype=DOUBLE), torch.randn(J, dtype=DOUBLE)


def psi(x: float) -> float:
    """Compute the digamma function by its recurrence and asymptotic series."""
    below = 0.0
    while x < 20:
        below, x = below + 1 / x, x + 1
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) + 1 / (240 * x**8) - below


@pytest.mark.parametrize(
    ("n_iters", "means", "logits", "coupling"),
    [
        (1, (1.0, 0.25), (-0.759359, -0.722440), ((0.5, 0.5), (0.5, 0.5))),
        (2, (0.946726, 0.397966), None, ((0.647826, 0.352174), (0.444273, 0.555727))),
        (3, (0.889779, 0.508225), (-0.771486, -0.673898), ((0.727352, 0.272648), (0.383661, 0.616339))),
    ],
)
def test_worked_by_hand(
    n_iters: int,
    means: tuple[float, ...],
    logits: tuple[float, ...] | None,
    coupling: tuple[tuple[float, ...], ...],
) -> None:
    # Pass 1, j = 1: R = 1, m = (1 + 3)/2/2 = 1, P = 1 + (0 + 4)/2 + 1 = 4, E ln π = ψ(2) - ψ(4) = -5/6.
    votes = torch.tensor([[[[1.0], [-1.0]], [[3.0], [2.0]]]], dtype=DOUBLE)
    zero = torch.zeros(2, dtype=DOUBLE)
    got = route(votes, torch.ones(1, 2, dtype=DOUBLE), zero, zero, n_iters=n_iters, return_coupling=True)
    near = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(got.pose[0, :, 0], torch.tensor(means, dtype=DOUBLE), **near)
    torch.testing.assert_close(got.coupling[0], torch.tensor(coupling, dtype=DOUBLE), **near)  # type: ignore[index]
    if logits is not None:
        torch.testing.assert_close(got.activation[0].logit(), torch.tensor(logits, dtype=DOUBLE), **near)


def slow(v: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Route one image by three passes as the authors print them, with their division by R_j."""
    r = torch.full((I, J), 1 / J, dtype=DOUBLE)
    m, p, upper = torch.zeros(J, D, dtype=DOUBLE), torch.zeros(J, D, dtype=DOUBLE), torch.zeros(J, dtype=DOUBLE)
    for t in range(3):
        mass = [sum(float(r[i, j] * a[i]) for i in range(I)) for j in range(J)]
        log_pi = [psi(1 + mass[j]) - psi(J + sum(mass)) for j in range(J)]
        rho = torch.zeros(I, J, dtype=DOUBLE)
        for j in range(J):
            mu = sum((r[i, j] * a[i] * v[i, j] for i in range(I)), torch.zeros(D, dtype=DOUBLE)) / mass[j]
            m[j] = mass[j] * mu / (1 + mass[j])
            p[j] = 1 + mass[j] / (1 + mass[j]) * mu**2
            for i in range(I):
                p[j] += r[i, j] * a[i] * (v[i, j] - mu) ** 2
            nu = D + 1 + mass[j]
            log_det = sum(psi((nu - d) / 2) + math.log(2) - math.log(p[j, d]) for d in range(D))
            for i in range(I):
                far = D / (1 + mass[j]) + nu * float(((v[i, j] - m[j]) ** 2 / p[j]).sum())
                rho[i, j] = math.exp(log_pi[j] + log_det / 2 - D * math.log(2 * math.pi) / 2 - far / 2)
            entropy = D * math.log(2 * math.pi * math.e) / 2 - log_det / 2
            upper[j] = 1 / (1 + math.exp(math.exp(log_pi[j]) * entropy + beta_u[j] - beta_a[j]))
        if t < 2:
            r = rho / rho.sum(dim=1, keepdim=True)
    return m, upper, r


def test_agrees_with_the_slow_loop() -> None:
    votes, a, beta_u, beta_a = case()
    got = route(votes, a, beta_u, beta_a, return_coupling=True)
    for b in range(B):
        wanted = slow(votes[b], a[b], beta_u, beta_a)
        for mine, printed in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine[b], printed, rtol=1e-9, atol=1e-9)  # type: ignore[index]


#: (map T H W, kernel, stride): oblong; with lower capsules that nothing sees; a kernel that covers the map.
GEOMETRIES = [((2, 5, 4), (3, 2), (2, 1)), ((1, 6, 4), (3, 3), (2, 2)), ((2, 2, 3), (2, 3), (1, 1))]


def drawn_map(shape: tuple[int, int, int], kernel: tuple[int, int], side: int = 2) -> list[Tensor]:
    """Pose, activation, weight, β_u and β_a of one image."""
    torch.manual_seed(0)
    sizes = [(1, *shape, side, side), (1, *shape), (shape[0], *kernel, J, side, side), (J,), (J,)]
    return [(torch.rand if k == 1 else torch.randn)(size, dtype=DOUBLE) for k, size in enumerate(sizes)]


@pytest.mark.parametrize(("shape", "kernel", "stride"), GEOMETRIES)
@pytest.mark.parametrize("n_iters", [1, 2, 3])
@pytest.mark.parametrize(
    ("backend", "side"), [("reference", 2), ("reference", 4), pytest.param("cpu", 4, marks=needs_cpu)]
)
def test_maps_agree_with_a_slow_loop(
    backend: str,
    side: int,
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    n_iters: int,
) -> None:
    """Upper capsule by upper capsule, and place by place, in plain numbers."""
    tensors = drawn_map(shape, kernel, side)
    got = conv_variational_bayes_routing(
        *tensors,  # type: ignore[arg-type]
        stride=stride,
        n_iters=n_iters,
        backend=backend,
        return_coupling=True,
    )
    pose, activation, weight, beta_u, beta_a = tensors
    rows, columns = ((n - k) // s + 1 for n, k, s in zip(shape[1:], kernel, stride, strict=True))
    uppers = list(product(range(J), range(rows), range(columns)))
    votes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}
    for (j, y, x), (t, ky, kx) in product(uppers, product(range(shape[0]), range(kernel[0]), range(kernel[1]))):
        lower = (t, y * stride[0] + ky, x * stride[1] + kx)
        votes[lower, (j, y, x)] = (pose[0][lower] @ weight[t, ky, kx, j]).flatten().tolist()
    r = dict.fromkeys(votes, 1 / J)
    mean: dict[tuple[int, ...], list[float]] = {}
    logit: dict[tuple[int, ...], float] = {}
    size = side**2
    for n in range(n_iters):
        mass = {u: sum(r[key] * float(activation[0][key[0]]) for key in votes if key[1] == u) for u in uppers}
        rho = {}
        for u in uppers:
            mine = [key for key in votes if key[1] == u]
            share = {key: r[key] * float(activation[0][key[0]]) for key in mine}
            mu = [sum(share[key] * votes[key][d] for key in mine) / mass[u] for d in range(size)]
            mean[u] = [mass[u] * mu[d] / (1 + mass[u]) for d in range(size)]
            scale = [
                1
                + sum(share[key] * (votes[key][d] - mu[d]) ** 2 for key in mine)
                + mass[u] / (1 + mass[u]) * mu[d] ** 2
                for d in range(size)
            ]
            log_pi = psi(1 + mass[u]) - psi(sum(1 + mass[j, u[1], u[2]] for j in range(J)))
            nu = size + 1 + mass[u]
            log_det = sum(psi((nu - d) / 2) + math.log(2) - math.log(scale[d]) for d in range(size))
            entropy = size * math.log(2 * math.pi * math.e) / 2 - log_det / 2
            logit[u] = float(beta_a[u[0]]) - (math.exp(log_pi) * entropy + float(beta_u[u[0]]))
            for key in mine:
                far = sum((votes[key][d] - mean[u][d]) ** 2 / scale[d] for d in range(size))
                rho[key] = math.exp(log_pi + log_det / 2 - (size / (1 + mass[u]) + nu * far) / 2)
        if n < n_iters - 1:
            total = {lower: sum(rho[key] for key in votes if key[0] == lower) for lower, _ in votes}
            r = {key: rho[key] / total[key[0]] for key in votes}
    for j, y, x in uppers:
        assert got.pose[0, j, y, x].flatten().tolist() == pytest.approx(mean[j, y, x], rel=1e-9, abs=1e-11)
        wanted = 1 / (1 + math.exp(-logit[j, y, x]))
        assert got.activation[0, j, y, x].item() == pytest.approx(wanted, rel=1e-9)
    assert got.coupling is not None
    for ((t, row, column), (j, y, x)), wanted in r.items():
        k = (t * kernel[0] + row - y * stride[0]) * kernel[1] + column - x * stride[1]
        assert got.coupling[0, y, x, k, j].item() == pytest.approx(wanted, rel=1e-9)


def test_a_kernel_that_covers_the_map_is_dense() -> None:
    pose, activation, weight, beta_u, beta_a = drawn_map((2, 3, 4), (3, 4))
    offset = torch.randn(2, 3, 4, 2, 2, dtype=DOUBLE)
    options = {"n_iters": 3, "return_coupling": True}
    conv = conv_variational_bayes_routing(pose, activation, weight, beta_u, beta_a, offset=offset, **options)  # type: ignore[arg-type]
    dense = variational_bayes_routing(
        pose.flatten(1, 3),
        activation.flatten(1, 3),
        weight.flatten(0, 2),
        beta_u,
        beta_a,
        offset=offset.flatten(0, 2),
        **options,  # type: ignore[arg-type]
    )
    torch.testing.assert_close(conv.pose[:, :, 0, 0], dense.pose)
    torch.testing.assert_close(conv.activation[:, :, 0, 0], dense.activation)
    torch.testing.assert_close(conv.coupling[:, 0, 0], dense.coupling)  # type: ignore[index]
    votes = torch.einsum("bird,ijdc->bijrc", pose.flatten(1, 3), weight.flatten(0, 2)) + offset.flatten(0, 2)[:, None]
    plain = route(votes.flatten(3), activation.flatten(1, 3), beta_u, beta_a, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(dense.pose.flatten(2), plain.pose)
    torch.testing.assert_close(dense.coupling, plain.coupling)


def test_normalizations_are_over_a_type_at_all_places() -> None:
    """Each of the batch, all places and (of poses) all numbers; the activation is what the logit became."""
    pose, activation, weight, beta_u, beta_a = drawn_map((2, 5, 4), (3, 2))
    many = torch.cat((pose, 2 * pose)), torch.cat((activation, activation / 2)), weight, beta_u, beta_a
    plain = conv_variational_bayes_routing(*many)
    norms = {name: torch.nn.BatchNorm1d(J, affine=False).double() for name in ("norm_pose", "norm_logit")}
    got = conv_variational_bayes_routing(*many, **norms)  # type: ignore[arg-type]
    for j in range(J):
        for mine, before in (
            (got.pose[:, j], plain.pose[:, j]),
            (got.activation[:, j].logit(), plain.activation[:, j].logit()),
        ):
            wanted = (before - before.mean()) / (before.var(correction=0) + 1e-5).sqrt()
            torch.testing.assert_close(mine, wanted)


def test_a_capsule_that_is_not_active_may_be_dropped() -> None:
    votes, a, beta_u, beta_a = case()
    a[:, 2] = 0
    kept = [0, 1, 3, 4]
    torch.testing.assert_close(route(votes, a, beta_u, beta_a), route(votes[:, kept], a[:, kept], beta_u, beta_a))


def test_equal_votes_are_shared_equally() -> None:
    votes, a, beta_u, beta_a = case()
    got = route(votes[:, :, :1].expand_as(votes), a, beta_u, beta_a, return_coupling=True)
    torch.testing.assert_close(got.coupling, torch.full((B, I, J), 1 / J, dtype=DOUBLE))


def test_one_lower_and_one_upper_capsule_halve_the_vote() -> None:
    votes = case()[0][:, :1, :1]
    zero = torch.zeros(1, dtype=DOUBLE)
    torch.testing.assert_close(route(votes, torch.ones(B, 1, dtype=DOUBLE), zero, zero).pose, votes[:, 0] / 2)


def test_of_many_lower_capsules_the_mean_is_that_of_em() -> None:
    votes, _, beta, _ = case()
    many = votes.repeat(1, 20_000, 1, 1)
    got = route(many, torch.ones(B, many.shape[1], dtype=DOUBLE), beta, beta, n_iters=1)
    torch.testing.assert_close(got.pose, votes.mean(dim=1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e20])
def test_without_activity_and_with_far_votes_all_is_finite(dtype: torch.dtype, scale: float) -> None:
    votes = (scale * case()[0]).to(dtype).requires_grad_()
    for active in (0.0, 1.0):
        a = torch.full((B, I), active, dtype=dtype, requires_grad=True)
        got = route(votes, a, torch.zeros(J, dtype=dtype), torch.zeros(J, dtype=dtype))
        assert active or not got.pose.detach().any()
        gradients = torch.autograd.grad(got.pose.sum() + got.activation.sum(), (votes, a))
        assert all(bool(x.isfinite().all()) for x in (*got[:2], *gradients))


def test_what_does_not_fit_is_refused() -> None:
    votes, a, beta_u, beta_a = case()
    with pytest.raises(ValueError, match=r"activation must be \[B, I\] with I=5 as in votes, got shape \[2, 4\]"):
        route(votes, a[:, :4], beta_u, beta_a)
    with pytest.raises(ValueError, match=r"beta_a must be \[3\], got shape \[2\]"):
        route(votes, a, beta_u, beta_a[:2])
    with pytest.raises(ValueError, match=r"activation must hold probabilities 0 … 1, got -1"):
        route(votes, -torch.ones_like(a), beta_u, beta_a)
    pose, activation, weight, _, _ = drawn_map((2, 5, 4), (3, 2))
    with pytest.raises(ValueError, match=r"offset must be \[2, 3, 2, 2, 2\], got shape \[2, 3, 2, 4\]"):
        conv_variational_bayes_routing(
            pose, activation, weight, beta_u, beta_a, offset=torch.zeros(2, 3, 2, 4, dtype=DOUBLE)
        )
    with pytest.raises(ValueError, match="kernel_size must fit into the map, got 6 where H=5"):
        conv_variational_bayes_routing(pose, activation, weight.repeat(1, 2, 1, 1, 1, 1), beta_u, beta_a)
    with pytest.raises(ValueError, match="d_in and d_out must be one square number for matrices, got 12 and 12; or"):
        DenseCaps(I, J, 12, 12, routing="variational_bayes")
    with pytest.raises(ValueError, match="n_iters must be"):
        route(votes, a, beta_u, beta_a, n_iters=0)


def test_large_votes_are_routed_in_their_own_units() -> None:
    """In float32, where the squares of their squares are beyond all numbers, against the loop in float64."""
    votes, a, beta_u, beta_a = case()
    votes = 1e14 * votes
    got = route(*(x.float() for x in (votes, a, beta_u, beta_a)), return_coupling=True)
    for b in range(B):
        mean, upper, coupling = (x.float() for x in slow(votes[b], a[b], beta_u, beta_a))
        torch.testing.assert_close(got.pose[b], mean, rtol=1e-4, atol=1e9)
        torch.testing.assert_close(got.activation[b], upper, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(got.coupling[b], coupling, rtol=1e-3, atol=1e-5)  # type: ignore[index]


@pytest.mark.parametrize("pose", ["matrix", "vector"])
def test_a_layer_says_how_far_its_poses_spread(pose: str) -> None:
    """With and without normalization, for a stack of layers."""
    torch.manual_seed(0)
    for normalize in (True, False):
        lower, scale = Capsules(torch.randn(8, 8, 9, 9, 16), torch.rand(8, 8, 9, 9)), 1.0
        for n_out in (16, 8):
            routing = VariationalBayesRouting(pose=pose, normalize=normalize, pose_scale=scale)
            layer = ConvCaps(lower.pose.shape[1], n_out, 16, 16, 3, routing=routing)
            lower, scale = layer(lower), layer.pose_scale
            assert 0.5 < float(lower.pose.detach().std()) / scale < 2


def test_coordinates_are_added_to_the_votes() -> None:
    lower = Capsules(torch.randn(2, 4, 3, 3, 16), torch.rand(2, 4, 3, 3))
    plain, added = (ClassCaps(4, J, 16, 16, routing="variational_bayes", coordinates=c) for c in (None, "column"))
    added.load_state_dict(plain.state_dict())
    assert not torch.allclose(plain.eval()(lower).pose, added.eval()(lower).pose, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "shape", "n_classes", "wanted"),
    [
        # The convolution's 2·25·64 and 2·64 of its normalization; primary 64·8·17 and 4·8; 8·9·16 and 16·9·16 matrices,
        # 16·5 for the classes, each of 4×4; two costs for each type.
        ({}, (2, 32, 32), 5, 3_200 + 128 + 8_704 + 32 + 18_432 + 32 + 36_864 + 32 + 1_280 + 10),
        ({"B": 16}, (2, 32, 32), 5, 95_882),
        ({"B": 16, "C": 32, "D": 32}, (2, 32, 32), 5, 244_682),
        ({"B": 16, "C": 32, "D": 32}, (3, 32, 32), 10, 248_852),
        ({"A": 32, "B": 32, "C": 32, "D": 32}, (2, 32, 32), 5, 316_810),
    ],
)
def test_networks_have_the_authors_parameters(
    sizes: dict[str, Any], shape: tuple[int, int, int], n_classes: int, wanted: int
) -> None:
    model = build("variational_bayes_capsnet", shape, n_classes, **sizes)
    assert isinstance(model, VariationalBayesCapsNet)
    assert count_parameters(model) == wanted
    assert model.map_shape[1:] == (4, 4)


def test_the_network_layer_by_layer() -> None:
    torch.manual_seed(0)
    model = VariationalBayesCapsNet((2, 23, 31), 4, A=5, B=3, C=4, D=2, d_pose=9).double().train()
    hidden: Any = model.hidden
    top: Any = model.classes
    x = torch.rand(3, 2, 23, 31, dtype=DOUBLE)
    primary, first, second, classes = model(x).capsules

    def normalized(y: Tensor, axes: tuple[int, ...]) -> Tensor:
        return (y - y.mean(axes, keepdim=True)) / (y.var(axes, correction=0, keepdim=True) + 1e-5).sqrt()

    standard = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), correction=0, keepdim=True)
    features = normalized(torch.nn.functional.conv2d(standard, model.conv.weight, stride=2), (0, 2, 3)).clamp_min(0)
    made = torch.einsum("bchw,kc->bkhw", features, model.primary.weight[:, :, 0, 0])
    poses = normalized(made[:, :27].reshape(3, 3, 9, *made.shape[2:]), (0, 2, 3, 4)).movedim(2, -1)
    torch.testing.assert_close(primary.pose.flatten(-2), poses)
    torch.testing.assert_close(primary.activation, normalized(made[:, 27:], (0, 2, 3)).sigmoid())
    for lower, layer, stride, upper in (
        (primary, hidden[0], 2, first),
        (first, hidden[1], 1, second),
    ):
        weight = layer.weight.unflatten(0, (-1, 3, 3))
        betas = layer.beta_u, layer.beta_a
        got = conv_variational_bayes_routing(lower.pose, lower.activation, weight, *betas, stride=stride)
        torch.testing.assert_close(upper.pose.flatten(-2), normalized(got.pose.flatten(-2), (0, 2, 3, 4)))
        torch.testing.assert_close(upper.activation, normalized(got.activation.logit(), (0, 2, 3)).sigmoid())
    # What the authors add: (k + 1)/(10 F) to the first two numbers of the right-hand column.
    height, width = second.activation.shape[2:]
    offset = torch.zeros(2, height, width, 3, 3, dtype=DOUBLE)
    offset[..., 0, 2] = (torch.arange(height)[:, None] + 1) / (10 * height)
    offset[..., 1, 2] = (torch.arange(width) + 1) / (10 * width)
    weight = top.weight.repeat_interleave(height * width, dim=0)
    betas = top.beta_u, top.beta_a
    lower = second.pose.flatten(1, 3), second.activation.flatten(1, 3)
    got = variational_bayes_routing(*lower, weight, *betas, offset=offset.flatten(0, 2))
    torch.testing.assert_close(classes.pose.flatten(-2), normalized(got.pose.flatten(-2), (0, 2)))
    torch.testing.assert_close(classes.activation, normalized(got.activation.logit(), (0,)).sigmoid())


def test_the_network_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="d_pose must be a square number, got 12"):
        VariationalBayesCapsNet(d_pose=12)
    with pytest.raises(ValueError, match=r"image_shape .* must be larger, got \(2, 12, 12\)"):
        VariationalBayesCapsNet((2, 12, 12))
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        VariationalBayesCapsNet(n_iters=0)
    with pytest.raises(ValueError, match="coordinates must be"):
        VariationalBayesCapsNet(coordinates="column")  # type: ignore[arg-type]
