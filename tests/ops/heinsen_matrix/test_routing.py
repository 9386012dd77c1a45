"""Heinsen's routing of 2019 against numbers worked out by hand, a slow loop, what it must equal; and its network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import Capsules, DenseCaps, build
from torchcaps.layers import HeinsenMatrixRouting
from torchcaps.models import HeinsenCapsNet
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import heinsen_matrix_routing
from torchcaps.ops.heinsen_matrix.routing import route

DOUBLE = torch.float64
B, I, J, SIDE = 2, 5, 3, 2  # noqa: E741


def exact(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=DOUBLE)


def case() -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {
        "pose": (B, I, SIDE, SIDE),
        "activation": (B, I),
        "weight": (I, J, SIDE, SIDE),
        "bias": (I, J, SIDE, SIDE),
        "beta_use": (I, J),
        "beta_ign": (I, J),
    }
    return {name: (torch.rand if name == "activation" else torch.randn)(s, dtype=DOUBLE) for name, s in shapes.items()}


@pytest.mark.parametrize(
    ("n_iters", "scores", "means", "variances", "coupling"),
    [
        (1, (-3 / 8, 5 / 8), (11 / 6, 4 / 3), (53 / 36, 29 / 9), ((0.5, 0.5), (0.5, 0.5), (0.5, 0.5))),
        (
            2,
            (-0.277601, 0.531545),
            (1.636373, 1.626622),
            (1.357849, 2.678007),
            ((0.629764, 0.370236), (0.384363, 0.615637), (0.471074, 0.528926)),
        ),
    ],
)
def test_worked_by_hand(
    n_iters: int,
    scores: tuple[float, ...],
    means: tuple[float, ...],
    variances: tuple[float, ...],
    coupling: tuple[tuple[float, ...], ...],
) -> None:
    # Pass 1, j = 1: use = (1/4, 3/8, 1/8), whose sum is 3/4; a = 1/4 - 3/8 + 1/16 - (0 + 3/16 + 1/8);
    # μ = (1/4 + 9/8 + 0)/(3/4) = 11/6.
    votes = exact([[[[1.0], [-1.0]], [[3.0], [2.0]], [[0.0], [4.0]]]])
    use, ign = exact([[1, 2], [-1, 1], [0.5, 1]]), exact([[0, 1], [0.5, 0], [1, 1]])
    mean, variance, logit, r = route(votes, exact([[0.5, 0.75, 0.25]]), use, ign, n_iters, eps=0.0)
    near: dict[str, Any] = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(logit[0], exact(scores), **near)
    torch.testing.assert_close(mean[0, :, 0], exact(means), **near)
    torch.testing.assert_close(variance[0, :, 0], exact(variances), **near)
    torch.testing.assert_close(r[0], exact(coupling), **near)


@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_agrees_with_the_slow_loop(n_iters: int) -> None:
    given = case()
    got = heinsen_matrix_routing(**given, n_iters=n_iters, return_coupling=True)
    pose, f, weight, bias, beta_use, beta_ign = given.values()
    for b in range(B):
        votes = [[(pose[b, i] @ weight[i, j] + bias[i, j]).flatten().tolist() for j in range(J)] for i in range(I)]
        r = [[1 / J] * J for _ in range(I)]
        score, mean, variance = [0.0] * J, [[0.0] * 4] * J, [[0.0] * 4] * J
        for t in range(n_iters):
            for i in range(I if t else 0):
                p = [
                    1
                    / (1 + math.exp(-score[j]))
                    * math.prod(
                        math.exp(-((v - m) ** 2) / (2 * s)) / math.sqrt(s)
                        for v, m, s in zip(votes[i][j], mean[j], variance[j], strict=True)
                    )
                    for j in range(J)
                ]
                r[i] = [x / sum(p) for x in p]
            for j in range(J):
                use = [float(f[b, i]) * r[i][j] for i in range(I)]
                score[j] = sum(
                    float(beta_use[i, j]) * use[i] - float(beta_ign[i, j]) * (float(f[b, i]) - use[i]) for i in range(I)
                )
                share = [u / (sum(use) + 1e-5) for u in use]
                mean[j] = [sum(share[i] * votes[i][j][d] for i in range(I)) for d in range(4)]
                variance[j] = [
                    sum(share[i] * (votes[i][j][d] - mean[j][d]) ** 2 for i in range(I)) + 1e-5 for d in range(4)
                ]
        torch.testing.assert_close(got.pose[b].flatten(1), exact(mean), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.activation[b], exact(score), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.coupling[b], exact(r), rtol=1e-9, atol=1e-9)  # type: ignore[index]


def test_vectors_are_matrices_of_one_row() -> None:
    given = case()
    rows = {**given, "pose": given["pose"][:, :, :1], "bias": given["bias"][:, :, :1]}
    vectors = {**given, "pose": given["pose"][:, :, 0], "bias": given["bias"][:, :, 0]}
    torch.testing.assert_close(heinsen_matrix_routing(**vectors).pose, heinsen_matrix_routing(**rows).pose[:, :, 0])


def test_capsules_that_are_not_there_may_be_dropped() -> None:
    """Of activation 0, and masked."""
    given = case()
    kept = [0, 1, 3, 4]
    few: dict[str, Any] = {name: x[:, kept] if name in ("pose", "activation") else x[kept] for name, x in given.items()}
    there = torch.ones(B, I, dtype=torch.bool)
    there[:, 2] = False
    wanted = heinsen_matrix_routing(**few)
    torch.testing.assert_close(heinsen_matrix_routing(**given, mask=there), wanted)
    torch.testing.assert_close(heinsen_matrix_routing(**{**given, "activation": given["activation"] * there}), wanted)


def test_without_costs_all_scores_are_0_and_shared_ones_are_repeated() -> None:
    given = case()
    zero = torch.zeros(I, J, dtype=DOUBLE)
    assert not heinsen_matrix_routing(**{**given, "beta_use": zero, "beta_ign": zero}).activation.any()
    names = ("weight", "bias", "beta_use", "beta_ign")
    shared = {**given, **{name: given[name][:1] for name in names}}
    repeated = {**given, **{name: given[name][:1].expand_as(given[name]) for name in names}}
    torch.testing.assert_close(heinsen_matrix_routing(**shared), heinsen_matrix_routing(**repeated))


@pytest.mark.parametrize("active", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e20])
def test_without_activity_and_with_far_votes_all_is_finite(scale: float, active: float) -> None:
    given: dict[str, Any] = {name: x.float() for name, x in case().items()}
    given["pose"] = (scale * given["pose"]).requires_grad_()
    given["activation"] = torch.full((B, I), active, requires_grad=True)
    got = heinsen_matrix_routing(**given)
    gradients = torch.autograd.grad(got.pose.sum() + got.activation.sum(), (given["pose"], given["activation"]))
    assert all(bool(x.isfinite().all()) for x in (*got[:2], *gradients))


def test_large_votes_are_routed_in_their_own_units() -> None:
    """In float32, with ε so small beside them that it may be 0, against float64."""
    given = {**case(), "bias": torch.zeros(I, J, SIDE, SIDE, dtype=DOUBLE)}
    large = {name: (1e14 * x if name == "pose" else x).float() for name, x in given.items()}
    thousand = {**given, "pose": 1e4 * given["pose"]}  # beside which ε is nothing either
    got, wanted = (heinsen_matrix_routing(**g, return_coupling=True) for g in (large, thousand))
    torch.testing.assert_close(got.coupling, wanted.coupling.float(), rtol=1e-3, atol=1e-5)  # type: ignore[union-attr]
    torch.testing.assert_close(got.pose, 1e10 * wanted.pose.float(), rtol=1e-3, atol=1e10)
    torch.testing.assert_close(got.activation, wanted.activation.float(), rtol=1e-4, atol=1e-4)


def test_layers_of_any_number_of_capsules() -> None:
    layer = DenseCaps(None, J, 16, 16, routing=HeinsenMatrixRouting(shared=True)).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    lower = Capsules(torch.randn(B, I, 16, dtype=DOUBLE), torch.rand(B, I, dtype=DOUBLE))
    there = torch.tensor([[True, True, True, False, False]]).expand(B, I)
    masked, few = layer(lower, mask=there), layer(Capsules(lower.pose[:, :3], lower.activation[:, :3]))
    torch.testing.assert_close(masked.pose, few.pose)
    hidden = DenseCaps(None, J, 16, 16, routing=HeinsenMatrixRouting(shared=True, logits=False)).double()
    hidden.load_state_dict(layer.state_dict())
    torch.testing.assert_close(hidden(lower).activation, layer(lower).activation.sigmoid())
    with pytest.raises(ValueError, match="n_in must be given for heinsen_matrix routing, got None"):
        DenseCaps(None, J, 16, 16, routing="heinsen_matrix")


def test_the_network_has_the_papers_parameters() -> None:
    model = build("heinsen_capsnet", (2, 96, 96), 5)
    assert isinstance(model, HeinsenCapsNet)
    assert model.primary_shape == (64, 9, 9)  # 5,184 primary capsules
    # Normalizations 2·4 and 5·2·64, convolutions 9·4·64 + 64 and 5·(9·64·64 + 64); 2·64 and 64·64 + 64 for
    # activations, 2·64 and 64·1024 + 1024 for poses.
    trunk = 8 + 640 + 2_368 + 184_640 + 128 + 4_160 + 128 + 66_560
    assert count_parameters(model) == trunk + 64 * (16 + 16 + 2) + 64 * 5 * (16 + 16 + 2) == 271_688


def test_small_images_are_padded() -> None:
    for shape, places in (((1, 29, 40), (1, 2)), ((1, 28, 40), (4, 5)), ((3, 28, 28), (4, 4))):
        assert HeinsenCapsNet(shape, 3, channels=2, n_parts=2).primary_shape == (2, *places)


def test_the_network_layer_by_layer() -> None:
    torch.manual_seed(0)
    model = HeinsenCapsNet((2, 39, 35), 4, channels=5, n_parts=3).double().eval()
    convs: Any = model.convs
    to_pose: Any = model.pose[1]
    for parameter in (*model.parts.parameters(), *model.classes.parameters()):
        torch.nn.init.normal_(parameter)
    x = torch.rand(2, 2, 39, 35, dtype=DOUBLE)
    primary, parts, classes = model(x, return_coupling=True).capsules
    rows = torch.linspace(-1, 1, 39, dtype=DOUBLE)[:, None].expand(39, 35)
    columns = torch.linspace(-1, 1, 35, dtype=DOUBLE).expand(39, 35)
    features = torch.cat((x, torch.stack((rows, columns)).expand(2, 2, 39, 35)), dim=1)
    for k, stride in enumerate((1, 2, 1, 2, 1, 2)):
        conv = convs[3 * k + 1]
        features = features / math.sqrt(1 + 1e-5)  # a new normalization, as evaluated
        features = torch.nn.functional.conv2d(features, conv.weight, conv.bias, stride=stride)
        features = features * features.sigmoid()
    features = features / math.sqrt(1 + 1e-5)
    poses = torch.einsum("bchw,kc->bkhw", features, to_pose.weight[:, :, 0, 0])
    poses = (poses + to_pose.bias[:, None, None]).view(2, 3, 4, 4, *features.shape[2:])
    torch.testing.assert_close(primary.pose, poses.permute(0, 1, 4, 5, 2, 3))
    below = heinsen_matrix_routing(primary.pose.flatten(1, 3), primary.activation.flatten(1), **model.parts.parts())
    torch.testing.assert_close(parts.pose, below.pose)
    torch.testing.assert_close(parts.activation, below.activation.sigmoid())
    top = heinsen_matrix_routing(below.pose, below.activation.sigmoid(), **model.classes.parts())
    torch.testing.assert_close(classes.activation, top.activation)


def test_what_does_not_fit_is_refused() -> None:
    given = case()
    with pytest.raises(ValueError, match=r"weight must be \[I=5 or 1, J, d=2, columns\], got shape \[4, 3, 2, 2\]"):
        heinsen_matrix_routing(**{**given, "weight": given["weight"][:4]})
    with pytest.raises(ValueError, match=r"beta_ign must be \[5, 3\] or \[1, 3\], got shape \[5, 2\]"):
        heinsen_matrix_routing(**{**given, "beta_ign": given["beta_ign"][:, :2]})
    with pytest.raises(ValueError, match=r"bias must be \[5, 3, 2, 2\] or \[1, 3, 2, 2\], got shape \[5, 3, 2\]"):
        heinsen_matrix_routing(**{**given, "bias": given["bias"][..., 0]})
    with pytest.raises(ValueError, match=r"mask must be \[B, I\] = \[2, 5\], got shape \[2, 4\]"):
        heinsen_matrix_routing(**given, mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="activation must hold probabilities 0 … 1, got 2"):
        heinsen_matrix_routing(**{**given, "activation": 2 + 0 * given["activation"]})
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        heinsen_matrix_routing(**given, n_iters=0)
    with pytest.raises(ValueError, match="d_in and d_out must be one square number for matrices, got 12 and 12; or"):
        DenseCaps(I, J, 12, 12, routing="heinsen_matrix")
    with pytest.raises(ValueError, match="n_classes must be an integer of at least 2, got 1"):
        HeinsenCapsNet(n_classes=1)
    with pytest.raises(ValueError, match=r"image_shape .* must be larger, got \(2, 28, 96\)"):
        HeinsenCapsNet((2, 28, 96), padding=0)
    with pytest.raises(ValueError, match="padding must be an integer of at least 0, got -1"):
        HeinsenCapsNet(padding=-1)
