from __future__ import annotations

from typing import Any

import pytest
import torch

from torchcaps.explain import reconstruct, red_and_green, segment
from torchcaps.explain.models import decoder_of
from torchcaps.models import CapsNet, ModelOutput

SHAPE = (1, 20, 18)


def tiny(**options: Any) -> CapsNet:
    return CapsNet(SHAPE, 4, **{"channels": 4, "n_types": 2, "decoder": (6,)} | options).eval()


class Says(CapsNet):
    """A CapsNet that gives the scores that it is given."""

    scores: torch.Tensor

    def forward(self, x: torch.Tensor, **options: Any) -> ModelOutput:
        return super().forward(x, **options)._replace(scores=self.scores)


def test_red_is_the_first_and_green_the_second():
    parts = torch.tensor([[[0.5, 1.0, 0.0]], [[0.25, 0.0, 1.0]]]).unsqueeze(1)  # [2, C, H, W]
    assert red_and_green(parts).tolist() == [[[0.5, 0.25, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
    colour = torch.stack((torch.tensor([0.3, 0.6, 0.9]), torch.zeros(3))).view(1, 2, 3, 1, 1)
    torch.testing.assert_close(red_and_green(colour).flatten(), torch.tensor([0.6, 0.0, 0.0]))


@torch.no_grad()
def test_each_reconstruction_is_of_its_own_capsule():
    model, x = tiny(), torch.rand(3, *SHAPE)
    labels = torch.tensor([[0, 1], [2, 3], [3, 0]])
    found = segment(model, x, labels, torch.rand(3, 2, *SHAPE))
    pose = model(x).capsules[-1].pose
    torch.testing.assert_close(found.reconstructions[:, 0], decoder_of(model)(pose, found.predicted[:, 0]))
    torch.testing.assert_close(found.reconstructions[:, 1], decoder_of(model)(pose, found.predicted[:, 1]))
    torch.testing.assert_close(red_and_green(found.reconstructions)[..., 0], found.reconstructions[:, 0, 0])


def test_a_right_class_stands_in_the_place_of_its_label():
    model = Says(SHAPE, 4, channels=4, n_types=2, decoder=(6,))
    model.scores = torch.tensor([[0.9, 0.8, 0, 0], [0.9, 0.8, 0, 0], [0, 0, 0.8, 0.9], [0, 0.9, 0, 0.8]])
    labels = torch.tensor([[0, 1], [1, 0], [3, 1], [2, 1]])
    found = segment(model, torch.rand(4, *SHAPE), labels, torch.rand(4, 2, *SHAPE))
    assert found.predicted.tolist() == [[0, 1], [1, 0], [3, 2], [3, 1]]
    assert found.right.tolist() == [True, True, False, False]


@torch.no_grad()
def test_an_image_is_decoded_as_what_it_was_taken_for_and_as_what_it_is():
    model = Says(SHAPE, 4, channels=4, n_types=2, decoder=(6,))
    model.scores = torch.tensor([[0.9, 0, 0, 0], [0, 0, 0.9, 0]])
    x, labels = torch.rand(2, *SHAPE), torch.tensor([0, 1])
    found = reconstruct(model, x, labels)
    pose = model(x).capsules[-1].pose
    assert found.predicted.tolist() == [0, 2]
    torch.testing.assert_close(found.from_predicted, decoder_of(model)(pose, torch.tensor([0, 2])))
    torch.testing.assert_close(found.from_true, decoder_of(model)(pose, labels))


def test_what_does_not_fit_is_named():
    x, labels, parts = torch.rand(1, *SHAPE), torch.tensor([[0, 1]]), torch.rand(1, 2, *SHAPE)
    with pytest.raises(ValueError, match="model must have a decoder, got a CapsNet that has no decoder"):
        segment(tiny(decoder=None), x, labels, parts)
    with pytest.raises(ValueError, match="has no decoder"):
        reconstruct(tiny(decoder=None), x, labels[:, 0])
    with pytest.raises(ValueError, match=r"labels must be \[B, 2\], got shape \[1, 1\]"):
        segment(tiny(), x, labels[:, :1], parts[:, :1])
    with pytest.raises(ValueError, match="the number of classes must be an integer of at least 2, got 1"):
        segment(CapsNet(SHAPE, 1, channels=4, n_types=2), x, labels, parts)
