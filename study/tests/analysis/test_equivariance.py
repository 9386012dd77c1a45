"""Whether pose follows is known for models whose features one makes by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from study.analysis import pose_follows, responses
from study.analysis.equivariance import SHARES, Responses
from study.analysis.probes import divided
from study.data.transform import rotate
from torchcaps.explain import extract_features
from torchcaps.layers import DenseCaps
from torchcaps.models import CapsNet, MatrixCapsNet, ModelOutput
from torchcaps.models.baselines import BaselineCNN
from torchcaps.ops import Capsules


class Knows(nn.Module):
    """Capsules of two classes, whose poses are the image's brightness, through another matrix for each class."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise
        self.frames = torch.tensor([[2.0, -1.0], [-3.0, 5.0]])

    def forward(self, x: Tensor) -> ModelOutput:
        value = x.mean(dim=(1, 2, 3))[:, None, None]
        pose = self.frames * value + torch.tensor([1.0, 4.0]) + self.noise * torch.randn(len(x), 2, 2)
        scores = torch.cat((0.5 + 0 * value[:, 0], value[:, 0]), dim=1)
        return ModelOutput(scores, (Capsules(pose, scores),))


def brighter(images: Tensor, by: float) -> Tensor:
    return images + by


def test_capsules_are_read_by_length_and_pose():
    for model in (
        CapsNet((1, 20, 18), 3, channels=4, n_types=2, decoder=(5,)),
        MatrixCapsNet((1, 24, 24), 3, A=4, B=2, C=2, D=2),
    ):
        x, labels = torch.rand(3, *model.image_shape), torch.tensor([2, 0, 1])
        model.eval()
        found, output = extract_features(model, x, batch_size=2), model(x)
        confidence, pose = found.of_class(labels)
        torch.testing.assert_close(confidence, output.scores[torch.arange(3), labels])
        torch.testing.assert_close(pose[1], output.capsules[-1].pose[1, 0].flatten())
        assert torch.equal(found.predicted, output.scores.argmax(dim=1))


@pytest.mark.parametrize(
    "below", [nn.Identity(), nn.Sequential(nn.Flatten(1), nn.Linear(48, 48), nn.Unflatten(1, (6, 8)))]
)
def test_layers_alone_are_read_by_length_and_pose(below: nn.Module) -> None:
    """Whatever they stand on: what goes into a linear layer below them is not what decides."""
    layers = nn.Sequential(nn.Flatten(2), nn.Unflatten(1, (6,)), below, DenseCaps(6, 3, 8, 16))
    x = torch.rand(5, 6, 2, 4)
    found, output = extract_features(layers, x, batch_size=2), layers(x)
    torch.testing.assert_close(found.confidence, output.activation)
    torch.testing.assert_close(found.features, output.pose)


def test_a_network_without_is_read_by_softmax_and_the_input_of_its_last_linear():
    cnn = BaselineCNN((1, 8, 9), 3, (4,), (6,))
    x = torch.rand(5, 1, 8, 9)
    found = extract_features(cnn, x, batch_size=2)
    assert cnn.training and found.features.shape == (5, 6)
    torch.testing.assert_close(found.confidence, cnn.logits(found.features).softmax(dim=1))
    assert not cnn._forward_hooks and not cnn.logits._forward_pre_hooks
    bare = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.testing.assert_close(extract_features(bare, x).features, bare[:3](x))


def test_what_cannot_be_read_is_named():
    with pytest.raises(ValueError, match="model must have capsules or an nn.Linear to take features from, got a Flat"):
        extract_features(nn.Flatten(), torch.rand(2, 1, 2, 2))
    with pytest.raises(ValueError, match="the number of images must be an integer of at least 1, got 0"):
        extract_features(nn.Flatten(), torch.rand(0, 1, 2, 2))
    with pytest.raises(ValueError, match="images must be floats 0 … 1, got torch.uint8"):
        extract_features(nn.Flatten(), torch.zeros(2, 1, 2, 2, dtype=torch.uint8))
    found = extract_features(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.rand(2, 1, 2, 2))
    with pytest.raises(ValueError, match="labels must hold classes 0 … 2, got -1 … 0"):
        found.of_class(torch.tensor([-1, 0]))


def test_responses_are_readings_of_the_changed_images():
    model = CapsNet((1, 20, 20), 3, channels=4, n_types=2, decoder=None)
    x, labels = torch.rand(4, 1, 20, 20), torch.tensor([0, 1, 2, 0])
    found = responses(model, x, labels, rotate, (-90.0, 0.0, 180.0), batch_size=3)
    confidence, pose = extract_features(model, rotate(x, 180)).of_class(labels)
    torch.testing.assert_close(found.confidence[2], confidence)
    torch.testing.assert_close(found.features[2], pose)
    torch.testing.assert_close(found.features[1], found.origin)
    assert torch.equal(found.right[0], extract_features(model, rotate(x, -90)).predicted == labels)
    moved = responses(
        model, x, labels, rotate, (0.0,), neutral=90.0
    )  # read at a given place, of a transform that moves
    torch.testing.assert_close(moved.origin, extract_features(model, rotate(x, 90)).of_class(labels)[1])
    few = found.within(-90, 10)
    assert few.values.tolist() == [-90, 0] and few.features.shape[:2] == (2, 4)
    torch.testing.assert_close(few.confidence, found.confidence[:2])
    assert torch.equal(few.right, found.right[:2])


