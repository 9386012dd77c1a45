"""Inverted attention against numbers worked out by hand, a slow loop, what it must equal; and its two schedules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchcaps import Capsules, ClassCaps, ConvCaps, DenseCaps, build
from torchcaps.layers import InvertedAttentionRouting, route_concurrently
from torchcaps.models import AttentionCapsNet, CapsNet, MatrixCapsNet
from torchcaps.models.baselines import count_parameters
from torchcaps.ops import inverted_attention_routing

DOUBLE = torch.float64
B, I, J = 2, 5, 3  # noqa: E741


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE)


def with_drawn_parameters(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.double()


def lower(*places: int, d: int = 16) -> Capsules:
    return Capsules(drawn(B, *places, d), torch.rand(B, *places, dtype=DOUBLE))


def votes_by_hand() -> tuple[Tensor, Tensor]:
    """Poses and weights of which come the votes (1, 0, 2), (0, 2, 1); (3, 1, −1), (1, 1, 4); (0, 1, 0), (2, −1, 0)."""
    votes = [[[1, 0, 2], [0, 2, 1]], [[3, 1, -1], [1, 1, 4]], [[0, 1, 0], [2, -1, 0]]]
    return torch.ones(1, 3, 1, dtype=DOUBLE), torch.tensor(votes, dtype=DOUBLE).unsqueeze(2)


def test_worked_by_hand() -> None:
    pose, weight = votes_by_hand()
    # Σ_i û_i1 / 2 = (2, 1, ½), of mean 7/6 and variance 7/18; of j = 2 (3/2, 1, 5/2).
    one = inverted_attention_routing(pose, weight, return_coupling=True)
    wanted = [[1.336289, -0.267258, -1.069031], [-0.267258, -1.069031, 1.336289]]
    torch.testing.assert_close(one.pose, torch.tensor([wanted], dtype=DOUBLE), rtol=0, atol=3e-5)  # by hand without ε
    torch.testing.assert_close(one.coupling, torch.full((1, 3, 2), 0.5, dtype=DOUBLE))
    two = inverted_attention_routing(pose, weight, n_iters=2, return_coupling=True)
    share = [[0.5, 0.5], [0.613703, 0.386297], [0.386297, 0.613703]]
    torch.testing.assert_close(two.coupling, torch.tensor([share], dtype=DOUBLE), rtol=0, atol=1e-5)
    wanted = [[1.345937, -0.297047, -1.048890], [0.258386, -1.333300, 1.074914]]
    torch.testing.assert_close(two.pose, torch.tensor([wanted], dtype=DOUBLE), rtol=0, atol=3e-5)


@pytest.mark.parametrize("side", [2, 4, 6])
@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_agrees_with_the_slow_loop(side: int, n_iters: int) -> None:
    """A loop over single capsules; matrices of any size."""
    d = side * side
    pose, weight = drawn(B, I, side, side), drawn(I, J, side, side)
    names = {"norm_weight": (d,), "norm_bias": (d,), "score_weight": (d,), "score_bias": ()}
    parameters = {name: drawn(*shape) for name, shape in names.items()}
    got = inverted_attention_routing(pose, weight, n_iters=n_iters, return_coupling=True, **parameters)
    for b in range(B):
        votes = [[pose[b, i] @ weight[i, j] for j in range(J)] for i in range(I)]
        upper: list[Tensor] | None = None
        share = torch.full((I, J), 1 / J, dtype=DOUBLE)
        for _ in range(n_iters):
            if upper is not None:
                for i in range(I):
                    share[i] = torch.stack([(votes[i][j] * upper[j]).sum() / side for j in range(J)]).exp()
                    share[i] /= share[i].sum()
            upper = []
            for j in range(J):
                s = sum((share[i, j] * votes[i][j] for i in range(I)), start=torch.zeros(side, side, dtype=DOUBLE))
                centred = s.flatten() - s.mean()
                normed = centred / (centred.square().mean() + 1e-5).sqrt()
                upper.append((normed * parameters["norm_weight"] + parameters["norm_bias"]).view(side, side))
        assert upper is not None
        torch.testing.assert_close(got.pose[b], torch.stack(upper), rtol=1e-9, atol=1e-9)
        logits = [p.flatten() @ parameters["score_weight"] + parameters["score_bias"] for p in upper]
        torch.testing.assert_close(got.activation[b], torch.stack(logits), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.coupling[b], share, rtol=1e-9, atol=1e-9)  # type: ignore[index]


def test_vectors_are_matrices_of_one_row() -> None:
    pose, weight = drawn(B, I, 4), drawn(I, J, 4, 6)
    vectors = inverted_attention_routing(pose, weight, n_iters=2).pose
    rows = inverted_attention_routing(pose[:, :, None], weight, n_iters=2).pose
    torch.testing.assert_close(vectors, rows[:, :, 0])


def test_reductions() -> None:
    """Votes that are the same for all upper capsules leave even shares; one pass forgets how large all votes are."""
    pose, weight = drawn(B, I, 4), drawn(I, 1, 4, 6).expand(I, J, 4, 6)
    got = inverted_attention_routing(pose, weight, n_iters=3, return_coupling=True)
    torch.testing.assert_close(got.coupling, torch.full((B, I, J), 1 / J, dtype=DOUBLE))
    weight = drawn(I, J, 4, 6)
    one, large = (inverted_attention_routing(pose, k * weight).pose for k in (1e3, 1e6))
    torch.testing.assert_close(one, large, rtol=1e-6, atol=1e-6)


def test_a_state_goes_on_from_the_pass_before() -> None:
    """In maps too, where each field has a state of its own."""
    for pose in ("matrix", "vector"):
        routing = InvertedAttentionRouting(pose=pose)
        for layer, x in (
            (DenseCaps(I, J, 16, 16, routing=routing), lower(I)),
            (ConvCaps(2, J, 16, 16, 3, routing=routing), lower(2, 5, 4)),
            (ClassCaps(2, J, 16, 16, routing=routing), lower(2, 3, 4)),
        ):
            with_drawn_parameters(layer)
            twice = layer(x, n_iters=2)
            torch.testing.assert_close(layer(x, state=layer(x)).pose, twice.pose)
            assert not torch.allclose(layer(x).pose, twice.pose)


def test_concurrent_and_sequential_passes() -> None:
    """Equal with one layer; with two they part from the second pass on."""
    x = lower(2, 5, 5)
    hidden = with_drawn_parameters(ConvCaps(2, 4, 16, 16, 3, routing=InvertedAttentionRouting()))
    top = with_drawn_parameters(DenseCaps(4 * 9, J, 16, 16, routing=InvertedAttentionRouting()))
    (alone,) = route_concurrently([hidden], x, 3)  # type: ignore[list-item]
    torch.testing.assert_close(alone.pose, hidden(x, n_iters=3).pose)
    one, two = (route_concurrently([hidden, top], x, n, return_coupling=True) for n in (1, 2))  # type: ignore[list-item]
    torch.testing.assert_close(one[1].pose, top(hidden(x)).pose)
    torch.testing.assert_close(two[1].pose, top(hidden(x), n_iters=2).pose)  # from the lower layer's first pass
    torch.testing.assert_close(two[1].coupling, top(hidden(x), n_iters=2, return_coupling=True).coupling)
    torch.testing.assert_close(one[0].coupling, torch.full_like(one[0].coupling, 1 / 4))  # type: ignore[arg-type]
    assert not torch.allclose(two[1].pose, top(hidden(x, n_iters=2), n_iters=2).pose)


@pytest.mark.parametrize(
    ("options", "n_classes", "wanted"),
    [
        # The trunk's 1,340,224; primary 128·512 and its normalization 2·16; twice 288·32·16 + 2·16; 800·10·16 + 2·16;
        # 16 + 1 of the score.
        ({}, 10, 1_340_224 + 65_536 + 32 + 2 * 147_488 + 128_032 + 17),
        ({"d_pose": 36, "dense": (20,)}, 100, 2_799_629),
        ({"trunk": "simple", "channels": 256}, 10, 561_297),
        ({"trunk": "simple", "channels": 128, "d_pose": 36, "dense": (20,)}, 100, 1_462_989),
    ],
)
def test_networks_have_the_papers_parameters(options: dict[str, object], n_classes: int, wanted: int) -> None:
    model = build("attention_capsnet", (3, 32, 32), n_classes, **options)
    assert count_parameters(model) == wanted
    assert model.map_shape == (32, 5, 5)


def test_networks_layer_by_layer() -> None:
    """The schedules share their weights; one pass is the same in both."""
    sizes = {"trunk": "simple", "channels": 4, "n_types": 2, "dense": (3,)}
    concurrent, sequential = (
        AttentionCapsNet((2, 19, 17), J, schedule=s, **sizes) for s in ("concurrent", "sequential")
    )
    sequential.load_state_dict(concurrent.state_dict())
    x = torch.rand(2, 2, 19, 17)
    torch.testing.assert_close(concurrent(x, n_iters=1).scores, sequential(x, n_iters=1).scores)
    assert not torch.allclose(concurrent(x).scores, sequential(x).scores)
    primary, *hidden, top = sequential(x, return_coupling=True).capsules
    again = primary
    for layer, found in zip([*sequential.layers, sequential.classes], [*hidden, top], strict=True):
        again = layer(again, n_iters=2)
        torch.testing.assert_close(found.pose, again.pose)
        assert found.coupling is not None
    torch.testing.assert_close(top.activation, again.activation)
    poses = primary.pose.flatten(-2)
    torch.testing.assert_close(poses.mean(dim=-1), torch.zeros(poses.shape[:-1]), atol=1e-5, rtol=0)
    # Hidden capsules have no scores: all of them are there.
    assert all(torch.equal(each.activation, torch.ones_like(each.activation)) for each in (primary, *hidden))


def test_the_librarys_networks_take_it() -> None:
    options = {"channels": 4, "n_types": 2, "d_primary": 16, "kernel_size": 5, "hidden": ({"n_types": 2, "d_out": 16},)}
    model = CapsNet((1, 20, 20), J, routing=InvertedAttentionRouting(2), decoder=None, **options)  # type: ignore[arg-type]
    model(torch.rand(2, 1, 20, 20)).scores.sum().backward()
    matrices = MatrixCapsNet((1, 24, 24), J, A=4, B=2, C=3, D=2, routing="inverted_attention")
    assert matrices(torch.rand(2, 1, 24, 24)).scores.shape == (2, J)


def test_what_does_not_fit_is_refused() -> None:
    pose, weight = torch.rand(B, I, 4), torch.rand(I, J, 4, 6)
    with pytest.raises(ValueError, match=r"norm_weight must be \[6\], got shape \[4\]"):
        inverted_attention_routing(pose, weight, norm_weight=torch.ones(4))
    with pytest.raises(ValueError, match=r"initial must be \[2, 3, 6\], got shape \[2, 3, 4\]"):
        inverted_attention_routing(pose, weight, initial=torch.ones(B, J, 4))
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        inverted_attention_routing(pose, weight, n_iters=0)
    with pytest.raises(ValueError, match="d_in and d_out must be one square number for matrices, got 12 and 12; or"):
        DenseCaps(I, J, 12, 12, routing="inverted_attention")
    with pytest.raises(ValueError, match="layers must hold at least one layer, got none"):
        route_concurrently([], lower(I), 2)
    with pytest.raises(ValueError, match="layers must have a routing that takes a state, got dynamic routing"):
        route_concurrently([DenseCaps(I, J, 16, 16)], lower(I), 2)
    with pytest.raises(ValueError, match="coordinates must be None with inverted_attention"):
        ClassCaps(2, J, 16, 16, routing="inverted_attention", coordinates="column")
    with pytest.raises(ValueError, match="d_pose must be a square number, got 12"):
        AttentionCapsNet(d_pose=12)
    with pytest.raises(ValueError, match="schedule must be one of concurrent, sequential; got 'both'"):
        AttentionCapsNet(schedule="both")
    with pytest.raises(ValueError, match=r"image_shape .* must be larger, got \(3, 8, 8\)"):
        AttentionCapsNet((3, 8, 8))


def test_large_votes_are_normalized_as_in_float64() -> None:
    """In float32 their variance is beyond all numbers."""
    pose, weight = drawn(B, I, 4), drawn(I, J, 4, 6)
    votes = 1e20 * torch.einsum("bid,ijde->bije", pose, weight)
    first = torch.nn.functional.layer_norm(votes.mean(dim=1), (6,))  # which forgets the scale, here 1/J instead of 1/I
    got = inverted_attention_routing((1e20 * pose).float(), weight.float(), return_coupling=True)
    torch.testing.assert_close(got.pose, first.float(), rtol=1e-4, atol=1e-5)
    share = (torch.einsum("bijd,bjd->bij", votes, first) / 6**0.5).softmax(dim=2)
    second = torch.nn.functional.layer_norm(torch.einsum("bij,bijd->bjd", share, votes), (6,))
    got = inverted_attention_routing((1e20 * pose).float(), weight.float(), n_iters=2, return_coupling=True)
    torch.testing.assert_close(got.coupling, share.float())
    torch.testing.assert_close(got.pose, second.float(), rtol=1e-4, atol=1e-5)
