"""Self-routing against numbers worked out by hand, a slow loop, and its limits; and the networks of its paper."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps import Capsules, ClassCaps, ConvCaps, DenseCaps, build
from torchcaps.layers import SelfRouting
from torchcaps.models import CapsNet, MatrixCapsNet, SelfRoutingResNet
from torchcaps.models.baselines import count_parameters
from torchcaps.models.resnet import BasicBlock
from torchcaps.ops import self_routing

DOUBLE = torch.float64
B, I, J, D_IN, D_OUT = 2, 5, 3, 4, 6  # noqa: E741


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE)


def case() -> dict[str, Tensor]:
    return {
        "u": drawn(B, I, D_IN),
        "activation": torch.rand(B, I, dtype=DOUBLE),
        "weight": drawn(I, J, D_IN, D_OUT),
        "route_weight": drawn(I, J, D_IN),
        "route_bias": drawn(I, J),
    }


def test_worked_by_hand() -> None:
    # R_1 u_1 = (ln 2, 0) and R_2 u_2 = (0, ln 3): c = (⅔, ⅓), (¼, ¾). a = (½ · ⅔ + ¼, ½ · ⅓ + ¾) / 1.5.
    u = torch.tensor([[[1.0], [2.0]]], dtype=DOUBLE)
    a = torch.tensor([[0.5, 1.0]], dtype=DOUBLE)
    route = torch.tensor([[[math.log(2)], [0.0]], [[0.0], [math.log(3) / 2]]], dtype=DOUBLE)
    weight = torch.tensor([[1.0, 2.0], [2.0, 0.0]], dtype=DOUBLE).view(2, 2, 1, 1)  # votes (1, 2), (4, 0)
    got = self_routing(u, a, weight, route_weight=route, return_coupling=True)
    torch.testing.assert_close(got.coupling, torch.tensor([[[2 / 3, 1 / 3], [1 / 4, 3 / 4]]], dtype=DOUBLE))
    torch.testing.assert_close(got.activation, torch.tensor([[7 / 18, 11 / 18]], dtype=DOUBLE))
    # (⅓ · 1 + ¼ · 4) / (7/12) and (1/6 · 2 + 0) / (11/12)
    torch.testing.assert_close(got.pose, torch.tensor([[[16 / 7], [4 / 11]]], dtype=DOUBLE))
    alone = self_routing(u, a, None, route_weight=route)
    torch.testing.assert_close(alone.activation, got.activation)
    torch.testing.assert_close(alone.pose, got.activation.unsqueeze(2))


def test_agrees_with_the_slow_loop() -> None:
    given = case()
    got = self_routing(**given, return_coupling=True)  # type: ignore[arg-type]
    for b in range(B):
        u, a = given["u"][b], given["activation"][b]
        share = torch.zeros(I, J, dtype=DOUBLE)
        for i in range(I):
            logit = [float(given["route_weight"][i, j] @ u[i] + given["route_bias"][i, j]) for j in range(J)]
            share[i] = torch.tensor([math.exp(x) for x in logit], dtype=DOUBLE)
            share[i] /= share[i].sum()
        for j in range(J):
            mass = sum(float(share[i, j] * a[i]) for i in range(I))
            pose = torch.zeros(D_OUT, dtype=DOUBLE)
            for i in range(I):
                pose += share[i, j] * a[i] * (u[i] @ given["weight"][i, j]) / mass
            torch.testing.assert_close(got.pose[b, j], pose, rtol=1e-10, atol=1e-10)
            assert float(got.activation[b, j]) == pytest.approx(mass / float(a.sum()), abs=1e-10)
        torch.testing.assert_close(got.coupling[b], share, rtol=1e-10, atol=1e-10)  # type: ignore[index]


def test_activations_sum_to_one_and_scale_does_not_matter() -> None:
    given = case()
    got = self_routing(**given)  # type: ignore[arg-type]
    torch.testing.assert_close(got.activation.sum(dim=1), torch.ones(B, dtype=DOUBLE))
    scaled = self_routing(**{**given, "activation": 3 * given["activation"]})  # type: ignore[arg-type]
    torch.testing.assert_close(scaled, got)


def test_a_capsule_that_is_not_active_may_be_dropped() -> None:
    given = case()
    given["activation"][:, 2] = 0
    kept = torch.tensor([0, 1, 3, 4])
    fewer = {name: x[:, kept] if name in ("u", "activation") else x[kept] for name, x in given.items()}
    torch.testing.assert_close(self_routing(**given), self_routing(**fewer))  # type: ignore[arg-type]


def test_where_nothing_is_active_all_count_alike() -> None:
    """The authors' code gives NaN there. Gradients are finite, and 0 for the activations."""
    given = case()
    black = {**given, "activation": torch.zeros(B, I, dtype=DOUBLE).requires_grad_()}
    got = self_routing(**black)  # type: ignore[arg-type]
    torch.testing.assert_close(got, self_routing(**{**given, "activation": torch.ones(B, I, dtype=DOUBLE)}))  # type: ignore[arg-type]
    (got.pose.sum() + got.activation.square().sum()).backward()
    assert not black["activation"].grad.any()  # type: ignore[union-attr]


