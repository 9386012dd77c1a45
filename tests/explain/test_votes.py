from __future__ import annotations

import pytest
import torch

from torchcaps.explain import Votes, class_votes, votes_for_classes
from torchcaps.models import CapsNet, build
from torchcaps.ops import em_routing_from_votes

SHAPE = (2, 24, 26)


def tiny(**options):
    return build("matrix_capsnet", SHAPE, 3, **{"A": 4, "B": 2, "C": 3, "D": 2} | options).eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{}, {"coordinates": None}, {"coordinates": "row", "pose": "vector"}, {"settings": "paper"}]
)
def test_routing_these_votes_gives_the_models_own_class_capsules(options):
    model = tiny(**options).double()
    model.classes.beta_a.uniform_(-1e-3, 1e-3)
    lower, routed = model(torch.rand(2, *SHAPE, dtype=torch.float64)).capsules[-2:]
    again = em_routing_from_votes(
        votes_for_classes(model, lower.pose),
        lower.activation.flatten(1),
        model.classes.beta_u,
        model.classes.beta_a,
        settings=model.classes.routing.settings,
    )
    torch.testing.assert_close(again.pose, routed.pose.flatten(2))
    torch.testing.assert_close(again.activation, routed.activation)


@torch.no_grad()
def test_each_iteration_is_that_of_a_shorter_routing():
    model, x = tiny(), torch.rand(*SHAPE)
    found = class_votes(model, x, 2, n_iters=4)
    below = model(x[None]).capsules[-2]
    assert found.votes.shape == (2 * 2 * 3, 16)
    torch.testing.assert_close(found.coupling[0], torch.full((12,), 1 / 3))
    for t in range(4):
        routed = model.classes(below, n_iters=t + 1, return_coupling=True)
        torch.testing.assert_close(found.coupling[t], routed.coupling[0, :, 2])
        torch.testing.assert_close(found.mean[t], routed.pose[0, 2].flatten())
        torch.testing.assert_close(found.scores[t], routed.activation[0, 2])
    assert (found.coupling[3] - found.coupling[0]).abs().max() > 0.01
    torch.testing.assert_close(found.scores[2], model(x[None]).scores[0, 2])


@torch.no_grad()
def test_means_and_variances_are_those_of_the_weighted_votes():
    found = class_votes(tiny(settings="paper"), torch.rand(*SHAPE), 0, n_iters=2)
    for t in range(2):
        weight = (found.coupling[t] * found.activation).double()
        mean = (weight[:, None] * found.votes).sum(dim=0) / weight.sum()
        variance = (weight[:, None] * (found.votes - mean) ** 2).sum(dim=0) / weight.sum()
        torch.testing.assert_close(found.mean[t].double(), mean, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.variance[t].double(), variance, atol=1e-5, rtol=1e-4)


def test_the_plane_is_fitted_to_the_votes_that_were_taken_in_the_end():
    corners = torch.tensor([[3.0, 4.0, 0.0], [-3.0, -4.0, 0.0], [0.0, 0.0, 100.0]])
    coupling = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1.0, 1.0, 0.0]])
    found = Votes(corners, torch.ones(3), coupling, torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2))
    torch.testing.assert_close(found.plane().axes[0], torch.tensor([0.6, 0.8, 0.0]))
    idle = found._replace(coupling=torch.ones(2, 3), activation=torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(idle.plane().axes[0], torch.tensor([0.6, 0.8, 0.0]))


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="label must be one of 0, 1, 2; got 3"):
        class_votes(tiny(), torch.rand(*SHAPE), 3)
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1"):
        class_votes(tiny(), torch.rand(*SHAPE), 0, 0)
    with pytest.raises(ValueError, match=r"image must be \[C, H, W\]"):
        class_votes(tiny(), torch.rand(1, *SHAPE), 0)
    for model in (tiny(routing="dynamic"), CapsNet((1, 22, 26), 3, channels=2, n_types=2, decoder=None)):
        with pytest.raises(
            ValueError,
            match="route to its classes by em in a ClassCaps, got a .*CapsNet, (by dynamic in|without) a ClassCaps",
        ):
            class_votes(model, torch.rand(*SHAPE), 0)
