from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from torchcaps.explain import OFFSETS, dimension_strengths, perturb, reconstruct
from torchcaps.explain.models import decoder_of
from torchcaps.layers import Decoder
from torchcaps.models import ModelOutput, build
from torchcaps.ops import Capsules

SMALL = {"channels": 4, "n_types": 2, "d_class": 5, "decoder": (6,)}


def tiny(**options: Any) -> Any:
    return build("capsnet", (3, 20, 18), 4, **SMALL | options).eval()


def test_offsets_are_the_papers():
    assert OFFSETS == (-0.25, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25)


@torch.no_grad()
def test_the_middle_column_is_the_plain_reconstruction():
    model, x, classes = tiny(), torch.rand(2, 3, 20, 18), torch.tensor([3, 0])
    grids = perturb(model, x, classes)
    assert grids.shape == (2, 5, 11, 3, 20, 18)
    plain = decoder_of(model)(model(x).capsules[-1].pose, classes)
    for d in range(5):
        torch.testing.assert_close(grids[:, d, 5], plain)


@torch.no_grad()
def test_matrix_capsules_have_sixteen_dimensions():
    model, x, classes = tiny(routing="em", d_primary=16, d_class=16), torch.rand(1, 3, 20, 18), torch.tensor([2])
    grids = perturb(model, x, classes)
    assert grids.shape == (1, 16, 11, 3, 20, 18)
    pose = model(x).capsules[-1].pose.clone()
    pose[:, :, 1, 2] += 0.25 * decoder_of(model).pose_scale  # row by row, number 6
    torch.testing.assert_close(grids[:, 6, 10], decoder_of(model)(pose, classes))


@torch.no_grad()
@pytest.mark.parametrize(
    "wrap",
    [lambda model: torch.compile(model, backend="eager"), AveragedModel, nn.DataParallel],
    ids=["compiled", "averaged", "parallel"],
)
def test_a_wrapped_network_is_the_network_within(wrap: Callable[[nn.Module], nn.Module]):
    model, x, classes = tiny(), torch.rand(1, 3, 20, 18), torch.tensor([2])
    torch.testing.assert_close(perturb(wrap(model), x, classes), perturb(model, x, classes))


@torch.no_grad()
def test_every_cell_is_the_decoded_capsule_with_one_number_changed():
    model, x, classes = tiny(), torch.rand(1, 3, 20, 18), torch.tensor([2])
    grids = perturb(model, x, classes, offsets=(-0.5, 0.3))
    pose = model(x).capsules[-1].pose
    plain = pose.clone()
    pose[0, 2, 4] = plain[0, 2, 4] - 0.5
    torch.testing.assert_close(grids[:, 4, 0], decoder_of(model)(pose, classes))
    pose[0, 2, 4] = plain[0, 2, 4] + 0.3
    torch.testing.assert_close(grids[:, 4, 1], decoder_of(model)(pose, classes))
    assert not torch.allclose(grids[:, 3, 1], grids[:, 4, 1])


def test_strength_is_the_mean_difference_of_the_ends():
    grids = torch.zeros(1, 2, 3, 1, 2, 2)
    grids[0, 1, 0, 0, 0, 0], grids[0, 1, 2, 0, 0, 0] = 0.2, 1.0
    grids[0, 0, 1] = 9.0  # what lies between the ends does not count
    torch.testing.assert_close(dimension_strengths(grids), torch.tensor([[0.0, 0.2]]))


def test_what_does_not_fit_is_named():
    x, classes = torch.rand(1, 3, 20, 18), torch.tensor([0])
    with pytest.raises(ValueError, match="has no decoder"):
        perturb(tiny(decoder=None), x, classes)
    other = nn.Flatten()
    other.decoder = nn.Identity()
    with pytest.raises(ValueError, match=r"model must have a torchcaps.Decoder as its decoder, got a Identity"):
        perturb(other, x, classes)
    other.decoder = Decoder(4, 5, (3, 20, 18))
    with pytest.raises(
        ValueError,
        match=r"model must return its class capsules, alone or last in a torchcaps.models.ModelOutput; got a Tensor",
    ):
        perturb(other, x, classes)
    with pytest.raises(ValueError, match="offsets must hold at least one number"):
        perturb(tiny(), x, classes, offsets=())
    with pytest.raises(ValueError, match="the number of images must be an integer of at least 1, got 0"):
        perturb(tiny(), x[:0], classes[:0])
    with pytest.raises(ValueError, match="classes must be"):
        perturb(tiny(), x, torch.tensor([0, 1]))


class Own(nn.Module):
    """A network of one's own, which returns its class capsules in one form or another."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.pose = form, nn.Linear(4, 6)

    def forward(self, x):
        pose = self.pose(x.flatten(1)).unflatten(1, (3, 2))
        capsules = Capsules(pose, pose.norm(dim=2))
        if self.form == "output":
            return ModelOutput(capsules.activation, (capsules,))
        return capsules if self.form == "capsules" else [Capsules(x, x), capsules]


def linear(pose, target):
    """Decode a pose of two numbers into an image of two pixels."""
    return pose[torch.arange(len(pose)), target].view(-1, 1, 1, 2)


@torch.no_grad()
@pytest.mark.parametrize("form", ["output", "capsules", "layers"])
def test_any_network_that_returns_its_capsules_is_decoded_by_a_given_decoder(form: str):
    model, x, classes = Own(form), torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1])
    pose = model.pose(x.flatten(1)).unflatten(1, (3, 2))
    grids = perturb(model, x, classes, (-0.5, 0.0), decoder=linear)
    own = pose[torch.arange(5), classes]
    torch.testing.assert_close(grids[:, 0, 1].flatten(1), own)
    torch.testing.assert_close(grids[:, 1, 0].flatten(1), own - torch.tensor([0.0, 0.5]))
    found = reconstruct(model, x, classes, decoder=linear)
    assert found.predicted.equal(pose.norm(dim=2).argmax(dim=1))
    torch.testing.assert_close(found.from_true.flatten(1), own)
    torch.testing.assert_close(found.from_predicted.flatten(1), pose[torch.arange(5), found.predicted])
    decoder = Decoder(3, 2, (1, 3, 3), (5,))
    torch.testing.assert_close(reconstruct(model, x, classes, decoder=decoder).from_true, decoder(pose, classes))


def test_a_given_decoder_decodes_without_dropout_and_keeps_its_mode():
    model, x, classes = Own("capsules"), torch.rand(2, 1, 2, 2), torch.tensor([0, 1])

    class Dropping(Decoder):
        def forward(self, capsules, target=None):
            return torch.nn.functional.dropout(super().forward(capsules, target), 0.9, self.training)

    decoder = Dropping(3, 2, (1, 3, 3), (5,)).train()
    found = perturb(model, x, classes, (0.0,), decoder=decoder)
    assert decoder.training and bool((found > 0).all())
    with pytest.raises(ValueError, match=r"decoder must be Decode \| None, got 3"):
        perturb(model, x, classes, decoder=3)  # type: ignore[arg-type]