def test_shares_that_vanish_by_rounding_leave_a_pose() -> None:
    """Logits of ±200 leave nothing in float32: 0/0, in the formula as printed. The pose is that in float64."""
    given = {name: x.float() for name, x in case().items()}
    given["route_weight"], given["route_bias"] = torch.zeros(I, J, D_IN), torch.tensor([[200.0, 0.0, -200.0]] * I)
    given["u"].requires_grad_()
    got = self_routing(**given)
    wanted = self_routing(**{name: x.detach().double() for name, x in given.items()})  # type: ignore[arg-type]
    torch.testing.assert_close(got.pose, wanted.pose.float(), rtol=1e-5, atol=1e-5)
    got.pose.sum().backward()
    assert bool(given["u"].grad.isfinite().all())  # type: ignore[union-attr]


def test_layers_share_equally_at_first_and_keep_the_spread_of_poses() -> None:
    torch.manual_seed(0)
    layer = DenseCaps(1000, 10, 8, 16, routing=SelfRouting())
    got = layer(Capsules(torch.randn(64, 1000, 8), torch.ones(64, 1000)))
    torch.testing.assert_close(got.activation, torch.full((64, 10), 0.1))
    assert float(got.pose.detach().std()) == pytest.approx(1, abs=0.05)
    assert layer.pose_scale == 1 and DenseCaps(6, 3, 4, 4, routing=SelfRouting(pose_scale=0.2)).pose_scale == 0.2


@pytest.mark.parametrize(("depth", "wanted"), [(0, 269_722), (1, 931_664), (2, 3_187_536)])
def test_networks_have_the_papers_parameters(depth: int, wanted: int) -> None:
    # Trunk 269,072. Depth 1: activations 9·64·32 and 64, poses 9·64·512 and 1024, 2048·10·(16 + 1).
    assert depth != 1 or wanted == 269_072 + 18_496 + 295_936 + 348_160
    model = build("self_routing_resnet", (3, 32, 32), 10, depth=depth)
    assert count_parameters(model) == wanted
    if depth:
        assert model.map_shape == (32, 8, 8) if depth == 1 else (32, 4, 4)


@pytest.mark.parametrize("depth", [1, 2])
def test_networks_layer_by_layer(depth: int) -> None:
    model = SelfRoutingResNet((2, 19, 13), J, depth=depth, n_types=2, d_pose=4, width=3).eval()
    nn.init.normal_(model.classes.route_weight)  # type: ignore[arg-type]
    x = torch.rand(2, 2, 19, 13)
    features = model.trunk(x)
    output = model(x, return_coupling=True)
    poses = model.pose(features).view(2, 2, 4, 5, 4).permute(0, 1, 3, 4, 2)
    capsules = Capsules(poses, model.activation(features))
    torch.testing.assert_close(output.capsules[0].pose, capsules.pose)
    if depth == 2:
        made = model.hidden(capsules)
        assert made.pose.shape == (2, 2, 3, 2, 4)
        # As evaluated, at first, the normalization divides by √(1 + ε).
        capsules = Capsules(made.pose / (1 + 1e-5) ** 0.5, made.activation)
        torch.testing.assert_close(output.capsules[1].pose, capsules.pose)
    top = model.classes(capsules)
    torch.testing.assert_close(output.scores, top.activation.log())
    torch.testing.assert_close(output.scores.exp().sum(dim=1), torch.ones(2))
    assert all(each.coupling is not None for each in output.capsules[1:])


