"""Routing's statistics, held to loops written from their definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.utils import prune

from study.analysis import routing_statistics
from torchcaps.models import CapsNet, MatrixCapsNet, build

SHAPE = (1, 20, 18)


def tiny(**options):
    return build("capsnet", SHAPE, 3, **{"channels": 4, "n_types": 2, "decoder": None} | options).eval()


@torch.no_grad()
@pytest.mark.parametrize(("leaky", "brightness"), [(False, 1.0), (True, 1.0), (False, 0.1)])
def test_they_are_what_their_definition_says(leaky, brightness):
    model, x = tiny(leaky=leaky), brightness * torch.rand(3, *SHAPE)  # of dark images few capsules are active
    found = routing_statistics(model, x, (1, 4), batch_size=2)
    for row, r in enumerate((1, 4)):
        output = model(x, n_iters=r, return_coupling=True)
        lower, upper = output.capsules[-2:]
        coupling, pose = upper.coupling.double(), upper.pose.double()
        for b in range(3):
            entropy, active, dots, total = 0.0, 0.0, 0.0, 0.0
            activity = lower.activation[b].flatten().double()
            for i, u in enumerate(lower.pose[b].flatten(0, 2)):
                shares = coupling[b, i].tolist()
                for j, c in enumerate(shares):
                    vote = (u @ model.classes.weight[i, j]).double()
                    dots += c * float(vote @ pose[b, j] / (vote.norm() * pose[b, j].norm()))
                    total += c
                shares += [1 - sum(shares)] if leaky else []
                own = -sum(c * math.log(c) for c in shares) / math.log(4 if leaky else 3)
                entropy += own / coupling.shape[1]
                active += own * float(activity[i] / activity.sum())
            assert float(found.entropy[row, b]) == pytest.approx(entropy, abs=1e-4)
            assert float(found.active_entropy[row, b]) == pytest.approx(active, abs=1e-4)
            assert float(found.agreement[row, b]) == pytest.approx(dots / total, abs=1e-4)
        torch.testing.assert_close(found.scores[row], output.scores)


def test_at_first_nothing_is_decided_then_votes_that_agree_gain():
    model = tiny()
    found = routing_statistics(model, torch.rand(4, *SHAPE))
    assert found.n_iters.tolist() == list(range(1, 11))
    torch.testing.assert_close(found.entropy[0], torch.ones(4))
    assert (found.entropy[1:] < found.entropy[:-1]).all()
    assert (found.agreement[1:] > found.agreement[:-1]).all()


def test_pruned_layers_have_statistics_too():
    model, x = tiny(), torch.rand(2, *SHAPE)
    wanted = routing_statistics(model, x, (1, 3))
    prune.identity(model.classes, "weight")
    torch.testing.assert_close(routing_statistics(model, x, (1, 3)), wanted)


def test_what_does_not_fit_is_named():
    em = MatrixCapsNet((1, 24, 24), 3, A=4, B=2, C=2, D=2)
    with pytest.raises(ValueError, match="model must route to its classes by DenseCaps with dynamic routing"):
        routing_statistics(em, torch.rand(1, 1, 24, 24))
    with pytest.raises(ValueError, match="n_iters must be an integer of at least 1, got 0"):
        routing_statistics(tiny(), torch.rand(1, *SHAPE), (0, 1))
    with pytest.raises(ValueError, match="the number of classes must be an integer of at least 2, got 1"):
        routing_statistics(CapsNet(SHAPE, 1, channels=4, n_types=2), torch.rand(1, *SHAPE))
    with pytest.raises(ValueError, match="n_iters must hold at least one number, got none"):
        routing_statistics(tiny(), torch.rand(1, *SHAPE), ())
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        routing_statistics(tiny(), torch.rand(1, *SHAPE), batch_size=0)


def test_a_model_in_training_is_left_as_it_was() -> None:
    model, x = tiny(), torch.rand(3, *SHAPE)
    expected = routing_statistics(model, x, (1, 2))
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = routing_statistics(model, x, (1, 2))
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=0, atol=0)
    assert not any(part.requires_grad for part in found) and all(part.training for part in model.modules())
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
