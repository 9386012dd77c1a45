"""What public capsule codes get wrong, as properties that every routing, layer and model here has."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.autograd.gradcheck import GradcheckError

from tests.battery import SUBJECTS
from torchcaps import layers, models
from torchcaps.layers.base import RoutedLayer
from torchcaps.ops import Capsules
from torchcaps.testing import PROPERTIES, NotApplicable, Subject, assert_capsule_properties


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("name", PROPERTIES)
def test_capsules_have_every_property(name: str, subject: Subject) -> None:
    try:
        PROPERTIES[name](subject)
    except NotApplicable as why:
        pytest.skip(str(why))


class Wrong(nn.Module):
    """Dense capsules without iterations, with the mistakes that public codes make."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        self.weight = nn.Parameter(torch.randn(7, 4, 5, 6))
        self.bias = nn.Parameter(torch.zeros(4, 6))

    def forward(self, x: torch.Tensor, return_coupling: bool = False) -> Capsules:
        votes = torch.einsum("bid,ijde->bije", x, self.weight)
        logits = votes.sum(dim=3)
        if self.mistake == "batch":
            logits = logits.mean(dim=0, keepdim=True).expand_as(logits)
        coupling = logits.softmax(dim=1 if self.mistake == "axis" else 2)
        s = (coupling.unsqueeze(3) * votes).sum(dim=1) + (0 if self.mistake == "unused" else self.bias)
        tiny = 0 if self.mistake == "norm" else 1e-20
        norm = (s.square().sum(dim=2, keepdim=True) + tiny).sqrt()
        pose = s / (norm + tiny) * norm.square() / (1 + norm.square())
        if self.mistake == "detached":
            pose = pose.detach() + 0 * s
        length = (pose.square().sum(dim=2) + tiny).sqrt()
        activation = length.softmax(dim=1) if self.mistake == "lengths" else length
        if self.mistake == "dtype":
            pose = pose.float()
        return Capsules(pose, activation, coupling if return_coupling else None)


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        ("batch", "rows_do_not_see_each_other"),
        ("norm", "black_images_are_finite"),
        ("detached", "derivatives_are_right"),
        ("dtype", "dtypes_are_kept"),
        ("lengths", "activations_are_lengths"),
        ("axis", "couplings_sum_over_upper_capsules"),
        ("unused", "parameters_exist_and_learn"),
    ],
)
def test_every_mistake_is_found(mistake: str, name: str) -> None:
    """The property that it breaks fails; without a mistake all hold."""
    torch.manual_seed(0)
    right = Subject("right", (7, 5), Wrong, permutes=True)
    assert assert_capsule_properties(right) == list(PROPERTIES)
    wrong = Subject("wrong", (7, 5), lambda: Wrong(mistake), permutes=True)
    with pytest.raises((AssertionError, GradcheckError)):
        PROPERTIES[name](wrong)
    with pytest.raises(AssertionError, match="wrong: .* does not hold"):
        assert_capsule_properties(wrong)


def test_what_is_no_kind_of_coupling_is_refused() -> None:
    with pytest.raises(ValueError, match="couplings must be one of one, less, other; got 'two'"):
        Subject("x", (1,), nn.Identity, couplings="two")


def test_nothing_that_makes_capsules_is_left_out() -> None:
    parts = [part for subject in SUBJECTS for part in subject.make().modules()]
    kinds = {type(part) for part in parts}
    routed = {(type(part), part.routing.name) for part in parts if isinstance(part, RoutedLayer)}
    votes_by_convolution = {(layers.ConvVoteCaps, "dynamic"), (layers.DeconvVoteCaps, "dynamic")}
    every = set(product((layers.DenseCaps, layers.ConvCaps, layers.ClassCaps), layers.ROUTINGS))
    assert routed == every | votes_by_convolution
    given = [getattr(module, name) for module in (layers, models) for name in module.__all__]
    modules = {kind for kind in given if isinstance(kind, type) and issubclass(kind, nn.Module)}
    #: They make images, or none at all.
    others = {
        layers.Conv2d,
        models.UNet,
        models.PlainAutoencoder,
        models.TemplateAutoencoder,
        models.TransformingAutoencoder,
    }
    others |= {models.Scores, models.ConstellationAutoencoder, models.StackedCapsuleAutoencoder}
    assert modules - kinds - others == {models.Transforming}  # what the auto-encoders inherit from