def test_a_pose_that_follows_each_class_in_its_own_frame_is_read_exactly():
    x, labels = torch.full((16, 1, 2, 2), 0.5), torch.arange(16) % 2
    found = responses(Knows(), x, labels, brighter, [-0.2, -0.1, 0.0, 0.2])
    torch.testing.assert_close(pose_follows(found), torch.ones(2).double(), atol=1e-3, rtol=0)
    # Unlike images: how bright they were tells nothing of how much brighter they were made, but the change does.
    x = 40 * torch.rand(60, 1, 1, 1).expand(60, 1, 2, 2)
    found = responses(Knows(), x, torch.arange(60) % 2, brighter, [-0.2, -0.1, 0.0, 0.2])
    assert pose_follows(found).max() < 0.05
    torch.testing.assert_close(pose_follows(found, change=True), torch.ones(2).double(), atol=1e-3, rtol=0)


def test_a_pose_that_does_not_follow_is_not_read():
    found = responses(Knows(noise=5.0), torch.full((80, 1, 2, 2), 0.5), torch.arange(80) % 2, brighter, [-0.1, 0.1])
    assert pose_follows(found).max() < 0.1


def test_fewer_components_hold_less():
    """The value stands in the direction that varies less."""
    x, labels = torch.full((40, 1, 2, 2), 0.5), torch.zeros(40, dtype=torch.int64)
    found = responses(Knows(), x, labels, brighter, [-0.2, 0.0, 0.2])
    values = found.values[:, None].expand(3, 40)
    features = torch.stack((10 * torch.randn(3, 40), values), dim=2)
    found = found._replace(features=features)
    assert float(pose_follows(found, n_components=2)[0]) > 0.99
    assert float(pose_follows(found, n_components=9)[0]) > 0.99  # there are no more than two
    assert float(pose_follows(found, n_components=1)[0]) < 0.1


def _of(features: Tensor, values: Tensor) -> Responses:
    """Responses of one class with these features ``[K, n, D]``."""
    seen = torch.zeros(features.shape[:2])
    return Responses(values, torch.zeros(features.shape[1], dtype=torch.int64), seen, seen > 0, features, features[0])


def test_the_components_are_those_of_the_images_that_fit():
    """In the test's images alone what says nothing varies most."""
    values = torch.tensor([-1.0, 0.0, 1.0])
    features = torch.stack((values[:, None].expand(3, 40), 0.1 * torch.randn(3, 40)), dim=2).clone()
    features[:, divided(40, SHARES, 0)[2], 1] *= 1000
    assert float(pose_follows(_of(features, values), n_components=1)[0]) > 0.9


def test_the_penalty_is_not_chosen_on_what_fits():
    """By which the least would always be the best; of noise it would make something."""
    assert float(pose_follows(_of(torch.randn(2, 32, 60), torch.tensor([-1.0, 1.0])))[0]) > -0.3


def test_five_images_are_too_few_to_be_divided():
    values = torch.tensor([-1.0, 1.0])
    for n, few in ((5, True), (6, False)):
        found = pose_follows(_of(values.view(2, 1, 1) + 0.1 * torch.randn(2, n, 1), values))
        assert bool(found.isnan()) == few


def test_the_penalty_is_not_chosen_on_what_tests_it():
    """Features of the test's images are twice as large: half of the true slope, a penalty of 1, would suit them."""
    labels = torch.zeros(40, dtype=torch.int64)
    found = responses(Knows(), torch.full((40, 1, 2, 2), 0.5), labels, brighter, [-0.2, 0.0, 0.2])
    size = torch.ones(40)
    size[divided(40, SHARES, seed=0)[2]] = 2
    found = found._replace(features=(found.values[:, None] * size)[..., None])
    assert float(pose_follows(found)[0]) == pytest.approx(0, abs=1e-4)


def test_classes_with_few_images_have_no_number():
    labels = torch.tensor([0] * 8 + [2] * 3)
    found = responses(Knows(), torch.full((11, 1, 2, 2), 0.5), labels.clamp_max(1), brighter, [0.0, 0.1])
    scores = pose_follows(found._replace(labels=labels))
    assert scores.isnan().tolist() == [False, True, True]
    with pytest.raises(ValueError, match="values must be at least two to tell apart"):
        pose_follows(found.within(0.0, 0.05))
    with pytest.raises(ValueError, match="values must hold at least one number"):
        responses(Knows(), torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), brighter, [])