def test_without_capsules_the_map_is_averaged() -> None:
    model = SelfRoutingResNet((1, 12, 12), J, depth=0, width=2).eval()
    x = torch.rand(2, 1, 12, 12)
    torch.testing.assert_close(model(x).scores, model.logits(model.trunk(x).mean(dim=(2, 3))))
    assert model(x).capsules == ()


def test_residual_blocks() -> None:
    """A padded shortcut has no parameters: it takes every other place, with channels of zeros on both sides."""
    block = BasicBlock(4, 8, 2, shortcut="pad").eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, 4, 6, 7)
    got = block(x)
    torch.testing.assert_close(got[:, 2:6], x[:, :, ::2, ::2])
    assert not got[:, :2].any() and not got[:, 6:].any()
    block = BasicBlock(4, 8, 2).eval()
    nn.init.zeros_(block.conv2.weight)
    assert block.shortcut is not None
    torch.testing.assert_close(block(x), F.relu(block.shortcut(x)))
    assert BasicBlock(4, 4).shortcut is None


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "CapsNet": lambda: CapsNet(
        (1, 24, 24), J, channels=4, n_types=2, kernel_size=5, hidden=({},), routing="self_routing", decoder=None
    ),
    "MatrixCapsNet": lambda: MatrixCapsNet((1, 24, 24), J, A=4, B=2, C=3, D=2, routing="self_routing"),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_librarys_networks_train_with_it(network: str) -> None:
    """A few steps on one batch, by cross-entropy of the scores' logarithms."""
    torch.manual_seed(0)
    model = NETWORKS[network]()
    x, labels = torch.rand(6, 1, 24, 24), torch.arange(6) % J
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        losses.append(F.nll_loss(model(x).scores.log(), labels))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert float(losses[-1].detach()) < 0.8 * float(losses[0].detach())


def test_what_does_not_fit_is_refused() -> None:
    given = case()
    with pytest.raises(ValueError, match=r"route_weight must be .* with d_in=4 as in u, got shape \[5, 3, 6\]"):
        self_routing(**{**given, "route_weight": drawn(I, J, D_OUT)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"activation must be \[B, I\] with I=5 as in u, got shape \[2, 4\]"):
        self_routing(**{**given, "activation": torch.rand(B, 4)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="d_out must be 1 for self_routing without poses, got 6"):
        DenseCaps(I, J, D_IN, D_OUT, routing=SelfRouting(poses=False))
    with pytest.raises(ValueError, match="poses must be True or False, got 1"):
        SelfRouting(poses=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capsules must be a Capsules, for self_routing routing needs activations"):
        DenseCaps(I, J, D_IN, D_OUT, routing="self_routing")(given["u"])
    with pytest.raises(ValueError, match="n_iters must be None with self_routing routing, got 2"):
        ConvCaps(2, J, D_IN, D_OUT, 1, routing="self_routing")(
            Capsules(torch.rand(1, 2, 2, 2, D_IN), torch.rand(1, 2, 2, 2)), n_iters=2
        )
    with pytest.raises(ValueError, match="coordinates must be None with self_routing routing, got 'column'"):
        ClassCaps(2, J, 16, 16, routing="self_routing", coordinates="column")
    with pytest.raises(ValueError, match="depth must be one of 0, 1, 2; got 3"):
        SelfRoutingResNet(depth=3)
